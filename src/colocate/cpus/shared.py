"""The ladder for shared containers: a CCX, a NUMA node, NUMA + CCX, NUMA + NUMA, a socket, the machine.

The first rung with room is taken; what a rung holds is what is free there. On a rung the nearest second part goes
first, then what leaves sockets and NUMA nodes whole that no container uses yet, then what fits best, then what is
least loaded, then the lowest number. Where no pool has room the roomiest is taken, which is the machine. Requests
climb by their own size: 16.5 CPUs are more than a NUMA node of 16.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

import msgspec

from colocate.cpus.assignment import MilliCpu
from colocate.cpus.exclusive import Taste
from colocate.cpus.occupancy import Occupancy
from colocate.cpus.pools import CpuPool, PoolKind, PoolTree
from colocate.cpus.settings import BurstLevel


class PoolRung(StrEnum):
    """What a shared container may be put on, the smallest first on most machines."""

    CCX = "CCX"
    NUMA = "NUMA node"
    NUMA_CCX = "NUMA node + CCX"
    NUMA_NUMA = "two NUMA nodes"
    SOCKET = "socket"
    MACHINE = "whole machine"


_SINGLE = {
    PoolRung.CCX: PoolKind.CCX,
    PoolRung.NUMA: PoolKind.NUMA,
    PoolRung.SOCKET: PoolKind.SOCKET,
    PoolRung.MACHINE: PoolKind.MACHINE,
}


class SharedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The pools of a shared container, and what decided."""

    rung: PoolRung
    parts: tuple[tuple[CpuPool, MilliCpu], ...]
    """Each with how much of the request counts there."""
    short: MilliCpu = 0
    """How much more the request is than was free."""
    candidates: int = 1
    """How many on this rung had room."""
    left: MilliCpu = 0
    """What stays free on it."""
    passed: tuple[tuple[PoolRung, MilliCpu], ...] = ()
    """The rungs below, each with the most that it could hold."""
    beside: bool = False
    """It was chosen for the NUMA nodes of its devices."""

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset(node for pool, _ in self.parts for node in pool.nodes)


def rungs(occupancy: Occupancy) -> list[PoolRung]:
    """The rungs of this machine, ordered by inclusion: where NUMA nodes hold sockets, the socket comes first."""
    ordered = list(PoolRung)
    if occupancy.tree.sockets_in_nodes:
        ordered.remove(PoolRung.SOCKET)
        ordered.insert(1, PoolRung.SOCKET)
    return ordered


def choose_shared(
    occupancy: Occupancy, cpu: MilliCpu, taste: Taste, memory_fits: Callable[[Iterable[int]], bool]
) -> SharedChoice:
    """The pools for a request: beside its devices where there is room, else by the ladder alone."""
    if taste.beside:
        found = _climb(occupancy, cpu, taste, memory_fits, taste.beside)
        if found is not None:
            return msgspec.structs.replace(found, beside=True)
    found = _climb(occupancy, cpu, taste, memory_fits, None)
    if found is not None:
        return found
    machine = occupancy.tree.machine
    free = max(0, occupancy.free[machine.index])
    return SharedChoice(
        rung=PoolRung.MACHINE,
        parts=((machine, cpu),),
        short=cpu - free,
        passed=tuple((rung, _most(occupancy, rung)) for rung in rungs(occupancy)),
    )


def choose_ccx(
    occupancy: Occupancy, cpu: MilliCpu, taste: Taste, memory_fits: Callable[[Iterable[int]], bool]
) -> SharedChoice | None:
    """One CCX, or None."""
    return _rung(occupancy, PoolRung.CCX, cpu, taste, memory_fits, None)


def widened(
    occupancy: Occupancy, choice: SharedChoice, limit: MilliCpu | None, burst: BurstLevel
) -> SharedChoice:
    """The pools of a container that may use more than it asks for: as far as its limit needs and `burst` allows."""
    cpu = sum(share for _, share in choice.parts)
    kinds = {BurstLevel.CCX: (), BurstLevel.NUMA: (PoolKind.NUMA,)}.get(
        burst, (PoolKind.NUMA, PoolKind.SOCKET, PoolKind.MACHINE)
    )
    wide = choice
    for pool in sorted(occupancy.tree.pools, key=lambda pool: (len(pool.cpus), pool.index)):
        size = _size(occupancy, wide)
        if limit is not None and size >= limit:
            break
        fits = pool.kind in kinds and all(part.cpus <= pool.cpus for part, _ in wide.parts)
        if fits and occupancy.size[pool.index] > size:
            rung = next(rung for rung, kind in _SINGLE.items() if kind is pool.kind)
            wide = msgspec.structs.replace(choice, rung=rung, parts=((pool, cpu),))
    return wide


def _size(occupancy: Occupancy, choice: SharedChoice) -> MilliCpu:
    return sum(occupancy.size[pool.index] for pool, _ in choice.parts)


def _climb(
    occupancy: Occupancy,
    cpu: MilliCpu,
    taste: Taste,
    memory_fits: Callable[[Iterable[int]], bool],
    within: frozenset[int] | None,
) -> SharedChoice | None:
    passed: list[tuple[PoolRung, MilliCpu]] = []
    for rung in rungs(occupancy):
        found = _rung(occupancy, rung, cpu, taste, memory_fits, within)
        if found is not None:
            return msgspec.structs.replace(found, passed=tuple(passed))
        passed.append((rung, _most(occupancy, rung)))
    return None


