"""The file with mock GPUs: models, sizes and places of GPUs that do not exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from colocate.config.document import ConfigDocument
from colocate.config.file import load_document
from colocate.config.words import Problem, show
from colocate.host.mock_gpus import MockGpu, mock_uuid
from colocate.model import values
from colocate.model.values import Section, Size

MOST = 64
"""Mock GPUs of a node."""
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_LEAST_MEMORY, _MOST_MEMORY = 1 << 20, 4 << 40
_MOST_NODE = 1023


class MockGpuGroup(Section, frozen=True):
    """GPUs that are alike."""

    memory: Size
    model: str = "Mock GPU"
    count: int = 1
    uuid: str | None = None
    """Of a single one; not given: made from the node's name and the GPU's place."""
    numa: int | None = None
    mig: bool = False


class MockGpuFile(Section, frozen=True):
    """The whole file."""

    version: int = 1
    gpus: tuple[MockGpuGroup, ...] = ()


def load_mock_gpus(file: Path, node: str) -> tuple[MockGpu, ...]:
    """The GPUs of a file as a node has them; UserError where it cannot be used."""
    groups = load_document(_DOCUMENT, file, {}).config.gpus
    alike = [group for group in groups for _ in range(group.count)]
    return tuple(
        MockGpu(
            uuid=group.uuid or mock_uuid(node, place),
            model=group.model,
            memory=int(group.memory),
            numa=group.numa,
            mig=group.mig,
        )
        for place, group in enumerate(alike)
    )


def _check(file: MockGpuFile) -> None:
    for path, what in _problems(file):
        raise Problem(path, what)


def _problems(file: MockGpuFile) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for index, group in enumerate(file.gpus):
        path = f"gpus[{index}]"
        if not _LEAST_MEMORY <= group.memory <= _MOST_MEMORY:
            yield (
                f"{path}.memory",
                f"{group.memory} bytes is no GPU's memory; write it like 16Gi, from 1Mi to 4Ti",
            )
        if not 1 <= group.count <= MOST:
            yield f"{path}.count", f"{show(group.count)} is out of range; choose 1 to {MOST}"
        if group.numa is not None and not 0 <= group.numa <= _MOST_NODE:
            yield (
                f"{path}.numa",
                f"{show(group.numa)} is not a NUMA node; give a number from 0 to {_MOST_NODE}",
            )
        if group.uuid is not None:
            if group.count != 1:
                yield f"{path}.uuid", f"count is {group.count}; give a UUID to single GPUs only"
            if not _UUID.fullmatch(group.uuid):
                what = "is not a UUID; write letters, digits and dashes, such as GPU-709fac35"
                yield f"{path}.uuid", f"{show(group.uuid)} {what}"
            if group.uuid in seen:
                yield f"{path}.uuid", f"{show(group.uuid)} is already in the list; give another"
            seen.add(group.uuid)
    if sum(group.count for group in file.gpus) > MOST:
        yield "gpus", f"a node has at most {MOST} mock GPUs; lower the counts"


_DOCUMENT = ConfigDocument(MockGpuFile, _check, values.decode, "docs/gpus.md shows one")
