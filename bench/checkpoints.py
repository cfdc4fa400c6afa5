"""A checkpoint of 200 000 devices, read, verified and shown: ten times the devices, about ten times the time.

Compared with the same work on a tenth of it. Both start from bytes in memory and end with lines of text.
"""

import asyncio
import time
from collections.abc import Callable

from bench.measure import side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate.cli.checkpoint_tables import table
from colocate.devices.checkpoint.reports import shown
from colocate.devices.checkpoint_check import check
from colocate.kubelet.allocation import to_wire
from colocate.kubelet.checkpoint import parse, render
from colocate.model.checkpoint import Checkpoint, Entry, Ids
from colocate.model.device import Allocation

MANY, TENTH = 200_000, 20_000
VERIFIED = Ratio("200 000 devices in a checkpoint verified", "20 000 devices", 12.0)
SHOWN = Ratio("200 000 devices in a checkpoint shown", "20 000 devices", 12.0)
RATIOS = (VERIFIED, SHOWN)

_RESOURCE = "vendor.example/gpu"
_PER_CONTAINER = 4
_CACHE = "/usr/local/vgpu/containers/f320f827-2a71-486b-a551-28c650dbaf1e_main/30c615ee-298f-48ee.cache"


def bench() -> list[Row]:
    many, tenth = file_of(MANY), file_of(TENTH)
    return [_row(VERIFIED, verify, many, tenth), _row(SHOWN, show, many, tenth)]


def verify(blob: bytes) -> None:
    assert not check(parse(blob).reading())


def show(blob: bytes) -> None:
    for _ in table(shown("checkpoint", parse(blob).reading(), {}), wide=False):
        pass


def file_of(devices: int) -> bytes:
    """A file in which every device is held, a few by each container, and named by what was injected."""
    ids = tuple(f"GPU-{number:08x}-5f40-624b-90f7-b0a3db7a97a0" for number in range(devices))
    entries = []
    for start in range(0, devices, _PER_CONTAINER):
        held = ids[start : start + _PER_CONTAINER]
        answer = to_wire(
            Allocation(
                envs={"NVIDIA_VISIBLE_DEVICES": ",".join(held), "MEMORY_LIMIT": "16000m", "CACHE": _CACHE}
            )
        )
        by_node: dict[int, Ids] = {start // _PER_CONTAINER % 8: held}
        entries.append(Entry(f"{start:036d}", "main", _RESOURCE, by_node, answer.SerializeToString()))
    return render(Checkpoint(tuple(entries), {_RESOURCE: ids}))


def _row(ratio: Ratio, work: Callable[[bytes], None], many: bytes, tenth: bytes) -> Row:
    async def seconds(blob: bytes) -> float:
        start = time.process_time()
        work(blob)
        return time.process_time() - start

    measured = asyncio.run(
        side_by_side(lambda: seconds(many), lambda: seconds(tenth), warm_up=0, at_least=2, seconds=20)
    )
    return ratio.row(
        measured.ratio,
        Figure("200 000", measured.ours, "s"),
        Figure("20 000", measured.theirs, "s"),
        Figure("file", len(many) / 1e6, "MB"),
    )