def _rung(
    occupancy: Occupancy,
    rung: PoolRung,
    cpu: MilliCpu,
    taste: Taste,
    memory_fits: Callable[[Iterable[int]], bool],
    within: frozenset[int] | None,
) -> SharedChoice | None:
    best: tuple[tuple[int, ...], tuple[CpuPool, ...]] | None = None
    candidates = 0
    for pools in _candidates(occupancy, rung, cpu, within):
        candidates += 1
        key = _key(occupancy, pools, cpu, taste, memory_fits)
        if best is None or key < best[0]:
            best = key, pools
    if best is None:
        return None
    free = sum(occupancy.free[pool.index] for pool in best[1])
    parts, left = [], cpu
    for pool in best[1]:
        share = min(left, occupancy.free[pool.index])
        parts.append((pool, share))
        left -= share
    return SharedChoice(rung=rung, parts=tuple(parts), candidates=candidates, left=free - cpu)


def _candidates(
    occupancy: Occupancy, rung: PoolRung, cpu: MilliCpu, within: frozenset[int] | None
) -> Iterator[tuple[CpuPool, ...]]:
    """The pools, or pairs of them, of a rung with room for the request."""
    tree, free = occupancy.tree, occupancy.free
    if rung in _SINGLE:
        for pool in tree.kind(_SINGLE[rung]):
            if free[pool.index] >= cpu and (within is None or pool.nodes <= within):
                yield (pool,)
        return
    firsts = [pool for pool in tree.kind(PoolKind.NUMA) if free[pool.index] > 0]
    if free[tree.machine.index] < cpu:
        return
    if rung is PoolRung.NUMA_CCX:
        seconds = [pool for pool in tree.kind(PoolKind.CCX) if free[pool.index] > 0]
    else:
        seconds = firsts
    for first in firsts:
        if within is not None and not first.nodes <= within:
            continue
        least = cpu - free[first.index]
        for second in seconds:
            if free[second.index] < least or second.nodes <= first.nodes:
                continue
            if rung is PoolRung.NUMA_NUMA and within is None and second.index < first.index:
                continue
            if _together(occupancy, first, second) >= cpu:
                yield first, second


def _together(occupancy: Occupancy, first: CpuPool, second: CpuPool) -> MilliCpu:
    """What two pools hold at once: no more than any pool that both lie in."""
    holders = set(occupancy.tree.holders[first.index]) & set(occupancy.tree.holders[second.index])
    both = occupancy.free[first.index] + occupancy.free[second.index]
    return min(both, *(occupancy.free[holder] for holder in holders)) if holders else both


def _key(
    occupancy: Occupancy,
    pools: tuple[CpuPool, ...],
    cpu: MilliCpu,
    taste: Taste,
    memory_fits: Callable[[Iterable[int]], bool],
) -> tuple[int, ...]:
    tree = occupancy.tree
    nodes = frozenset(node for pool in pools for node in pool.nodes)
    from_devices = (
        max(min(tree.distance(node, other) for other in taste.beside) for node in nodes)
        if taste.beside
        else 0
    )
    far = sum(pool.cpus.isdisjoint(taste.near) for pool in pools) if taste.near else 0
    home = _home(occupancy, taste) if taste.near else nodes
    from_near = max(min(tree.distance(node, other) for other in home) for node in nodes) if taste.near else 0
    apart = 0
    if len(pools) > 1:
        apart = min(tree.distance(one, other) for one in pools[0].nodes for other in pools[1].nodes)
    left = sum(occupancy.free[pool.index] for pool in pools) - cpu
    load = sum(occupancy.load[pool.index] for pool in pools)
    around = _around(tree, pools)
    # The fewest sockets, and those that no container uses yet stay whole for one that needs all of them.
    begun = [sum(occupancy.is_unused(pool) for pool in some) for some in around]
    rooms = [sum(occupancy.free[pool.index] for pool in some) for some in reversed(around)]
    return (
        not memory_fits(nodes),
        from_devices,
        far,
        from_near,
        apart,
        len(around[0]),
        *([0, 0] if taste.spread else begun),
        *([-room for room in (left, *rooms)] if taste.spread else (left, *rooms)),
        load,
        *(pool.index for pool in pools),
    )


def _around(tree: PoolTree, pools: tuple[CpuPool, ...]) -> tuple[list[CpuPool], list[CpuPool]]:
    """The sockets and the NUMA nodes that pools lie in, or are; where NUMA nodes hold sockets, those first."""
    indexes = {index for pool in pools for index in (pool.index, *tree.holders[pool.index])}
    found = {
        kind: [tree.pools[index] for index in sorted(indexes) if tree.pools[index].kind is kind]
        for kind in PoolKind
    }
    kinds = (PoolKind.NUMA, PoolKind.SOCKET) if tree.sockets_in_nodes else (PoolKind.SOCKET, PoolKind.NUMA)
    return found[kinds[0]], found[kinds[1]]


def _home(occupancy: Occupancy, taste: Taste) -> frozenset[int]:
    near = [cell.node for cell in occupancy.tree.cells if cell.mask & taste.near.mask]
    return frozenset(near) or frozenset(node.id for node in occupancy.tree.topology.nodes)


def _most(occupancy: Occupancy, rung: PoolRung) -> MilliCpu:
    """The most that a rung can hold."""
    if rung in _SINGLE:
        return max(0, occupancy.free_in(_SINGLE[rung]))
    best = 0
    firsts = occupancy.tree.kind(PoolKind.NUMA)
    seconds = occupancy.tree.kind(PoolKind.CCX) if rung is PoolRung.NUMA_CCX else firsts
    for first in firsts:
        most = max(
            (_together(occupancy, first, second) for second in seconds if not second.nodes <= first.nodes),
            default=0,
        )
        best = max(best, most)
    return best
