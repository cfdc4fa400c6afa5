"""What QEMU is told adds up to the topology, whatever its shape."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vm.topology import CPU, HERE, TOPOLOGIES, Topology

few = st.integers(1, 4)
topologies = st.builds(
    Topology,
    name=st.just("any"),
    sockets=few,
    nodes_per_socket=few,
    ccxs_per_node=few,
    cores_per_ccx=few,
    threads_per_core=st.integers(1, 2),
    pool_mib=st.sampled_from([512, 1024]),
)


def values(topology: Topology, option: str, start: str = "") -> list[str]:
    """The values of an option that is given many times."""
    arguments = topology.qemu_arguments()
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    return [value for name, value in pairs if name == option and value.startswith(start)]


@given(topologies)
def test_ccxs_and_nodes_divide_the_cpus(topology: Topology) -> None:
    every = set(range(topology.cpus))
    for groups in (
        [topology.cpus_of_ccx(ccx) for ccx in range(topology.ccxs)],
        [topology.cpus_of_node(node) for node in range(topology.pool + 1)],
        list({topology.cpus_of_core(cpu) for cpu in every}),
    ):
        assert set().union(*groups) == every
        assert sum(map(len, groups)) == topology.cpus


@given(topologies)
def test_qemu_gets_as_many_cpus_as_its_levels_multiply_to(topology: Topology) -> None:
    (shape,) = values(topology, "-smp")
    cpus, *levels = (int(number) for number in re.findall(r"\d+", shape))
    product = 1
    for level in levels:
        product *= level
    assert cpus == product == topology.cpus


@given(topologies)
def test_every_ccx_is_placed_once_and_every_node_has_memory(topology: Topology) -> None:
    placed = values(topology, "-numa", "cpu,")
    assert len(set(placed)) == topology.ccxs
    assert len(values(topology, "-numa", "node,")) == topology.nodes + 1
    sizes = [int(size) for size in re.findall(r"size=(\d+)M", " ".join(values(topology, "-object")))]
    assert values(topology, "-m") == [f"{sum(sizes)}M"]


@given(topologies, st.data())
def test_distances_are_mutual_and_least_to_oneself(topology: Topology, data: st.DataObject) -> None:
    nodes = st.integers(0, topology.pool)
    one, other = data.draw(nodes), data.draw(nodes)
    assert topology.distance(one, other) == topology.distance(other, one)
    assert (topology.distance(one, other) == HERE) == (one == other)
    assert topology.distance(one, other) <= topology.distance(0, topology.pool)


def test_the_pool_is_the_end_of_the_memory() -> None:
    # Of 2 + 0.5 GiB one lies below 4 GiB; the rest starts there, and its last half is kept from the kernel.
    assert "memmap=512M%5120M-1+0xefffffff" in TOPOLOGIES["mini"].kernel_arguments()


@pytest.mark.parametrize(
    ("name", "cpus", "nodes", "ccxs"),
    [("mini", 2, 2, 2), ("small", 4, 2, 4), ("epyc", 16, 4, 8), ("epyc-smt", 16, 4, 8)],
)
def test_the_topologies_that_tests_can_name(name: str, cpus: int, nodes: int, ccxs: int) -> None:
    topology = TOPOLOGIES[name]
    assert (topology.cpus, topology.nodes, topology.ccxs) == (cpus, nodes, ccxs)


def test_only_an_emulated_cpu_has_features_forced() -> None:
    assert CPU["kvm"] == "EPYC-Rome"
    assert "x-force-features=on" in CPU["tcg"]
