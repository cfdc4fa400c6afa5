"""The kernel shows each topology as it was ordered: what later tests conclude from it is about such hardware."""

import re
from pathlib import Path

import pytest

from colocate.host.cpu_topology import read_topology
from tests.vm.topology import TOPOLOGIES, Topology

pytestmark = pytest.mark.vm(*TOPOLOGIES)

CPUS = Path("/sys/devices/system/cpu")
NODES = Path("/sys/devices/system/node")


def ids(text: str) -> frozenset[int]:
    """Of a list as the kernel prints it: 0-3,8."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return frozenset(number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1))


def read(path: Path) -> frozenset[int]:
    return ids(path.read_text())


def test_every_cpu_is_online(topology: Topology) -> None:
    assert read(CPUS / "online") == frozenset(range(topology.cpus))


def test_a_node_has_its_cpus_and_the_pool_has_none(topology: Topology) -> None:
    shown = {node: read(NODES / f"node{node}" / "cpulist") for node in range(topology.nodes + 1)}
    assert shown == {node: topology.cpus_of_node(node) for node in range(topology.nodes + 1)}


def test_cpus_of_a_ccx_share_an_l3_cache(topology: Topology) -> None:
    shown = {read(CPUS / f"cpu{cpu}/cache/index3/shared_cpu_list") for cpu in range(topology.cpus)}
    assert shown == {topology.cpus_of_ccx(ccx) for ccx in range(topology.ccxs)}


def test_threads_of_a_core_know_each_other(topology: Topology) -> None:
    for cpu in range(topology.cpus):
        assert read(CPUS / f"cpu{cpu}/topology/thread_siblings_list") == topology.cpus_of_core(cpu)


def test_sockets_are_told_apart(topology: Topology) -> None:
    for node in range(topology.nodes):
        for cpu in topology.cpus_of_node(node):
            package = int((CPUS / f"cpu{cpu}/topology/physical_package_id").read_text())
            assert package == topology.socket_of(node)


def test_distances_are_those_ordered(topology: Topology) -> None:
    every = range(topology.nodes + 1)
    shown = [[int(n) for n in (NODES / f"node{one}/distance").read_text().split()] for one in every]
    assert shown == [[topology.distance(one, other) for other in every] for one in every]


def test_the_pool_is_memory_that_came_after_the_boot(topology: Topology) -> None:
    assert read(NODES / "online") == frozenset(range(topology.nodes + 1))
    assert read(NODES / "has_memory") == frozenset(range(topology.nodes + 1))
    total = re.search(r"MemTotal: +(\d+) kB", (NODES / f"node{topology.pool}" / "meminfo").read_text())
    assert total
    assert int(total[1]) == topology.pool_mib * 1024
    # Memory of the boot is never the pool's: it was added by the kmem driver, in blocks that can be moved out.
    assert "System RAM (kmem)" in Path("/proc/iomem").read_text()
    assert "Movable" in zones_with_memory(topology.pool)


def zones_with_memory(node: int) -> set[str]:
    zones = re.findall(
        rf"Node {node}, zone +(\w+)\n.*?managed +(\d+)", Path("/proc/zoneinfo").read_text(), re.DOTALL
    )
    return {name for name, managed in zones if int(managed)}


def test_the_pool_is_a_slower_tier(topology: Topology) -> None:
    tiers = {
        path.name: read(path / "nodelist")
        for path in Path("/sys/devices/virtual/memory_tiering").glob("memory_tier*")
    }
    assert frozenset({topology.pool}) in tiers.values(), tiers
    slow = next(
        int(name.removeprefix("memory_tier")) for name, nodes in tiers.items() if topology.pool in nodes
    )
    assert all(
        int(name.removeprefix("memory_tier")) < slow
        for name, nodes in tiers.items()
        if topology.pool not in nodes
    )


def test_all_of_it_is_read_as_one_topology(topology: Topology) -> None:
    found = read_topology()
    assert {frozenset(cpus) for cpus in found.l3s().values()} == {
        topology.cpus_of_ccx(ccx) for ccx in range(topology.ccxs)
    }
    assert {frozenset(cpus) for cpus in found.cores().values()} == {
        topology.cpus_of_core(cpu) for cpu in range(topology.cpus)
    }
    assert [frozenset(node.cpus) for node in found.nodes] == [
        topology.cpus_of_node(node) for node in range(topology.nodes + 1)
    ]
    assert found.doubts == ()
