"""Plans of moves: shared containers to better pools that got free, and whole CCXs out of half-used ones.

Plans are data; `CpuAllocator.apply` carries one out. Exclusive containers never move: their work is on those CPUs.
"""

import msgspec

from colocate.cpus.allocator import CpuAllocator
from colocate.cpus.assignment import CpuAssignment, CpuMode, CpuMove, CpuRefused, MemoryShare, MilliCpu
from colocate.cpus.explanation import cpus_text
from colocate.cpus.pools import CpuPool, PoolKind
from colocate.cpus.shared import PoolRung, rungs
from colocate.model.cpuset import CpuSet


class Fragmentation(msgspec.Struct, frozen=True, kw_only=True):
    """How well requests of the size of a CCX fit now, and what would make more of them fit."""

    ccx_sizes: dict[int, int]
    """How many CCXs there are by the CPUs in them that containers may have."""
    whole: tuple[str, ...]
    """The CCXs that are free as a whole: so many requests of their size fit now."""
    largest: dict[str, MilliCpu]
    """By kind of pool, the most that one can still hold."""
    moves: tuple[CpuMove, ...]
    """What would free more CCXs, in this order."""
    after: tuple[str, ...]
    """The CCXs that are free as a whole after the moves."""


def rebalance_plan(allocator: CpuAllocator) -> tuple[CpuMove, ...]:
    """Moves of shared containers to pools that are better than theirs: a smaller rung, a nearer pair, enough room."""
    trial = allocator.copy()
    moves = []
    for key, old in list(trial.assignments.items()):
        if old.mode is not CpuMode.SHARED:
            continue
        before = trial.cpus_of(old)
        rank = _rank(trial, old)
        trial.release(key)
        try:
            new = trial.assign(old.request).assignment
        except CpuRefused:
            new = None
        if new is not None and new.mode is CpuMode.SHARED and _rank(trial, new) < rank:
            new = msgspec.structs.replace(new, ended=old.ended)
            why = f"{new.rung[0].upper()}{new.rung[1:]} has room now; it was on {old.rung}."
            move = CpuMove(key=key, before=before, after=trial.cpus_of(new), assignment=new, why=why)
            moves.append(move)
        else:
            new = old
        trial.put(new)
    return tuple(moves)


def fragmentation(allocator: CpuAllocator) -> Fragmentation:
    """What is whole, what is not, and which moves of shared containers would help."""
    now = allocator.occupancy()
    sizes: dict[int, int] = {}
    for pool in allocator.tree.kind(PoolKind.CCX):
        size = len(pool.cpus & allocator.sets.ordinary)
        sizes[size] = sizes.get(size, 0) + 1
    trial = allocator.copy()
    moves: list[CpuMove] = []
    emptied: set[str] = set()
    filled: set[str] = set()
    occupied = sorted(allocator.tree.kind(PoolKind.CCX), key=lambda pool: (now.load[pool.index], pool.index))
    for pool in occupied:
        # A moved container stays: a CCX that took one in is not emptied.
        if now.load[pool.index] and pool.name not in filled:
            freed = _emptied(trial, pool, emptied)
            if freed:
                moves += freed
                emptied.add(pool.name)
                filled |= {move.assignment.parts[0].pool for move in freed}
    return Fragmentation(
        ccx_sizes=dict(sorted(sizes.items())),
        whole=whole_ccxs(allocator),
        largest={str(kind): max(0, now.free_in(kind)) for kind in PoolKind},
        moves=tuple(moves),
        after=whole_ccxs(trial),
    )


def _rank(allocator: CpuAllocator, each: CpuAssignment) -> tuple[int, int, int]:
    """The smaller, the better a container sits."""
    order = rungs(allocator.occupancy())
    pools = [allocator.tree.by_name[share.pool] for share in each.parts]
    apart = 0
    if len(pools) > 1:
        pairs = [(one, other) for one in pools[0].nodes for other in pools[1].nodes]
        apart = min(allocator.tree.distance(one, other) for one, other in pairs)
    return each.short, order.index(PoolRung(each.rung)), apart


def whole_ccxs(allocator: CpuAllocator) -> tuple[str, ...]:
    """The CCXs of which all CPUs that containers may have can be had at once.

    A NUMA node or socket may be asked for by containers that are on no CCX of it in particular: then not all are.
    """
    now = allocator.occupancy()
    left = [size - load for size, load in zip(now.size, now.load, strict=True)]
    whole = []
    for pool in allocator.tree.kind(PoolKind.CCX):
        size = len(pool.cpus & allocator.sets.ordinary) * 1000
        places = (pool.index, *allocator.tree.holders[pool.index])
        if size and all(left[place] >= size for place in places):
            whole.append(pool.name)
            for place in places:
                left[place] -= size
    return tuple(whole)


def _emptied(trial: CpuAllocator, pool: CpuPool, never: set[str]) -> list[CpuMove]:
    """Moves of all containers of a CCX to others that are in use already; nothing where that cannot be."""
    if not (pool.cpus & trial.occupancy().exclusive).isdisjoint(trial.sets.ordinary):
        return []
    here = [
        each
        for each in trial.assignments.values()
        if each.mode is CpuMode.SHARED and [share.pool for share in each.parts] == [pool.name]
    ]
    load = sum(each.request.cpu for each in here)
    if not here or load != trial.occupancy().load[pool.index]:
        return []
    moves: list[CpuMove] = []
    attempt = trial.copy()
    for each in sorted(here, key=lambda each: (-each.request.cpu, each.key)):
        target = _other_ccx(attempt, each, {pool.name, *never})
        if target is None:
            return []
        share = msgspec.structs.replace(each.parts[0], pool=target.name, cpus=target.cpus)
        why = f"{target.title} has room for its {cpus_text(each.request.cpu)}, and {pool.title} gets free."
        amount = sum(memory.memory for memory in each.memory)
        memory = (MemoryShare(min(target.nodes), amount),) if each.memory else ()
        new = msgspec.structs.replace(each, parts=(share,), memory=memory, reasons=(f"It was moved: {why}",))
        before: CpuSet = attempt.cpus_of(each)
        attempt.put(new)
        moves.append(
            CpuMove(key=each.key, before=before, after=attempt.cpus_of(new), assignment=new, why=why)
        )
    trial.apply(moves)
    return moves


def _other_ccx(allocator: CpuAllocator, each: CpuAssignment, never: set[str]) -> CpuPool | None:
    """The CCX in use, near first, that a container fits into best."""
    now = allocator.occupancy()
    home = allocator.tree.by_name[each.parts[0].pool]
    memory = sum(share.memory for share in each.memory)
    fitting = [
        pool
        for pool in allocator.tree.kind(PoolKind.CCX)
        if pool.name not in never
        and now.free[pool.index] >= each.request.cpu
        and now.free[pool.index] < len(pool.cpus & allocator.sets.ordinary) * 1000
        and (pool.nodes == home.nodes or not memory or now.memory_fits(pool.nodes, memory))
    ]

    def key(pool: CpuPool) -> tuple[int, int, int]:
        apart = min(allocator.tree.distance(one, other) for one in home.nodes for other in pool.nodes)
        return apart, now.free[pool.index], pool.index

    return min(fitting, key=key, default=None)
