"""The far NUMA node fills up or is taken off under load, and the kernel says so: the next rung comes."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from colocate.host.node_memory import read_numa
from colocate.memory.actions import MovePages
from colocate.memory.decision import MemoryDecision
from colocate.memory.settings import Rung, height
from tests.support.memory_probe import oom_kills
from tests.support.real_pods import MIB, Eater
from tests.vm.nodes import BATCH, WEB, Node, far_bytes, far_node, running_node

pytestmark = [pytest.mark.vm("mini"), pytest.mark.timeout(300)]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as made:
        yield made


async def pressed(node: Node) -> tuple[Eater, Eater]:
    """Online work wants more than half of what the colocated process has."""
    batch, web = await node.side_by_side(anon=100 * MIB)
    await web.bulk((await node.turn()).balance.slack + 60 * MIB)
    return batch, web


async def fill(node: Node) -> Eater:
    """Leave so little on the far node that 60 MiB do not fit."""
    far = far_node()
    filler = await node.pods.run_outside()
    await filler.bound(far.free - 32 * MIB, far.id)
    return filler


@contextmanager
def taken_off() -> Iterator[None]:
    """Without the far node's memory, which the kernel empties."""
    blocks = sorted(Path(f"/sys/devices/system/node/node{far_node().id}").glob("memory*/state"))
    try:
        for block in blocks:
            block.write_text("offline")
        yield
    finally:
        for block in blocks:
            if block.read_text().strip() == "offline":
                block.write_text("online_movable")


async def until_evicted(node: Node) -> list[MemoryDecision]:
    decisions: list[MemoryDecision] = []
    while not node.client.evicted and len(decisions) < 8:
        decisions.append(await node.turn())
    assert node.client.evicted == [BATCH]
    assert oom_kills(node.pods.create(WEB)) == 0
    return decisions


async def until_moved(node: Node) -> None:
    """Turns, until pages are to go."""
    for _ in range(6):
        if moves([await node.turn()]):
            return
    raise AssertionError("no pages are to go")


def sentences(decisions: list[MemoryDecision]) -> str:
    return " ".join(note for decision in decisions for note in decision.plan.notes)


def moves(decisions: list[MemoryDecision]) -> int:
    return sum(isinstance(action, MovePages) for each in decisions for action in each.plan.actions)


async def test_a_far_node_that_is_filled_between_look_and_move_ends_the_move_and_the_pod_lives_until_evicted(
    node: Node,
) -> None:
    batch, web = await pressed(node)
    node.far_was = (far_node(),)
    filler = await fill(node)
    await until_moved(node)
    assert far_bytes(batch) < 40 * MIB
    await batch.anon(4096)
    assert oom_kills(node.pods.create(BATCH)) == 0
    decisions = await until_evicted(node)
    assert "the NUMA node has no room" in sentences(decisions)
    await filler.anon(MIB)
    await web.anon(MIB)


async def test_a_far_node_that_is_taken_off_with_pages_on_it_gives_them_back_and_eviction_comes_next(
    node: Node,
) -> None:
    batch, web = await pressed(node)
    await until_moved(node)
    assert far_bytes(batch) >= 40 * MIB
    assert not (await node.turn()).balance.due > 8 * MIB, "that was enough"
    with taken_off():
        assert not any(each.total for each in read_numa() if not each.has_cpus)
        await batch.anon(4096)
        decisions = await until_evicted(node)
        assert not moves(decisions)
        assert "no far NUMA node" in decisions[-1].rungs[height(Rung.FAR)].missing
    await web.anon(MIB)
    assert any(each.total for each in read_numa() if not each.has_cpus)


async def test_a_far_node_that_is_taken_off_between_look_and_move_means_the_next_rung(node: Node) -> None:
    _, web = await pressed(node)
    node.far_was = (far_node(),)
    with taken_off():
        decisions = await until_evicted(node)
        assert moves(decisions)
        assert "the NUMA node does not exist" in sentences(decisions)
    await web.anon(MIB)
