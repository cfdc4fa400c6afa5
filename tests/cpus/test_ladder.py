"""The ladder of seed 002, for every size from 1 to 128 CPUs, on the Hygon machine and its generated twin.

    if n <= cap(ccx)            -> ccx
    elif n <= cap(numa)         -> numa
    elif n <= cap(numa)+cap(ccx)-> numa + ccx
    elif n <= 2 * cap(numa)     -> numa + numa
    else                        -> socket, or the whole machine

What a part can hold is what is free there.
"""

import functools
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.cpus import CpuAllocator, CpuMode, PoolKind, PoolRung
from colocate.host.cpu_topology import read_topology
from colocate.model.cpu_shapes import HYGON, SHAPES, CpuShape, machine
from colocate.model.cpu_topology import CpuTopology, NumaNode
from colocate.model.cpuset import CpuSet
from tests.cpus.asking import guaranteed, half_filled, shared, taken, wishing
from tests.support import dumps

MACHINES = ["twin", "dump"]


@functools.cache
def twin() -> CpuTopology:
    return machine(HYGON)


@functools.cache
def _dumped(path: str) -> CpuTopology:
    return read_topology(dumps.dump(path))


def hygon(which: str) -> CpuTopology:
    return twin() if which == "twin" else _dumped(dumps.HYGON)


def pseudo_code(n: int, ccx: int = 8, numa: int = 16, socket: int = 64) -> PoolRung:
    """The manual's own, on an empty machine."""
    if n <= ccx:
        return PoolRung.CCX
    if n <= numa:
        return PoolRung.NUMA
    if n <= numa + ccx:
        return PoolRung.NUMA_CCX
    if n <= 2 * numa:
        return PoolRung.NUMA_NUMA
    return PoolRung.SOCKET if n <= socket else PoolRung.MACHINE


def first_rung(topology: CpuTopology, free: CpuSet, n: float) -> PoolRung | None:
    """The pseudo-code with what is free in the place of sizes, by a count of its own."""
    ccxs = [(len(cpus & free), cpus) for cpus in topology.l3s().values()]
    numas = [(len(node.cpus & free), node.cpus) for node in topology.nodes if node.cpus]
    pairs = {
        PoolRung.CCX: max(count for count, _ in ccxs),
        PoolRung.NUMA: max(count for count, _ in numas),
        PoolRung.NUMA_CCX: max(
            one + other for one, numa in numas for other, ccx in ccxs if one and other and not ccx <= numa
        ),
        PoolRung.NUMA_NUMA: max(
            one + other for (one, _), (other, _) in itertools.combinations(numas, 2) if one and other
        ),
        PoolRung.SOCKET: max(len(cpus & free) for cpus in topology.sockets().values()),
        PoolRung.MACHINE: len(free),
    }
    return next((rung for rung, most in pairs.items() if n <= most), None)


@pytest.mark.parametrize("which", MACHINES)
def test_every_size_on_an_empty_machine(which: str) -> None:
    topology = hygon(which)
    sizes = {
        PoolRung.CCX: 8,
        PoolRung.NUMA: 16,
        PoolRung.NUMA_CCX: 24,
        PoolRung.NUMA_NUMA: 32,
        PoolRung.SOCKET: 64,
    }
    for n in range(1, 129):
        change = CpuAllocator(topology).assign(shared(n))
        assert change.assignment is not None
        rung = pseudo_code(n)
        assert (n, change.assignment.rung) == (n, rung)
        assert len(change.cpus) == sizes.get(rung, 128), n
        assert first_rung(topology, topology.online, n) is rung


@pytest.mark.parametrize("which", MACHINES)
@pytest.mark.parametrize("half", ["sockets", "NUMA nodes", "CCXs", "cores", "threads"])
def test_every_size_on_a_half_filled_machine(which: str, half: str) -> None:
    topology = hygon(which)
    gone = half_filled(topology)[half]
    assert len(gone) == 64
    free = topology.online - gone
    for n in range(1, 129):
        allocator = CpuAllocator(topology)
        taken(allocator, gone)
        change = allocator.assign(shared(n))
        assert change.assignment is not None
        rung = first_rung(topology, free, n)
        if rung is None:
            assert change.assignment.short == (n - 64) * 1000
            assert change.cpus == free
            continue
        assert (n, change.assignment.rung) == (n, rung)
        assert change.assignment.short == 0
        assert change.cpus <= free
        assert len(change.cpus) >= n


