"""Adopts containers that run already and have no assignment, by the CPUs that they really have.

Whole CPUs that look like its own stay its own, a pool or a pair of pools stays its place; one that was never pinned
is placed like a new one, but never refused: it runs already.
"""

from collections.abc import Iterable, Iterator

import msgspec

from colocate.cpus.allocator import CpuAllocator
from colocate.cpus.assignment import (
    ContainerKey,
    CpuAssignment,
    CpuMode,
    CpuRefused,
    CpuRequest,
    PoolShare,
)
from colocate.cpus.exclusive import spread_of
from colocate.cpus.pools import CpuPool, PoolKind
from colocate.cpus.shared import PoolRung
from colocate.cpus.wishes import granted
from colocate.model.cpuset import CpuSet, union

_RUNGS = {
    PoolKind.CCX: PoolRung.CCX,
    PoolKind.NUMA: PoolRung.NUMA,
    PoolKind.SOCKET: PoolRung.SOCKET,
    PoolKind.MACHINE: PoolRung.MACHINE,
}


def adopt(allocator: CpuAllocator, running: Iterable[tuple[CpuRequest, CpuSet]]) -> CpuAllocator:
    """An allocator with these containers, too; empty CPUs are unknown ones. The given one is not changed."""
    found: list[CpuAssignment] = []
    fresh: list[CpuRequest] = []
    for request, cpus in running:
        guess = _guess(allocator, request, cpus)
        if guess is None:
            fresh.append(request)
        else:
            found.append(guess)
    state = allocator.state()
    state = msgspec.structs.replace(state, assignments=(*state.assignments, *found))
    adopted, _ = CpuAllocator.restored(allocator.tree.topology, allocator.settings, state)
    for request in sorted(fresh, key=lambda each: not each.is_whole):
        assign_running(adopted, request)
    return adopted


def assign_running(allocator: CpuAllocator, request: CpuRequest) -> CpuRequest:
    """CPUs for a container that runs without: a strict wish that cannot be had is left out, with a warning."""
    try:
        allocator.assign(request)
    except CpuRefused:
        request = msgspec.structs.replace(
            request,
            wishes=msgspec.structs.replace(request.wishes, strict=False),
            relaxed=True,
            warnings=(*request.warnings, "No CCX has room for it; it runs already, so it goes on elsewhere."),
        )
        allocator.assign(request)
    return request


def strict_on_several(allocator: CpuAllocator) -> tuple[ContainerKey, ...]:
    """Containers that may wish for one CCX, did so, and run on several: they ran before they could be refused."""
    found = []
    for key, each in allocator.assignments.items():
        if each.ended or not (each.request.relaxed or each.request.wishes.strict):
            continue
        wishes, _ = granted(each.request.wishes, each.request.namespace, allocator.settings)
        if not each.request.relaxed and not wishes.strict:
            continue
        cpus = each.cpus or union(allocator.tree.by_name[share.pool].cpus for share in each.parts)
        if spread_of(allocator.tree, cpus)[2] > 1:
            found.append(key)
    return tuple(found)


def _guess(allocator: CpuAllocator, request: CpuRequest, cpus: CpuSet) -> CpuAssignment | None:
    """What its CPUs make it look like; None where they say nothing."""
    tree = allocator.tree
    cpus &= tree.machine.cpus
    if not cpus or tree.machine.cpus <= cpus:
        return None
    trial = allocator.copy()
    assign_running(trial, request)
    new = trial.assignments[request.key]
    reasons = (f"It ran already when it was found, on CPUs {cpus}.",)
    if new.mode is CpuMode.EXCLUSIVE and len(cpus) * 1000 == request.cpu:
        return msgspec.structs.replace(new, cpus=cpus, memory=(), reasons=reasons)
    if new.mode is CpuMode.EXCLUSIVE:
        return None
    if new.mode is not CpuMode.SHARED:
        return new
    parts, rung = _place(allocator, request, cpus)
    return CpuAssignment(
        request=request, mode=CpuMode.SHARED, parts=parts, rung=rung, reasons=reasons, warnings=new.warnings
    )


def _place(
    allocator: CpuAllocator, request: CpuRequest, cpus: CpuSet
) -> tuple[tuple[PoolShare, ...], PoolRung]:
    """The smallest pool, or pair of pools, that it can have been put on."""
    fitting = [(pools, rung) for pools, rung in _candidates(allocator) if cpus <= _cpus(pools)]
    pools, rung = min(fitting, key=lambda each: (len(_cpus(each[0])), len(each[0])))
    ordinary = allocator.sets.ordinary
    first = min(request.cpu, len(pools[0].cpus & ordinary) * 1000) if len(pools) > 1 else request.cpu
    amounts = (first, request.cpu - first)
    return (
        tuple(PoolShare(pool.name, cpu, pool.cpus) for pool, cpu in zip(pools, amounts, strict=False)),
        rung,
    )


def _candidates(allocator: CpuAllocator) -> Iterator[tuple[tuple[CpuPool, ...], PoolRung]]:
    tree = allocator.tree
    for pool in tree.pools:
        yield (pool,), _RUNGS[pool.kind]
    nodes, ccxs = tree.kind(PoolKind.NUMA), tree.kind(PoolKind.CCX)
    for place, node in enumerate(nodes):
        for ccx in ccxs:
            if ccx.cpus.isdisjoint(node.cpus):
                yield (node, ccx), PoolRung.NUMA_CCX
        for other in nodes[place + 1 :]:
            yield (node, other), PoolRung.NUMA_NUMA


def _cpus(pools: tuple[CpuPool, ...]) -> CpuSet:
    return pools[0].cpus | pools[-1].cpus
