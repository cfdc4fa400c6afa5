"""NUMA nodes and preferred allocation: the PCI cards of a vendor, and which of them go well together.

    python examples/plugins/numa.py 0x1af4

Each device says which NUMA node it is near to, which is all that the kubelet's topology manager needs to keep a
container's CPUs and devices together. `prefer` is asked where there is a choice: it fills one node before it opens
the next, and begins with the node that has just enough, so that large requests still find a whole node later.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from colocate.kubelet import Allocation, Device, DevicePlugin, run

PCI = Path("/sys/bus/pci/devices")


class Cards(DevicePlugin):
    resource = "example.com/card"

    def __init__(self, vendor: str, folder: Path = PCI) -> None:
        self._vendor = vendor
        self._folder = folder
        self._nodes: dict[str, int] = {}

    def open(self) -> None:
        self._nodes = {
            card.name: int((card / "numa_node").read_text())
            for card in sorted(self._folder.iterdir())
            if (card / "vendor").read_text().strip() == self._vendor
        }

    def devices(self) -> list[Device]:
        # The kernel says -1 for a card that is near to no node in particular.
        return [Device(id, numa=(node,) if node >= 0 else ()) for id, node in self._nodes.items()]

    def allocate(self, ids: Sequence[str]) -> Allocation:
        return Allocation(envs={"CARDS": ",".join(ids)})

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        chosen = list(must_include)
        free = [id for id in available if id not in chosen]
        while len(chosen) < size:
            node = self._next_node(free, chosen, size - len(chosen))
            there = [id for id in free if self._nodes.get(id) == node]
            chosen += there[: size - len(chosen)]
            free = [id for id in free if id not in chosen]
        return chosen

    def _next_node(self, free: Sequence[str], chosen: Sequence[str], missing: int) -> int | None:
        """A node that has some of the chosen already; else the smallest that has enough; else the largest."""
        counts = Counter(self._nodes.get(id) for id in free)
        begun = {self._nodes.get(id) for id in chosen} & counts.keys()
        candidates = begun or counts.keys()
        enough = [node for node in candidates if counts[node] >= missing]
        if enough:
            return min(enough, key=lambda node: counts[node])
        return max(candidates, key=lambda node: counts[node])


if __name__ == "__main__":
    run(Cards(sys.argv[1]))
