"""In a VM whose power is cut: a real containerd and the CRI proxy, both with their files on a disk that stays.

python -m tests.vm.placement_power_cut. Says what it finds after the boot, then runs pods with CPUs of their own, ends
older ones, and acknowledges each step with the CPUs that every pod has.
"""

import asyncio
import itertools
import os
from pathlib import Path

import msgspec

from colocate.cpus.placer.store import decoded
from tests.support.containerd import Containerd
from tests.vm.events import Port, Said
from tests.vm.image import DISK
from tests.vm.test_placement import VmNode, proxied
from tests.vm.topology import TOPOLOGIES

TOPOLOGY = TOPOLOGIES["small"]
FOLDER = DISK / "node"
STATE = FOLDER / "placement" / "cpus-state.json"
_VOLATILE = Path("/run/containerd-of-the-test")
MOST_PODS = 2
"""At a step's end; in between there is one more, and then the oldest ends."""


class Seen(msgspec.Struct, frozen=True):
    """What a step has left, or what was found."""

    pods: dict[str, list[int]]
    """By pod, its own CPUs."""
    stored: dict[str, list[int]] = {}
    """As the file said it before anything was reconciled."""
    set_aside: bool = False


def number_of(pod: str) -> int:
    """Which one it is since the boot, from 0."""
    return int(pod.rpartition("-")[2])


def stored() -> dict[str, list[int]]:
    if not STATE.exists():
        return {}
    state = decoded(STATE.read_bytes())
    names = {sandbox.id: sandbox.name for sandbox in state.sandboxes}
    return {names[each.request.pod]: list(each.cpus) for each in state.cpus.assignments if each.cpus}


def own(node: VmNode) -> dict[str, list[int]]:
    placements = node.part.placer.keeper.placements
    assert placements is not None
    return {
        placements.sandboxes[each.request.pod].name: list(each.cpus)
        for each in placements.allocator.assignments.values()
        if each.cpus
    }


async def main() -> None:
    port = Port()
    FOLDER.mkdir(exist_ok=True)
    before = stored()
    # As on a node: what containerd knows of running shims goes with the power, its images and records stay.
    _VOLATILE.mkdir()
    volatile = FOLDER / "state"
    volatile.unlink(missing_ok=True)
    volatile.symlink_to(_VOLATILE)
    containerd = Containerd(FOLDER, "1.6", nri=False)
    await containerd.start()
    await asyncio.to_thread(containerd.import_image)
    os.sync()  # An image has been on its node for long.
    async with proxied(containerd, TOPOLOGY) as node:
        aside = STATE.with_name(f"{STATE.name}.set-aside").exists()
        port.tell(Said(msgspec.json.encode(Seen(own(node), before, aside)).decode()))
        for number in itertools.count():
            pod = f"pod-{len(before)}-{number}"
            await node.run(pod, 1, guaranteed=True)
            if len(node.sandboxes) > MOST_PODS:
                await node.end(next(iter(node.sandboxes)))
            port.tell(Said(msgspec.json.encode(Seen(own(node))).decode()))


if __name__ == "__main__":
    asyncio.run(main())
