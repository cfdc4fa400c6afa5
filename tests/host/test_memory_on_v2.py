"""On a kernel with cgroup v2: throttling, pressure, and pages that really move between NUMA nodes."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.memory_probe import bytes_by_node, counter, oom_kills
from tests.support.real_pods import MIB, Eater, RealPods, real_pods
from tests.support.waiting import until

from colocate.clock import SystemClock
from colocate.host.cgroups import Naming
from colocate.host.memory_capabilities import memory_capabilities
from colocate.host.memory_group import MemoryGroup
from colocate.host.memory_limits import GroupLimits, mark_high, set_limits, unmark_high
from colocate.host.node_memory import read_node_memory, read_numa
from colocate.host.numa_maps import MappingKind, mapped_pages
from colocate.host.page_calls import Kernel
from colocate.host.page_migration import MoveEnd, PageMigration
from colocate.host.reclaim import ReclaimEnd, reclaim
from colocate.model.memory import Bytes, NumaMemory, OurHigh
from colocate.model.pod import QosClass

pytestmark = pytest.mark.vm("mini", here=True)

ONE, OTHER = "5b1c0001-4f0e-9d6c-aaaa-000000000001", "5b1c0002-4f0e-9d6c-aaaa-000000000002"
DEMOTION = Path("/sys/kernel/mm/numa/demotion_enabled")


@pytest.fixture
async def pods() -> AsyncIterator[RealPods]:
    async with real_pods(Naming.SYSTEMD) as made:
        if made.tree.version != 2:
            pytest.skip("this machine has cgroup v1")
        yield made


@pytest.fixture
def far() -> NumaMemory:
    """A NUMA node without CPUs."""
    nodes = [node for node in read_numa() if not node.has_cpus and node.total]
    if not nodes:
        pytest.skip("no NUMA node of this machine is memory alone")
    return nodes[0]


@pytest.fixture
def demotion() -> Iterator[None]:
    """The kernel may put cold memory on slower nodes."""
    if not DEMOTION.exists():
        pytest.skip("this kernel does not demote memory to slower NUMA nodes")
    before = DEMOTION.read_text()
    DEMOTION.write_text("1")
    yield
    DEMOTION.write_text(before)


def near() -> frozenset[int]:
    return frozenset(node.id for node in read_numa() if node.has_cpus)


def private(eater: Eater, node: int) -> Bytes:
    """How much of a process's private memory numa_maps sees on a node."""
    mappings = [each for each in mapped_pages(eater.pid) if each.kind is MappingKind.PRIVATE]
    return bytes_by_node(mappings).get(node, 0)


def migration(
    group: MemoryGroup,
    sources: frozenset[int],
    target: int,
    *,
    rate: Bytes = 1 << 34,
    at_most: Bytes | None = None,
) -> PageMigration:
    return PageMigration(
        group, sources=sources, target=target, rate=rate, clock=SystemClock(), calls=Kernel(), at_most=at_most
    )


# --- pressure and throttling ---------------------------------------------------------------------------


async def test_beyond_memory_high_a_pod_is_throttled_and_lives_and_its_pressure_tells(pods: RealPods) -> None:
    if not memory_capabilities(pods.tree, below=pods.parent).node_pressure.here:
        pytest.skip("this kernel measures no pressure")
    group = pods.create(ONE)
    eater = await pods.run(ONE)
    set_limits(group, GroupLimits(high=32 * MIB))
    assert pods.read(ONE).high == 32 * MIB
    before = pods.read(ONE).pressure
    assert before is not None
    eater.begin(f"anon {48 * MIB}")

    def throttled() -> bool:
        pressure = pods.read(ONE).pressure
        events = counter(group.read("memory.events"), "high") or 0
        return pressure is not None and events > 0 and pressure.some_total > before.some_total + 100_000

    await until(throttled, "a pod that waits for memory")
    assert oom_kills(group) == 0
    set_limits(group, GroupLimits())
    assert eater.process.stdout is not None
    assert await eater.process.stdout.readline() == b"done\n", "released, it goes on"
    assert pods.read(ONE).high is None


