"""Replays histories of exclusive CPU requests through the search that places containers, and counts crossings.

A crossing is needless where an empty machine would not have needed it: a container of 6 CPUs on two L3 caches of 8
has one. Every CPU of a machine may be given, as in the recordings of the kubelet.
"""

from collections.abc import Mapping, Sequence

import msgspec

from colocate.cpus import PoolTree, find_exclusive, spread_of
from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import CpuSet
from colocate.replay.cpu_histories import Arrival, CpuHistory, Departure

OURS = "ours"


class Crossings(msgspec.Struct, frozen=True):
    """Needless crossings of some containers."""

    sockets: int = 0
    nodes: int = 0
    l3s: int = 0

    def __add__(self, other: "Crossings") -> "Crossings":
        return Crossings(self.sockets + other.sockets, self.nodes + other.nodes, self.l3s + other.l3s)


class CpuReplay(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one history."""

    machine: str
    kind: str
    load: float
    containers: int
    needless: Mapping[str, Crossings]
    """By allocator: ours, and those that were recorded."""


def replay(topology: CpuTopology, history: CpuHistory) -> CpuReplay:
    """Replay one history, and count what we crossed beside what the recorded allocators did."""
    tree = PoolTree(topology)
    given = {OURS: place(tree, history.steps), **history.given}
    arrivals = [step for step in history.steps if isinstance(step, Arrival)]
    empty: dict[int, tuple[int, ...]] = {}
    for count in {step.cpus for step in arrivals}:
        found = find_exclusive(tree, tree.machine.cpus, count)
        empty[count] = spread_of(tree, found) if found is not None else ()
    needless = {}
    for name, sets in given.items():
        total = Crossings()
        for step in arrivals:
            spread = spread_of(tree, sets[step.container])
            total += Crossings(
                *(max(0, one - least) for one, least in zip(spread[:3], empty[step.cpus], strict=False))
            )
        needless[name] = total
    return CpuReplay(
        machine=history.machine,
        kind=history.kind,
        load=history.load,
        containers=len(arrivals),
        needless=needless,
    )


def place(tree: PoolTree, steps: Sequence[Arrival | Departure]) -> Mapping[int, CpuSet]:
    """The CPUs that each container of a history gets; the history never asks for more than is free."""
    free = tree.machine.cpus
    running: dict[int, CpuSet] = {}
    given: dict[int, CpuSet] = {}
    for step in steps:
        if isinstance(step, Departure):
            free |= running.pop(step.container)
            continue
        found = find_exclusive(tree, free, step.cpus)
        assert found is not None, "a history never asks for more than is free"
        given[step.container] = running[step.container] = found
        free -= found
    return given


def added(replays: Sequence[CpuReplay]) -> Mapping[str, Crossings]:
    """The crossings of all of them, by the allocators that each of them has."""
    names = [name for name in replays[0].needless if all(name in one.needless for one in replays)]
    return {name: sum((one.needless[name] for one in replays), Crossings()) for name in names}
