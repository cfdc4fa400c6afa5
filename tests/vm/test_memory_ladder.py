"""The memory part on cgroup v2 with a far NUMA node: online work grows, a colocated process goes down the ladder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from colocate.host import memory_group, page_migration
from colocate.host.memory_limits import read_limits
from colocate.memory.actions import PodAction, ReturnPages, Throttle
from colocate.memory.state import MemoryState
from tests.support import components
from tests.support.memory_probe import oom_kills
from tests.support.real_pods import MIB, Eater
from tests.vm.nodes import BATCH, BLOCK, BLOCKS, WEB, Node, far_bytes, far_node, running_node

pytestmark = [pytest.mark.vm("mini", "epyc"), pytest.mark.timeout(300)]

DEEDS = ["cgroup.memory.reclaim", "cgroup.memory.high", "pages.moved", "evicted"]
"""What each rung does to a pod, lowest first."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as made:
        yield made


@pytest.fixture
def done(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done to pods, in this order; each deed once."""
    deeds = node.client.told

    def reached(point: str) -> None:
        if point in DEEDS and point not in deeds:
            deeds.append(point)

    monkeypatch.setattr(memory_group, "reached", reached)
    monkeypatch.setattr(page_migration, "reached", reached)
    return deeds


def big_file() -> Path:
    """Of some 60 MiB, on the file system of the machine outside, whose cache the kernel can drop."""
    return next((components.FOLDER / "vm").glob("vmlinux-*"))


async def until_done(node: Node, done: list[str], count: int) -> None:
    """Turns, until so many kinds of deeds are done: the lowest, and no other."""
    for _ in range(6):
        if len(done) < count:
            await node.turn()
    assert done == DEEDS[:count]


async def until_hardly_due(node: Node) -> None:
    """Turns, until what is due is within the noise of a kernel: one may take what the last has missed."""
    for _ in range(4):
        decision = await node.turn()
        if decision.balance.due < 8 * MIB:
            return
    assert decision.balance.due < 8 * MIB


async def down_to_memory_high(node: Node, done: list[str], then: int) -> tuple[Eater, Eater]:
    """Online work grows a little, which page cache pays; then so much more that the rest of the cache cannot."""
    batch, web = await node.side_by_side(anon=50 * MIB, cache=big_file())
    group = node.pods.create(BATCH)
    cache = node.pods.read(BATCH).file
    assert cache > 55 * MIB
    slack = (await node.turn()).balance.slack

    await web.bulk(slack + 19 * MIB)
    pressed = await node.turns(3)
    assert not pressed[0].offered, "withdrawn within one refresh"
    assert done == DEEDS[:1]
    assert node.pods.read(BATCH).file <= cache - 12 * MIB, "the kernel has dropped it"
    await until_hardly_due(node)
    assert done == DEEDS[:1]
    assert read_limits(group).high is None
    assert read_limits(group).memory == BLOCKS * BLOCK

    await web.bulk(node.pods.read(BATCH).file + then)
    await until_done(node, done, 2)
    assert read_limits(group).high is not None
    assert node.pods.read(BATCH).file < 24 * MIB, (
        "memory.high has taken the cache, but for what a program needs"
    )
    assert far_bytes(batch) == 0
    return batch, web


async def test_rungs_in_order_pages_on_the_far_node_and_everything_back_when_online_work_goes(
    node: Node, done: list[str]
) -> None:
    batch, web = await down_to_memory_high(node, done, then=50 * MIB)
    await until_done(node, done, 3)
    assert far_bytes(batch) >= 16 * MIB, "seen in numa_maps"
    await until_hardly_due(node)
    assert oom_kills(node.pods.create(WEB)) == 0

    await web.free()
    calm = await node.turns(10, seconds=30)
    kinds = [type(action) for decision in calm for action in decision.plan.actions]
    assert ReturnPages in kinds
    assert far_bytes(batch) < 2 * MIB
    assert read_limits(node.pods.create(BATCH)).high is None
    assert read_limits(node.pods.create(BATCH)).memory == BLOCKS * BLOCK
    assert calm[-1].state.ladder.rung is None
    assert calm[-1].offered > 0
    assert done == DEEDS[:3]
    await batch.anon(MIB)


@pytest.mark.vm("mini")
async def test_with_the_far_node_almost_full_eviction_comes_last_and_blocks_return(
    node: Node, done: list[str]
) -> None:
    before = (await node.turn()).offered
    batch, web = await down_to_memory_high(node, done, then=90 * MIB)
    filler, far = await node.pods.run_outside(), far_node()
    reserve = far.total // 20
    await filler.bound(far.free - reserve - 28 * MIB, far.id)
    await until_done(node, done, 3)
    assert far_bytes(batch) >= 16 * MIB, "as much as there is room for"
    assert reserve - 8 * MIB <= far_node().free <= reserve + 16 * MIB
    await until_done(node, done, 4)
    assert node.client.evicted == [BATCH]
    assert oom_kills(node.pods.create(WEB)) == 0

    await web.free()
    calm = await node.turns(6, seconds=30)
    assert calm[-1].state.debt is None
    assert calm[-1].state.ladder.rung is None
    assert not calm[-1].held
    assert calm[-1].offered >= before
    await web.anon(MIB)
    await filler.anon(MIB)


@pytest.mark.vm("mini")
async def test_a_process_that_exceeds_its_blocks_is_stopped_by_its_own_group_alone(node: Node) -> None:
    batch, web = await node.side_by_side(anon=20 * MIB)
    await web.bulk(64 * MIB)
    before = node.pods.read(WEB)
    with pytest.raises(ProcessLookupError):
        await batch.bulk(BLOCKS * BLOCK)
    assert oom_kills(node.pods.create(BATCH)) == 1
    after = node.pods.read(WEB)
    assert oom_kills(node.pods.create(WEB)) == 0
    assert (after.limit, after.high, after.anon) == (None, None, before.anon)
    for decision in await node.turns(2):
        assert not [action for action in decision.plan.actions if isinstance(action, PodAction)]
        assert decision.state.ladder.rung is None
    await web.anon(MIB)


async def test_a_throttle_that_the_state_has_forgotten_is_found_on_the_pod_and_taken_away_by_off(
    node: Node,
) -> None:
    _, web = await node.side_by_side(anon=50 * MIB)
    await web.bulk((await node.turn()).balance.slack + 60 * MIB)
    while not any(isinstance(action, Throttle) for action in (await node.turn()).plan.actions):
        pass
    assert read_limits(node.pods.create(BATCH)).high is not None
    node.part._state = MemoryState()
    node.part.switch(True)
    await node.turns(3)
    after = read_limits(node.pods.create(BATCH))
    assert (after.high, after.memory) == (None, None)
    assert node.part.report.restored
