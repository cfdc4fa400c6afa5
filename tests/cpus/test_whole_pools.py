"""Ties decide the future: CCXs, NUMA nodes and sockets that no container uses stay whole where others do as well."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colocate.cpus import (
    CpuAllocator,
    CpuPool,
    CpuSettings,
    Occupancy,
    PoolKind,
    PoolRung,
    PoolTree,
    find_exclusive,
)
from colocate.model.cpu_shapes import HYGON, CpuShape, machine
from colocate.model.cpu_topology import CpuTopology, NumaNode
from colocate.model.cpuset import CpuSet
from tests.cpus.asking import Ask, guaranteed, shared

XEON = CpuShape(sockets=2, nodes_per_socket=2, ccx_cores=(14,))
"""Four NUMA nodes of 28 CPUs."""
SINGLE = {PoolRung.CCX: PoolKind.CCX, PoolRung.NUMA: PoolKind.NUMA, PoolRung.SOCKET: PoolKind.SOCKET}


def interleaved(shape: CpuShape) -> CpuTopology:
    """Neighbouring NUMA nodes are in different sockets, as some firmware numbers them."""
    made = machine(shape)

    def socket(node: int) -> int:
        return node % shape.sockets

    def distance(one: int, other: int) -> int:
        if one == other:
            return 10
        return shape.same_socket if socket(one) == socket(other) else shape.other_socket

    ids = [node.id for node in made.nodes]
    return msgspec.structs.replace(
        made,
        cpus=tuple(msgspec.structs.replace(cpu, socket=socket(cpu.node)) for cpu in made.cpus),
        nodes=tuple(
            NumaNode(id=node.id, cpus=node.cpus, distances={other: distance(node.id, other) for other in ids})
            for node in made.nodes
        ),
    )


def begun(occupancy: Occupancy, pool: CpuPool) -> tuple[int, int]:
    """The sockets and NUMA nodes around a pool that no container uses."""
    tree = occupancy.tree
    around = [tree.pools[index] for index in (pool.index, *tree.holders[pool.index])]
    kinds = [each.kind for each in around if occupancy.load[each.index] == 0]
    return kinds.count(PoolKind.SOCKET), kinds.count(PoolKind.NUMA)


def sockets_of(topology: CpuTopology, cpus: CpuSet) -> set[int]:
    return {socket for socket, own in topology.sockets().items() if not own.isdisjoint(cpus)}


@pytest.mark.parametrize("topology", [machine(XEON), interleaved(XEON)], ids=["in order", "interleaved"])
@pytest.mark.parametrize("ask", [shared, guaranteed])
def test_a_second_container_leaves_the_other_socket_to_one_that_needs_it(
    topology: CpuTopology, ask: Ask
) -> None:
    allocator = CpuAllocator(topology)
    small, middle, large = (allocator.assign(ask(cpu)) for cpu in (8, 24, 48))
    assert sockets_of(topology, small.cpus) == sockets_of(topology, middle.cpus)
    assert len(sockets_of(topology, large.cpus)) == 1


def test_a_better_fit_is_no_reason_to_begin_another_socket() -> None:
    topology = machine(XEON)
    # Four CPUs of NUMA node 0 are reserved, and two of NUMA node 2: 24 fit that better than NUMA node 1.
    allocator = CpuAllocator(topology, CpuSettings(reserved=CpuSet.parse("0-1,56-57,28,84")))
    for cpu in (8, 24):
        assert sockets_of(topology, allocator.assign(shared(cpu)).cpus) == {0}
    assert sockets_of(topology, allocator.assign(shared(48)).cpus) == {1}


MACHINES = [
    make(shape)
    for make in (machine, interleaved)
    for shape in (
        XEON,
        CpuShape(sockets=2, nodes_per_socket=4, ccx_cores=(2, 2)),
        CpuShape(sockets=4, nodes_per_socket=2, ccx_cores=(3, 3, 3)),
        CpuShape(sockets=2, ccx_cores=(4, 4, 4)),
    )
]


@settings(max_examples=60)
@given(st.sampled_from(MACHINES), st.lists(st.integers(1, 120), min_size=1, max_size=14), st.data())
def test_no_socket_or_node_is_begun_while_others_hold_the_container_on_the_same_rung(
    topology: CpuTopology, sizes: list[int], data: st.DataObject
) -> None:
    allocator = CpuAllocator(topology)
    tree = allocator.tree
    half = len(tree.machine.cpus) * 500
    for tenths in sizes:
        if allocator.assignments and data.draw(st.integers(0, 3)) == 0:
            allocator.release(data.draw(st.sampled_from(list(allocator.assignments))))
        before = allocator.occupancy()
        placed = allocator.assign(shared(half * tenths / 120_000)).assignment
        assert placed is not None
        rung = PoolRung(placed.rung)
        if placed.short or rung not in SINGLE:
            continue
        own = tree.by_name[placed.parts[0].pool]
        others = [pool for pool in tree.kind(SINGLE[rung]) if before.free[pool.index] >= placed.request.cpu]
        assert begun(before, own) == min(begun(before, pool) for pool in others)


def test_a_pair_stays_in_a_socket_where_the_firmware_tells_no_distances() -> None:
    made = interleaved(XEON)
    nodes = tuple(NumaNode(id=node.id, cpus=node.cpus) for node in made.nodes)
    topology = msgspec.structs.replace(made, nodes=nodes)
    for cpu in (29, 40, 56):
        change = CpuAllocator(topology).assign(shared(cpu))
        assert len(sockets_of(topology, change.cpus)) == 1


def test_what_is_left_over_is_left_where_others_are_already() -> None:
    tree = PoolTree(machine(HYGON))
    whole, begun = tree.by_name["ccx 0"].cpus, tree.by_name["ccx 1"].cpus - CpuSet.parse("7,71")
    found = find_exclusive(tree, tree.machine.cpus - CpuSet.parse("7,71"), 12)
    assert found is not None
    assert whole <= found
    assert len(begun - found) == 2


SINGLE_THREADED = [
    PoolTree(machine(CpuShape(sockets=2, nodes_per_socket=2, ccx_cores=(4, 4), threads=1))),
    PoolTree(machine(CpuShape(sockets=2, ccx_cores=(3, 5, 4, 4), threads=1))),
]


@given(st.sampled_from(SINGLE_THREADED), st.data())
def test_a_whole_ccx_is_taken_whole_beside_one_that_others_use(tree: PoolTree, data: st.DataObject) -> None:
    available = CpuSet.of(
        data.draw(st.lists(st.sampled_from(list(tree.machine.cpus)), min_size=1, unique=True))
    )
    found = find_exclusive(tree, available, data.draw(st.integers(1, len(available))))
    assert found is not None
    touched = [CpuSet(cell.mask) for cell in tree.cells if cell.mask & found.mask]
    begun = [cell for cell in touched if cell <= available and not cell <= found]
    assert len(begun) <= 1
    assert not begun or all(cell <= available for cell in touched)


def test_explain_says_which_ccxs_are_whole_again_when_it_ends() -> None:
    allocator = CpuAllocator(machine(HYGON))
    request = guaranteed(20)
    allocator.assign(request)
    assert "CCX 0 and CCX 1 are its own alone, so they are whole again when it ends." in allocator.explain(
        request.key
    )
    other = shared(6)
    allocator.assign(other)
    assert any(each.startswith("It is the best fit of") for each in allocator.explain(other.key))
