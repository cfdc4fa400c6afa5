"""CPUs of one's own: against kubelet's answers, against all possible answers, and on odd availability."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from colocate.cpus import PoolTree, Taste, find_exclusive, grow_exclusive, spread_of
from colocate.model.cpu_shapes import HYGON, CpuShape, machine
from colocate.model.cpuset import EMPTY, CpuSet
from colocate.replay.cpu_histories import CpuRow, topology_of

CONFORMANCE = json.loads((Path(__file__).parents[1] / "data/conformance/cpu_assignment.json").read_bytes())


def recorded(rows: list[dict[str, int]]) -> PoolTree:
    """A machine of the recorded table."""
    return PoolTree(topology_of(msgspec.convert(rows, list[CpuRow])))


def test_never_worse_than_the_better_of_kubelets_two_answers(
    record_property: Callable[[str, object], None],
) -> None:
    trees = {machine["name"]: recorded(machine["cpus"]) for machine in CONFORMANCE["topologies"]}
    table: dict[str, Counter[str]] = {}
    worse = []
    for case in CONFORMANCE["cases"]:
        tree, available = trees[case["topology"]], CpuSet.parse(case["available"])
        found = find_exclusive(tree, available, case["request"])
        answers = [case[name] for name in ("kubelet_packed", "kubelet_uncore") if case[name] is not None]
        if not answers:
            assert found is None, case["id"]
            table.setdefault(case["topology"], Counter())["refused by both"] += 1
            continue
        assert found is not None, case["id"]
        assert found <= available, case["id"]
        assert len(found) == case["request"], case["id"]
        ours = spread_of(tree, found)
        theirs = min(spread_of(tree, CpuSet.parse(answer)) for answer in answers)
        outcome = "better" if ours < theirs else "same" if ours == theirs else "worse"
        table.setdefault(case["topology"], Counter())[outcome] += 1
        if outcome == "worse":
            worse.append((case["id"], ours, theirs))
    outcomes = ("better", "same", "worse", "refused by both")
    rows = [*table.items(), ("all", sum(table.values(), Counter()))]
    record_property(
        "printed",
        ["exclusive CPUs beside kubelet's better answer, by sockets, NUMA nodes, L3s and split cores:"]
        + [f"  {name:<26}" + "".join(f"{row[key]:>5} {key}" for key in outcomes) for name, row in rows],
    )
    assert worse == []
    assert sum(row["better"] for row in table.values()) > 0


SMALL = [
    CpuShape(sockets=2, nodes_per_socket=2, ccx_cores=(1, 1)),
    CpuShape(sockets=2, ccx_cores=(2, 1, 2)),
    CpuShape(nodes_per_socket=2, ccx_cores=(2, 2)),
    CpuShape(ccx_cores=(2, 2, 1), threads=4),
    CpuShape(sockets=2, ccx_cores=(3, 3), single_thread_cores=2),
    CpuShape(ccx_cores=(2, 2, 2, 2)),
    CpuShape(sockets=2, nodes_per_socket=2, ccx_cores=(2,), l3_per_socket=True),
]
TREES = [PoolTree(machine(shape)) for shape in SMALL]


@settings(max_examples=150)
@given(st.sampled_from(TREES), st.data())
def test_no_other_set_of_cpus_is_better(tree: PoolTree, data: st.DataObject) -> None:
    cpus = list(tree.machine.cpus)
    available = data.draw(st.lists(st.sampled_from(cpus), min_size=1, max_size=14, unique=True))
    counts = [n for n in range(1, len(available) + 1) if math.comb(len(available), n) <= 2500]
    count = data.draw(st.sampled_from(counts))
    found = find_exclusive(tree, CpuSet.of(available), count)
    assert found is not None
    assert found <= CpuSet.of(available)
    best = min(spread_of(tree, CpuSet.of(some)) for some in itertools.combinations(available, count))
    assert spread_of(tree, found) == best


@given(st.data())
def test_a_cpu_that_is_not_available_is_never_given_on_half_free_cores(data: st.DataObject) -> None:
    tree = PoolTree(machine(CpuShape(ccx_cores=(16,), single_thread_cores=8)))
    available = CpuSet.of(data.draw(st.lists(st.sampled_from(list(tree.machine.cpus)), unique=True)))
    count = data.draw(st.integers(1, 24))
    found = find_exclusive(tree, available, count)
    if count > len(available):
        assert found is None
    else:
        assert found is not None
        assert found <= available
        assert len(found) == count


def test_limits_are_kept_at_every_level() -> None:
    tree = PoolTree(machine(HYGON))
    limits = {
        tree.by_name["numa 0"].index: 3,
        tree.by_name["ccx 2"].index: 1,
        tree.by_name["socket 1"].index: 0,
    }
    found = find_exclusive(tree, tree.machine.cpus, 44, limits)
    assert found is not None
    assert len(found & tree.by_name["numa 0"].cpus) <= 3
    assert len(found & tree.by_name["ccx 2"].cpus) <= 1
    assert found <= tree.by_name["socket 0"].cpus
    assert find_exclusive(tree, tree.machine.cpus, 45, limits) is None


def test_what_fits_best_is_taken_so_that_large_rooms_stay() -> None:
    tree = PoolTree(machine(HYGON))
    available = tree.machine.cpus - CpuSet.parse("20-21,84-85")
    assert str(find_exclusive(tree, available, 4)) == "22-23,86-87"
    spread = find_exclusive(tree, available, 4, taste=Taste(spread=True))
    assert spread is not None
    assert spread.isdisjoint(tree.by_name["numa 2"].cpus)


def test_whole_cores_are_given_where_they_do_not_cost_an_l3() -> None:
    tree = PoolTree(machine(HYGON))
    # CCX 0 has four half-free cores; CCX 1 has two whole ones.
    available = CpuSet.parse("0-3,4-5,68-69")
    assert str(find_exclusive(tree, available, 4)) == "4-5,68-69"
    # Five do not fit into CCX 1: one L3 with five CPUs would go before whole cores on two.
    assert spread_of(tree, find_exclusive(tree, available, 5) or EMPTY)[2] == 2
    assert spread_of(tree, find_exclusive(tree, available | CpuSet.parse("64"), 5) or EMPTY) == (1, 1, 1, 3)


def test_near_nodes_are_taken_together() -> None:
    tree = PoolTree(machine(HYGON))
    available = tree.by_name["numa 0"].cpus | tree.by_name["numa 4"].cpus | tree.by_name["numa 6"].cpus
    # Two of one socket before the near pair across (0 and 6, 22).
    found = find_exclusive(tree, available, 32)
    assert found == tree.by_name["numa 4"].cpus | tree.by_name["numa 6"].cpus
    available -= tree.by_name["ccx 8"].cpus
    found = find_exclusive(tree, available, 30)
    assert found is not None
    assert {node for node in (0, 4, 6) if found & tree.by_name[f"numa {node}"].cpus} == {0, 6}


def test_growing_keeps_what_there_is_and_stays_close() -> None:
    tree = PoolTree(machine(HYGON))
    kept = CpuSet.parse("16,17,80")
    free = tree.machine.cpus - kept
    assert str(grow_exclusive(tree, kept, free, 1)) == "16-17,80-81"
    eight = grow_exclusive(tree, kept, free, 5)
    assert eight == tree.by_name["ccx 4"].cpus
    sixteen = grow_exclusive(tree, kept, free, 13)
    assert sixteen == tree.by_name["numa 2"].cpus
    more = grow_exclusive(tree, kept, free, 21)
    assert more is not None
    assert kept <= more
    assert spread_of(tree, more) == (1, 2, 3, 0)
    assert grow_exclusive(tree, kept, EMPTY, 1) is None


def test_a_large_machine_with_more_sets_of_nodes_than_can_be_compared() -> None:
    tree = PoolTree(machine(CpuShape(sockets=8, nodes_per_socket=4, ccx_cores=(4,) * 8)))
    available = CpuSet.of(cpu for cpu in tree.machine.cpus if cpu * 7919 % 10 == 0 or cpu % 64 == 1)
    for count in (1, 8, 20, 64, 150, len(available)):
        found = find_exclusive(tree, available, count)
        assert found is not None
        assert len(found) == count
        assert found <= available
    assert find_exclusive(tree, available, len(available) + 1) is None
