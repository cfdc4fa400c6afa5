"""The faults of the allocator that seed 002 describes, each as a test that the faulty behaviour fails."""

from pathlib import Path

import msgspec
import pytest

from colocate.cpus import (
    CpuAllocator,
    CpuMode,
    CpuSettings,
    PoolKind,
    PoolRung,
    decode_state,
    encode_state,
)
from colocate.host.cpu_topology import read_topology
from colocate.model.cpu_shapes import HYGON, CpuShape, machine
from colocate.model.cpuset import CpuSet, union
from tests.cpus.asking import guaranteed, shared, wishing
from tests.support import sysfs

GIB = 1 << 30


def test_a_guaranteed_request_of_exactly_one_ccx_is_pinned_to_it() -> None:
    allocator = CpuAllocator(machine(HYGON))
    ccxs = {pool.cpus for pool in allocator.tree.kind(PoolKind.CCX)}
    for place in range(15):  # the sixteenth would leave no CPU for those that ask for none
        change = allocator.assign(guaranteed(8, pod=f"pod-{place}"))
        assert change.assignment is not None
        assert change.assignment.mode is CpuMode.EXCLUSIVE
        assert change.cpus in ccxs
        ccxs.remove(change.cpus)


def test_a_numa_and_ccx_container_keeps_its_second_part_when_others_come_and_go() -> None:
    allocator = CpuAllocator(machine(HYGON))
    split = allocator.assign(shared(20, pod="split"))
    assert len(split.cpus) == 24
    others = [shared(3, pod="a"), guaranteed(2, pod="b"), shared(17, pod="c"), guaranteed(8, pod="d")]
    for other in others:
        allocator.assign(other)
        assert allocator.cpus_of(allocator.assignments["split", "main"]) == split.cpus
    for other in others:
        allocator.release(other.key)
        assert allocator.cpus_of(allocator.assignments["split", "main"]) == split.cpus
    restarted, moves = CpuAllocator.restored(
        machine(HYGON), CpuSettings(), decode_state(encode_state(allocator.state()))
    )
    assert moves == ()
    assert restarted.cpus_of(restarted.assignments["split", "main"]) == split.cpus


@pytest.mark.parametrize("count", [17, 20, 24, 25, 32, 40, 64, 65])
def test_split_requests_keep_their_exclusivity(count: int) -> None:
    allocator = CpuAllocator(machine(HYGON))
    alone = allocator.assign(guaranteed(count, pod="alone"))
    assert len(alone.cpus) == count
    for place in range(30):
        other = allocator.assign(shared(2, pod=f"other-{place}"))
        assert other.cpus.isdisjoint(alone.cpus)


def test_split_requests_count_their_memory_once() -> None:
    allocator = CpuAllocator(machine(HYGON))
    for request in (shared(20, pod="shared", memory=40 * GIB), guaranteed(24, pod="alone", memory=50 * GIB)):
        before = sum(allocator.occupancy().memory.values())
        change = allocator.assign(request)
        assert len(change.mems) == 2
        assert sum(allocator.occupancy().memory.values()) - before == request.memory
        allocator.release(request.key)
    assert sum(allocator.occupancy().memory.values()) == 0


def test_fractions_are_split_and_do_not_overflow() -> None:
    allocator = CpuAllocator(machine(HYGON))
    split = allocator.assign(shared(16.5))
    assert split.assignment is not None
    assert split.assignment.rung == PoolRung.NUMA_CCX
    assert len(split.cpus) == 24
    socket = CpuAllocator(machine(HYGON)).assign(shared(32.5))
    assert socket.assignment is not None
    assert socket.assignment.rung == PoolRung.SOCKET
    assert len(socket.cpus) == 64


def test_fractions_never_fill_a_pool_beyond_its_size() -> None:
    allocator = CpuAllocator(machine(HYGON))
    for place in range(200):
        change = allocator.assign(shared(2.5, pod=f"pod-{place}"))
        assert change.assignment is not None
        if change.assignment.short:
            break
        assert min(allocator.occupancy().free) >= 0
    assert place == 51  # 51 × 2.5 = 127.5


def test_capacities_are_those_of_every_pool_not_of_the_first() -> None:
    # The first CCX and the first NUMA node are the smallest.
    topology = machine(CpuShape(nodes_per_socket=2, ccx_cores=(2, 4), offline=CpuSet.parse("0,12")))
    allocator = CpuAllocator(topology)
    assert [len(pool.cpus) for pool in allocator.tree.kind(PoolKind.CCX)] == [2, 8, 4, 8]
    for n, rung, size in [(8, PoolRung.CCX, 8), (12, PoolRung.NUMA, 12), (20, PoolRung.NUMA_CCX, 20)]:
        change = CpuAllocator(topology).assign(shared(n))
        assert change.assignment is not None
        assert change.assignment.rung == rung
        assert len(change.cpus) == size
    assert len(CpuAllocator(topology).assign(guaranteed(8)).cpus) == 8


