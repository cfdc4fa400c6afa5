"""Every block that a document shows can be used: it is checked by what it is meant for.

Which check a block needs is in a table here, and so is why a block has none. A block that is in no table fails.
Commands are checked in test_shown_commands.py, Python also in tests/testing, in an environment of its own.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import inspect
from tests.lab_api.samples import pod
from tests.support.shown import REPO, ShownBlock, blocks, commands, spans

from colocate.agent.configuration import AGENT
from colocate.cli.main import main
from colocate.clock import SystemClock
from colocate.cluster.usage import RELABELLING, SERVICE_MONITOR, Preset, rules
from colocate.config import words
from colocate.config.document import ConfigDocument
from colocate.config.file import build_document
from colocate.doctor import gpu_checks
from colocate.errors import UserError
from colocate.gpus.agent.mock_file import load_mock_gpus
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import NAMESPACES, PODS
from colocate.lab.api.store import ObjectStore
from colocate.lab.nodes.shape import from_file
from colocate.scheduler.settings import SCHEDULER
from colocate.telemetry import Event

Check = Callable[[Path], None]


def valid(*command: str) -> Check:
    """By the command that a reader has for it."""

    def check(file: Path) -> None:
        with pytest.raises(SystemExit) as end:
            main([*command, str(file)])
        assert end.value.code == 0

    return check


def part_of_a_pod(*place: str) -> Check:
    """An API server takes a pod that has it there."""

    def check(file: Path) -> None:
        body = pod("shown")
        part: Any = body["spec"]["containers"][0] if place == ("container",) else body
        for name in place:
            part = part if name == "container" else part[name]
        for key, value in yaml.safe_load(file.read_text()).items():
            part[key] = {**part.get(key, {}), **value} if isinstance(value, dict) else value
        registry = ObjectRegistry(ObjectStore(), SystemClock())
        registry.create(NAMESPACES, "", {"metadata": {"name": "default"}})
        registry.create(PODS, "default", body)

    return check


def printed_by_colocate(file: Path) -> None:
    """The doctor prints the same, and its tests try it with a real Prometheus."""
    assert file.read_text().endswith((RELABELLING, SERVICE_MONITOR, rules(Preset.REAL_USAGE)))


def mock_gpus(file: Path) -> None:
    assert load_mock_gpus(file, "node")


def simulated_nodes(file: Path) -> None:
    assert from_file(file)


AGENT_FILE, SCHEDULER_FILE = valid("config", "check"), valid("scheduler", "config", "check")

YAML: dict[str, list[Check]] = {
    "docs/cpus.md": [part_of_a_pod()],
    "docs/extender.md": [SCHEDULER_FILE],
    "docs/gpu-scheduling.md": [SCHEDULER_FILE],
    "docs/gpus.md": [part_of_a_pod("container"), AGENT_FILE, mock_gpus],
    "docs/mock-devices.md": [AGENT_FILE],
    "docs/placement.md": [AGENT_FILE],
    "docs/prometheus.md": [printed_by_colocate, printed_by_colocate, printed_by_colocate],
    "docs/scheduling.md": [part_of_a_pod("spec"), SCHEDULER_FILE],
}
"""By document, what checks its blocks of YAML, one after the other."""

EXAMPLES: dict[str, Check] = {
    "agent.yaml": AGENT_FILE,
    "gpus/agent.yaml": AGENT_FILE,
    "gpus/mock-gpus.yaml": mock_gpus,
    "scheduler/prometheus-rules.yaml": printed_by_colocate,
    "nodes.yaml": simulated_nodes,
    "scheduler/scheduler.yaml": SCHEDULER_FILE,
    "memory/patches/far-pages.yaml": lambda file: (
        None
    ),  # a patch, which tests/cli/test_lab_streams.py applies
}
"""Files of examples/ that are no objects of a cluster; tests/cli/test_lab_streams.py applies those that are."""

NOT_TRIED = {
    "text": "output; what can be compared is, in test_readme.py, test_sdk_docs.py and test_scheduling_docs.py",
    "json": "a checkpoint with ids cut short, so that a reader sees its shape",
    "": "a formula",
}
"""Languages that nothing runs, and why."""


def in_order(language: str) -> Iterator[tuple[ShownBlock, int]]:
    """Blocks of a language with their number in their document."""
    seen: dict[str, int] = {}
    for block in blocks(language):
        yield block, seen.setdefault(block.document, 0)
        seen[block.document] += 1


def test_every_language_is_looked_at() -> None:
    assert {block.language for block in blocks()} == {"console", "python", "yaml", "toml", *NOT_TRIED}


@pytest.mark.parametrize(
    ("block", "number"), list(in_order("yaml")), ids=lambda one: getattr(one, "place", "")
)
def test_yaml_can_be_used_as_it_is_shown(block: ShownBlock, number: int, tmp_path: Path) -> None:
    checks = YAML.get(block.document, [])
    assert len(checks) > number, f"{block.place} is in no table: say what checks it"
    file = tmp_path / "shown.yaml"
    file.write_text(block.text)
    checks[number](file)


@pytest.mark.parametrize(
    "shown", [one for one in commands() if one.text.startswith("cat ")], ids=lambda one: one.place
)
def test_a_file_that_is_printed_can_be_used(shown: Any, tmp_path: Path) -> None:
    assert shown.text == "cat scheduler.yaml"
    (tmp_path / "scheduler.yaml").write_text(shown.output)
    SCHEDULER_FILE(tmp_path / "scheduler.yaml")


def test_a_file_that_cannot_be_used_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("version: 1\nmock: {resource: []}\n")
    with pytest.raises(AssertionError):
        AGENT_FILE(tmp_path / "wrong.yaml")


@pytest.mark.parametrize("file", sorted((REPO / "examples").rglob("*.yaml")), ids=lambda file: file.name)
def test_every_file_of_the_examples_is_of_a_known_kind(file: Path) -> None:
    name = str(file.relative_to(REPO / "examples"))
    if name in EXAMPLES:
        EXAMPLES[name](file)
    else:
        assert all(one["apiVersion"] and one["kind"] for one in yaml.safe_load_all(file.read_text()))


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.place)
def test_toml_is_toml(block: ShownBlock) -> None:
    """tests/support/containerd.py starts a real containerd with the same table; the doctor reads such settings."""
    shown = tomllib.loads(block.text)
    if "plugins" in shown:
        (table,) = shown["plugins"]
        assert table in (REPO / "tests" / "support" / "containerd.py").read_text()
    else:
        assert set(shown) == {gpu_checks.BY_ENV, gpu_checks.BY_MOUNT}


def fields(document: ConfigDocument[Any]) -> Iterator[str]:
    """The path of every field, and of every section."""

    def below(kind: inspect.Type, path: str) -> Iterator[str]:
        kind = words.stated(kind)
        if isinstance(kind, inspect.ListType | inspect.VarTupleType):
            yield from below(kind.item_type, path)
        elif isinstance(kind, inspect.StructType):
            for field in kind.fields:
                inner = words.dotted(path, field.encode_name)
                yield inner
                yield from below(field.type, inner)

    return below(inspect.type_info(document.kind), "")


FIELDS = {*fields(AGENT), *fields(SCHEDULER)}
SECTIONS = {path for path in FIELDS if "." not in path}
OF_OTHERS = {
    "kubelet.until": "a method of a test's node",
    "memory.high": "a file of a control group",
    "memory.numa_stat": "a file of a control group",
    "memory.reclaim": "a file of a control group",
    "memory.deviation.15m": "a signal of Prometheus",
    "metrics.k8s.io": "a group of the API",
}
"""Words with a dot that begin like a field and are none."""


def test_every_field_that_is_named_is_one() -> None:
    known = {*FIELDS, *map(str, Event), *OF_OTHERS}
    named = {
        (document, text.replace("[]", ""))
        for document, text in spans()
        if re.fullmatch(r"[a-z]+(\.[\w\[\]]+)+", text) and text.partition(".")[0] in SECTIONS
    }
    assert len(named) > 50
    assert {(document, text) for document, text in named if text not in known} == set()


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (document, text)
        for document, text in spans()
        if re.match(r"\w+: ", text)
        and text.partition(":")[0] in SECTIONS
        and document not in ("docs/sdk.md", "docs/testing.md")
    ],
)
def test_a_setting_in_a_sentence_can_be_set(document: str, text: str) -> None:
    refused = []
    kinds: tuple[ConfigDocument[Any], ...] = (AGENT, SCHEDULER)
    for kind in kinds:
        try:
            build_document(kind, f"version: 1\n{text}\n".encode(), document, {})
        except UserError as error:
            refused.append(str(error))
    assert len(refused) < 2, refused