async def test_the_pressure_of_one_pod_is_not_that_of_another(pods: RealPods) -> None:
    if not memory_capabilities(pods.tree, below=pods.parent).node_pressure.here:
        pytest.skip("this kernel measures no pressure")
    set_limits(pods.create(ONE), GroupLimits(memory=32 * MIB, swap=0))
    pods.create(OTHER)
    greedy, calm = await pods.run(ONE), await pods.run(OTHER)
    await calm.anon(MIB)
    before = pods.read(OTHER).pressure
    with pytest.raises(ProcessLookupError):
        await greedy.anon(64 * MIB)
    after = pods.read(OTHER).pressure
    assert before is not None
    assert after is not None
    assert after.full_total == before.full_total


# --- moving pages --------------------------------------------------------------------------------------


async def test_pages_go_to_the_far_node_and_back(pods: RealPods, far: NumaMemory) -> None:
    group = pods.create(ONE)
    eater = await pods.run(ONE)
    await eater.anon(64 * MIB)
    assert private(eater, far.id) < 8 * MIB

    away = await migration(group, near(), far.id).run()
    assert away.end is MoveEnd.DONE
    assert away.moved >= 64 * MIB
    assert private(eater, far.id) >= 64 * MIB
    assert (pods.read(ONE).numa or {})[far.id] >= 64 * MIB

    home = min(near())
    back = await migration(group, frozenset({far.id}), home).run()
    assert back.moved >= 64 * MIB
    assert private(eater, far.id) == 0
    assert private(eater, home) >= 64 * MIB
    await eater.anon(MIB)


async def test_the_libraries_of_others_stay_where_they_are(pods: RealPods, far: NumaMemory) -> None:
    """This very process maps the same Python and the same libc."""
    group = pods.create(ONE)
    await pods.run(ONE)
    before = bytes_by_node(mapped_pages(1)), _libraries(far.id)
    report = await migration(group, near(), far.id).run()
    assert report.stayed > 0
    assert before == (bytes_by_node(mapped_pages(1)), _libraries(far.id))


def _libraries(node: int) -> Bytes:
    mappings = [each for each in mapped_pages(os.getpid()) if each.kind is MappingKind.FILE]
    return bytes_by_node(mappings).get(node, 0)


async def test_no_more_than_asked_for_and_no_faster(pods: RealPods, far: NumaMemory) -> None:
    group = pods.create(ONE)
    eater = await pods.run(ONE)
    await eater.anon(64 * MIB)
    clock = SystemClock()
    started = clock.monotonic()
    report = await migration(group, near(), far.id, rate=64 * MIB, at_most=32 * MIB).run()
    assert clock.monotonic() - started >= 0.3
    assert report.end is MoveEnd.ENOUGH
    assert 32 * MIB <= report.moved <= 34 * MIB
    assert private(eater, far.id) <= 36 * MIB


async def test_a_cancelled_move_says_how_far_it_came(pods: RealPods, far: NumaMemory) -> None:
    group = pods.create(ONE)
    eater = await pods.run(ONE)
    await eater.anon(64 * MIB)
    moving = migration(group, near(), far.id, rate=16 * MIB)
    running = asyncio.create_task(moving.run())
    await until(lambda: moving.report.moved >= 8 * MIB, "the first pages")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    there = private(eater, far.id)
    assert 8 * MIB <= moving.report.moved <= there + MIB
    assert there < 64 * MIB
    await eater.anon(MIB)