@pytest.mark.parametrize("which", MACHINES)
def test_every_size_beside_shared_containers(which: str) -> None:
    """Half of every CCX is asked for by containers that share it: its CPUs stay, its room does not."""
    topology = hygon(which)
    for n in range(1, 65):
        allocator = CpuAllocator(topology)
        for ccx in range(16):
            allocator.assign(shared(4, pod=f"filler-{ccx}", wishes=wishing(spread=True)))
        change = allocator.assign(shared(n))
        assert change.assignment is not None
        assert change.assignment.rung == pseudo_code(n, ccx=4, numa=8, socket=32), n


@pytest.mark.parametrize("which", MACHINES)
def test_guaranteed_containers_get_as_many_cpus_of_their_own_on_the_same_rungs(which: str) -> None:
    topology = hygon(which)
    most = {
        PoolRung.CCX: (1, 1),
        PoolRung.NUMA: (1, 2),
        PoolRung.NUMA_CCX: (2, 3),
        PoolRung.NUMA_NUMA: (2, 4),
    }
    for n in range(1, 128):
        change = CpuAllocator(topology).assign(guaranteed(n))
        assert change.assignment is not None
        assert change.assignment.mode is CpuMode.EXCLUSIVE
        assert len(change.cpus) == n
        nodes = {cpu.node for cpu in topology.cpus if cpu.id in change.cpus}
        l3s = {cpu.l3 for cpu in topology.cpus if cpu.id in change.cpus}
        if limits := most.get(pseudo_code(n)):
            assert (len(nodes), len(l3s)) <= limits, n
            assert len(l3s) == -(-n // 8)


@given(st.integers(1, 128_000))
def test_fractions_climb_by_their_own_size(milli: int) -> None:
    change = CpuAllocator(twin()).assign(shared(milli / 1000))
    assert change.assignment is not None
    assert change.assignment.rung == pseudo_code(-(-milli // 1000))


def test_the_second_part_is_the_nearest() -> None:
    topology = twin()
    allocator = CpuAllocator(topology)
    # Of socket 0 only node 0 is free, so its second part is across: node 6 is nearer (22) than 4, 5 and 7 (28).
    taken(allocator, CpuSet.parse("8-31,72-95"))
    change = allocator.assign(shared(20))
    assert change.mems == (4, 5)  # a pair within socket 1 is nearer still (16)
    allocator = CpuAllocator(topology)
    others = [topology.node(number).cpus for number in (1, 2, 3, 4, 5)]
    taken(allocator, CpuSet.of(cpu for cpus in others for cpu in cpus) | CpuSet.parse("56-59,120-123"))
    change = allocator.assign(shared(20, beside=(0,)))
    assert change.assignment is not None
    assert change.assignment.rung == PoolRung.NUMA_CCX
    assert change.mems == (0, 6)


def test_where_numa_nodes_hold_sockets_the_socket_comes_first() -> None:
    cpus, nodes = machine(CpuShape(sockets=4, ccx_cores=(4,))), []
    for number, sockets in enumerate(((0, 1), (2, 3))):
        own = CpuSet.of(cpu.id for cpu in cpus.cpus if cpu.socket in sockets)
        nodes.append((number, own))
    topology = _with_nodes(cpus, nodes)
    rungs = {}
    for n in range(1, 33):
        change = CpuAllocator(topology).assign(shared(n))
        assert change.assignment is not None
        rungs[n] = change.assignment.rung
        assert len(change.cpus) == (8 if n <= 8 else 16 if n <= 16 else 24 if n <= 24 else 32)
    assert rungs[16] == PoolRung.NUMA
    assert rungs[24] == PoolRung.NUMA_CCX


def test_an_l3_wider_than_a_numa_node_is_cut_to_it() -> None:
    topology = machine(SHAPES["xeon-snc"])
    assert {len(cpus) for cpus in topology.l3s().values()} == {80}
    change = CpuAllocator(topology).assign(shared(30))
    assert change.cpus == topology.nodes[0].cpus
    assert {len(pool.cpus) for pool in CpuAllocator(topology).tree.kind(PoolKind.CCX)} == {40}


def test_without_l3_the_numa_node_is_the_ccx() -> None:
    topology = machine(SHAPES["arm"])
    change = CpuAllocator(topology).assign(shared(5))
    assert change.assignment is not None
    assert change.assignment.rung == PoolRung.CCX
    assert change.cpus == topology.nodes[0].cpus


def _with_nodes(topology: CpuTopology, nodes: list[tuple[int, CpuSet]]) -> CpuTopology:
    homes = {cpu: number for number, own in nodes for cpu in own}
    return msgspec.structs.replace(
        topology,
        cpus=tuple(msgspec.structs.replace(cpu, node=homes[cpu.id]) for cpu in topology.cpus),
        nodes=tuple(NumaNode(id=number, cpus=own) for number, own in nodes),
    )
