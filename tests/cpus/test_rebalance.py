"""Plans: better pools for shared containers when they get free, and whole CCXs out of half-used ones."""

from colocate.cpus import CpuAllocator, CpuMode, PoolRung, fragmentation, rebalance_plan
from colocate.model.cpu_shapes import HYGON, CpuShape, machine
from colocate.model.cpuset import CpuSet
from tests.cpus.asking import guaranteed, shared, taken, wishing


def test_a_container_moves_to_a_smaller_rung_that_got_free() -> None:
    allocator = CpuAllocator(machine(CpuShape(ccx_cores=(4, 4))))
    taken(allocator, CpuSet.parse("0-2,4-6"))
    placed = allocator.assign(shared(6, pod="wide"))
    assert placed.assignment is not None
    assert placed.assignment.rung == PoolRung.NUMA
    assert rebalance_plan(allocator) == ()
    allocator.release(("taken", "taken"))
    before = allocator.state()
    plan = rebalance_plan(allocator)
    assert allocator.state() == before
    assert [(move.key, len(move.before), len(move.after)) for move in plan] == [(("wide", "main"), 16, 8)]
    change = allocator.apply(plan)
    assert {update.key for update in change.updates} == {("wide", "main")}
    assert allocator.assignments["wide", "main"].rung == PoolRung.CCX
    assert rebalance_plan(allocator) == ()


def test_a_container_that_was_short_is_the_first_to_move_and_exclusive_ones_never_do() -> None:
    allocator = CpuAllocator(machine(HYGON))
    taken(allocator, allocator.tree.machine.cpus - CpuSet.parse("0-3"))
    allocator.assign(guaranteed(2, pod="alone"))
    allocator.assign(shared(6, pod="short"))
    allocator.release(("taken", "taken"))
    plan = rebalance_plan(allocator)
    assert [move.key[0] for move in plan] == ["short"]
    allocator.apply(plan)
    assert allocator.assignments["short", "main"].short == 0
    assert allocator.assignments["alone", "main"].mode is CpuMode.EXCLUSIVE


def test_a_nearer_second_part_is_worth_a_move() -> None:
    allocator = CpuAllocator(machine(HYGON))
    taken(allocator, CpuSet.parse("8-31,72-95,32-47,96-111,56-63,120-127"))
    far = allocator.assign(shared(20, pod="far"))
    assert far.mems == (0, 6)
    allocator.release(("taken", "taken"))
    (move,) = rebalance_plan(allocator)
    assert {share.node for share in move.assignment.memory} == {0, 1}


def test_how_many_requests_of_a_ccx_fit_and_which_moves_make_more_fit() -> None:
    allocator = CpuAllocator(machine(HYGON))
    for place in range(16):
        allocator.assign(shared(3, pod=f"pod-{place:02}", wishes=wishing(spread=True)))
    report = fragmentation(allocator)
    assert report.ccx_sizes == {8: 16}
    assert report.whole == ()
    assert report.largest == {"ccx": 5000, "numa": 10_000, "socket": 40_000, "machine": 80_000}
    assert len(report.after) == 8
    assert len(report.moves) == 8
    allocator.apply(report.moves)
    assert fragmentation(allocator).whole == report.after
    assert min(allocator.occupancy().free) >= 0
    for ccx in report.after[:7]:
        assert len(allocator.assign(guaranteed(8, pod=ccx)).cpus) == 8


def test_what_a_socket_is_asked_for_is_not_whole_in_its_ccxs() -> None:
    allocator = CpuAllocator(machine(HYGON))
    allocator.assign(shared(48))
    assert len(fragmentation(allocator).whole) == 2 + 8


def test_exclusive_cpus_are_not_moved_out_of_a_ccx() -> None:
    allocator = CpuAllocator(machine(CpuShape(ccx_cores=(4, 4))))
    allocator.assign(guaranteed(2, pod="a", wishes=wishing(spread=True)))
    allocator.assign(guaranteed(2, pod="b", wishes=wishing(spread=True)))
    report = fragmentation(allocator)
    assert report.whole == report.after == ()
    assert report.moves == ()
