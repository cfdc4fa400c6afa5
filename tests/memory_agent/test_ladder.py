"""Real processes on this machine: online work grows, a colocated pod gives back by the ladder, and all returns.

The node is 1 GiB, 600 MiB of it the system's; 100 MiB are the kubelet's threshold and 102 MiB the margin. A pod
that uses 110 MiB of its 8 blocks of 16 MiB beside it leaves about 110 MiB before online work needs them.
"""

import msgspec

from colocate.host.memory_files import StatParser
from colocate.lab.cluster import MACHINE
from colocate.memory.actions import Evict, PodAction, Reclaim
from colocate.memory.settings import Rung
from colocate.model.pod import Phase
from tests.memory_agent.driving import BLOCK, MIB, SETTINGS, Driven, driven
from tests.memory_agent.eating import Eater
from tests.memory_agent.lab import MemoryLab
from tests.support.memory_probe import oom_kills
from tests.support.waiting import until


async def side_by_side(node: Driven) -> Eater:
    """A colocated pod that uses most of its blocks, half of it page cache; the online one, which uses nothing yet."""
    await node.listed(await node.turn())
    colocated, online = Eater(node.lab, "batch", 8), Eater(node.lab, "web", 0)
    await colocated.ready()
    await online.ready()
    await node.until_known("batch", "web")
    await colocated.anon(50 * MIB)
    await colocated.cache(60 * MIB)
    return online


async def test_a_pod_is_reclaimed_from_then_evicted_in_that_order_and_online_work_is_never_killed() -> None:
    async with driven() as node:
        lab = node.lab
        online = await side_by_side(node)
        assert lab.limit("batch") == 8 * BLOCK
        calm = await node.turn()
        assert not calm.balance.debt
        assert calm.offered > 0

        await online.anon(130 * MIB)
        pressed = await node.turn()
        assert pressed.balance.due > 0
        assert pressed.offered == 0
        await node.listed(pressed)

        actions = await node.turns(2)
        assert {type(action) for action in actions} == {Reclaim}
        assert (await node.turn()).balance.used < pressed.balance.used - 4 * MIB
        assert lab.limit("batch") == 8 * BLOCK, "no limit lies in wait for it"
        assert lab.phase("batch") == Phase.RUNNING

        await online.anon(120 * MIB)
        actions = await node.turns(12)
        assert any(isinstance(action, Evict) for action in actions)
        await lab.until_gone("batch")
        assert oom_kills(lab.group("web")) == 0
        assert lab.phase("web") == Phase.RUNNING
        told = {"ColocationMemoryReclaimed", "ColocationMemoryEvicted"}
        await until(lambda: told <= {reason for reason, _ in lab.events("batch")}, "an event for each rung")
        ladder = {"ColocationMemoryWithdrawn", "ColocationMemoryLadder"}
        await until(lambda: ladder <= {reason for reason, _ in lab.events(MACHINE)}, "events on the node")

        await online.free()
        await node.turns(12)
        back = await node.turn()
        assert back.state.ladder.rung is None
        assert not back.balance.debt
        assert back.offered > 0
        await node.listed(back)


async def test_when_online_work_goes_in_time_the_limit_and_the_blocks_return() -> None:
    async with driven() as node:
        lab = node.lab
        online = await side_by_side(node)
        before = (await node.turn()).offered
        await online.anon(130 * MIB)
        assert any(isinstance(action, Reclaim) for action in await node.turns(3))
        await online.free()
        await node.turns(20)
        last = await node.turn()
        assert lab.limit("batch") == 8 * BLOCK
        assert last.state.ladder.rung is None
        assert last.offered == before
        assert lab.phase("batch") == Phase.RUNNING


async def test_without_its_rung_no_pod_is_reclaimed_from_and_the_next_rung_comes_at_once() -> None:
    """So the tests above would fail, were a rung left out."""
    async with driven(msgspec.structs.replace(SETTINGS, without=(Rung.RECLAIM,))) as node:
        online = await side_by_side(node)
        await node.turn()
        await online.anon(130 * MIB)
        actions = await node.turns(3)
        assert not any(isinstance(action, Reclaim) for action in actions)
        assert any(isinstance(action, Evict) for action in actions)


async def test_a_process_that_exceeds_its_blocks_is_stopped_by_its_own_group_alone() -> None:
    async with driven() as node:
        lab = node.lab
        await node.listed(await node.turn())
        greedy = Eater(lab, "greedy", 2, restartPolicy="Never")
        modest, online = Eater(lab, "modest", 2), Eater(lab, "online", 0)
        for pod in (greedy, modest, online):
            await pod.ready()
        await node.until_known("greedy", "modest", "online")
        await modest.anon(16 * MIB)
        await online.anon(16 * MIB)
        before = [touched(lab, name) for name in ("modest", "online")]
        greedy.begin(f"anon {64 * MIB} -")
        await until(lambda: lab.phase("greedy") == Phase.FAILED, "greedy to be stopped")
        assert not [action for action in await node.turns(2) if isinstance(action, PodAction)]
        assert [touched(lab, name) for name in ("modest", "online")] == before
        assert (lab.limit("modest"), lab.limit("online")) == (2 * BLOCK, None)


def touched(lab: MemoryLab, name: str) -> tuple[object, ...]:
    """All that a change to a pod would show in: deaths, limit, processes, starts and anonymous memory."""
    group = lab.group(name)
    processes = [file.read_text() for file in sorted(group.folder.glob("**/cgroup.procs"))]
    anonymous = StatParser(group.version).parse(group.read("memory.stat")).anon
    return oom_kills(group), lab.limit(name), processes, lab.said(name).count("ready"), anonymous