def test_a_machine_without_l3_ids_starts_and_has_its_ccxs(tmp_path: Path) -> None:
    files = sysfs.files(machine(HYGON), sysfs.Told(l3_ids=False))
    topology = read_topology(sysfs.write(tmp_path, files))
    change = CpuAllocator(topology).assign(shared(8))
    assert str(change.cpus) == "0-3,64-67"


def test_a_changed_machine_or_configuration_takes_the_state_up() -> None:
    allocator = CpuAllocator(machine(HYGON))
    for place in range(6):
        allocator.assign(guaranteed(6, pod=f"alone-{place}"))
        allocator.assign(shared(5, pod=f"shared-{place}"))
    saved = decode_state(encode_state(allocator.state()))
    smaller = machine(msgspec.structs.replace(HYGON, offline=CpuSet.parse("0-7,64-71,20")))
    reserved = CpuSettings(reserved=CpuSet.parse("8,72"))
    for topology, settings in ((smaller, CpuSettings()), (machine(HYGON), reserved), (smaller, reserved)):
        restored, moves = CpuAllocator.restored(topology, settings, saved)
        assert set(restored.assignments) == set(allocator.assignments)
        assert moves
        sets = [restored.cpus_of(each) for each in restored.assignments.values()]
        assert all(sets)
        assert union(sets) <= topology.online - settings.reserved
        kept = [
            key for key, each in restored.assignments.items() if each.cpus == allocator.assignments[key].cpus
        ]
        assert set(kept) >= set(allocator.assignments) - {move.key for move in moves}


@pytest.mark.parametrize("isolated", ["", "0-7"])
def test_those_that_share_have_a_cpu_when_the_last_shared_one_goes_off(isolated: str) -> None:
    shape = CpuShape(ccx_cores=(2, 2), isolated=CpuSet.parse(isolated))
    before = CpuAllocator(machine(shape), CpuSettings(wish_namespaces=("default",)))
    wishes = wishing(isolated=bool(isolated))
    first = before.assign(guaranteed(4, pod="first", wishes=wishes))
    before.assign(guaranteed(3, pod="last", wishes=wishes))
    before.assign(shared(0, pod="idle"))
    before.assign(shared(0.5, pod="shared"))
    alone = before.occupancy().exclusive
    assert len(alone) == 7
    gone = msgspec.structs.replace(shape, offline=before.tree.machine.cpus - alone)
    after, moves = CpuAllocator.restored(machine(gone), before.settings, before.state())
    assert after.cpus_of(after.assignments["first", "main"]) == first.cpus
    rest = alone - first.cpus
    assert {
        key[0]: str(after.cpus_of(each)) for key, each in after.assignments.items() if key[0] != "first"
    } == {name: str(rest) for name in ("last", "idle", "shared")}
    assert "last" in {move.key[0] for move in moves}
    again, _ = CpuAllocator.restored(machine(gone), before.settings, after.state())
    assert again.state() == after.state()


def test_two_that_lose_a_cpu_keep_what_is_left_of_theirs() -> None:
    shape = CpuShape(ccx_cores=(4, 6), threads=1)
    allocator = CpuAllocator(machine(shape))
    first = allocator.assign(guaranteed(3, pod="first")).cpus
    second = allocator.assign(guaranteed(3, pod="second")).cpus
    assert (str(first), str(second)) == ("0-2", "4-6")
    lost = CpuSet.parse("0,3,4")
    smaller, moves = CpuAllocator.restored(
        machine(msgspec.structs.replace(shape, offline=lost)), CpuSettings(), allocator.state()
    )
    assert [move.key[0] for move in moves] == ["first", "second"]
    for key, had in (("first", first), ("second", second)):
        now = smaller.assignments[key, "main"].cpus
        assert len(now) == 3
        assert had - lost <= now
    assert smaller.assignments["first", "main"].cpus.isdisjoint(smaller.assignments["second", "main"].cpus)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 99}',
        b'{"assignments": 3}',
        b"\xff",
        b"[" * 100_000,
        b'{"handed": {"p": "x"}}',
    ],
)
def test_a_state_that_cannot_be_read_is_one_sentence(data: bytes) -> None:
    with pytest.raises(ValueError, match="state of CPUs"):
        decode_state(data)