async def test_a_far_node_that_is_full_ends_it_and_the_process_lives(pods: RealPods, far: NumaMemory) -> None:
    room = next(node.free for node in read_numa() if node.id == far.id)
    if read_node_memory().available < room + 256 * MIB:
        pytest.skip("the machine has too little memory to fill its far node")
    group = pods.create(ONE)
    eater = await pods.run(ONE)
    await eater.bulk(room + 64 * MIB)
    report = await migration(group, near(), far.id).run()
    assert report.end is MoveEnd.NO_ROOM
    assert report.moved <= room + 16 * MIB
    assert oom_kills(group) == 0
    await eater.anon(MIB)


async def test_a_node_that_is_not_there_ends_it(pods: RealPods) -> None:
    if len(read_numa()) < 2:
        pytest.skip("this machine has one NUMA node")
    group = pods.create(ONE)
    eater = await pods.run(ONE)
    await eater.anon(8 * MIB)
    report = await migration(group, near(), 63).run()
    assert (report.end, report.moved) == (MoveEnd.NO_NODE, 0)


async def test_processes_that_end_while_their_pages_move(pods: RealPods, far: NumaMemory) -> None:
    group = pods.create(ONE)
    eaters = [await pods.run(ONE) for _ in range(3)]
    for eater in eaters:
        await eater.anon(32 * MIB)
    moving = migration(group, near(), far.id, rate=64 * MIB)
    running = asyncio.create_task(moving.run())
    await until(lambda: moving.report.moved > 0, "the first pages")
    for eater in eaters:
        eater.process.kill()
    report = await running
    assert report.end is MoveEnd.DONE
    assert report.ended >= 1


async def test_a_far_node_that_is_taken_off_is_seen(pods: RealPods, far: NumaMemory) -> None:
    blocks = sorted(Path(f"/sys/devices/system/node/node{far.id}").glob("memory*/state"))
    try:
        for block in blocks:
            try:
                block.write_text("offline")
            except OSError as error:
                pytest.skip(f"this memory cannot be taken off: {error}")
        left = {node.id: node.total for node in read_numa()}
        assert left.get(far.id, 0) == 0
        assert not memory_capabilities(pods.tree, below=pods.parent).far_nodes.here
        group = pods.create(ONE)
        eater = await pods.run(ONE)
        await eater.anon(8 * MIB)
        assert (await migration(group, near(), far.id).run()).end is MoveEnd.NO_NODE
    finally:
        for block in blocks:
            if block.read_text().strip() == "offline":
                block.write_text("online_movable")
    assert {node.id: node.total for node in read_numa()}[far.id] == far.total


async def test_reclaim_puts_cold_memory_on_the_far_node(
    pods: RealPods, far: NumaMemory, demotion: None
) -> None:
    group = pods.create(ONE)
    eater = await pods.run(ONE)
    await eater.anon(64 * MIB)
    done = await reclaim(group, 32 * MIB, step=8 * MIB)
    assert done.end is ReclaimEnd.ENOUGH
    assert private(eater, far.id) >= 24 * MIB
    await eater.anon(MIB)


async def test_all_that_a_machine_with_a_far_node_allows(pods: RealPods, far: NumaMemory) -> None:
    pods.create(ONE, QosClass.BURSTABLE)
    found = memory_capabilities(pods.tree, below=pods.parent)
    assert found.far_nodes.here
    assert f"NUMA node {far.id}" in found.far_nodes.found
    controls = found.controls
    assert (controls.cgroup, controls.writable, controls.high, controls.migrate) == (2, True, True, True)


# --- marks -----------------------------------------------------------------------------------------------


async def test_a_mark_of_our_memory_high_stays_on_the_group_and_ends_with_it(pods: RealPods) -> None:
    group = pods.create(ONE)
    mark_high(group.folder, 64 * MIB)
    assert pods.read(ONE).our_high is None, "there is no memory.high"
    set_limits(group, GroupLimits(high=32 * MIB))
    assert pods.read(ONE).our_high == OurHigh(64 * MIB)
    unmark_high(group.folder)
    assert (pods.read(ONE).high, pods.read(ONE).our_high) == (32 * MIB, None)
