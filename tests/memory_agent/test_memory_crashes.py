"""kill -9 of the memory part at every side effect: its successor finds the same ids, holders, limits and debt.

The side effects of a whole life (blocks offered, a pod held and reclaimed from, colocation off and on, a pod
evicted and another created elsewhere) are counted by `colocate.crashpoints`. The process is killed at the first of
them, at the second, and so on until a life passes without a death.
"""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from colocate.memory.agent.objects import MAY_MOVE
from colocate.model.pod import Phase
from tests.memory_agent.agent_process import Process
from tests.memory_agent.driving import BLOCK, MIB
from tests.memory_agent.eating import Eater
from tests.memory_agent.lab import MemoryLab, memory_lab
from tests.memory_agent.small_machine import SYSTEM
from tests.support.lives import Lives, Violations
from tests.support.waiting import until

STRIDE = 8
"""The deaths are dealt out to so many tests, which run side by side."""

EVERY_LIFE = {
    *("socket.serve", "socket.served", "socket.remove", "socket.removed"),
    *("register.call", "register.answered", "list.send", "list.sent", "memory.published"),
    *("prefer.answer", "allocate.answer", "prestart.answer"),
    *("file.written", "file.replaced", "file.removed"),
    *("cgroup.memory.limit_in_bytes", "cluster.create", "cluster.create.done"),
}
"""Side effects that every life has, on cgroup v1; kernels with swap accounting have one more."""


async def live_a_life(lab: MemoryLab, agent: Process) -> None:
    """Every side effect that a memory part has, in order; returns early where it dies."""

    async def reach(holds: Callable[[], bool], what: str) -> bool:
        await until(lambda: agent.dead or holds(), what)
        return not agent.dead

    if (
        not await agent.hears("ok")
        or not await agent.tell("turn")
        or not await reach(lambda: len(lab.healthy()) >= 8, "blocks")
    ):
        return
    batch = Eater(lab, "batch", 4)
    mover = Eater(lab, "mover", 4, annotations={MAY_MOVE: "true"})
    if not await reach(lambda: "ready" in lab.said("batch") and "ready" in lab.said("mover"), "both pods"):
        return
    await batch.anon(4 * MIB)
    await batch.cache(36 * MIB)
    await mover.anon(40 * MIB)
    reclaim, leave = SYSTEM + 150 * MIB, SYSTEM + 230 * MIB
    for words, times in (
        ("turn", 1),
        (f"system {reclaim}", 1),
        ("turn", 2),
        (f"system {SYSTEM}", 1),
        ("turn", 4),
        ("off", 1),
        ("turn", 2),
        ("on", 1),
        ("turn", 2),
        (f"system {leave}", 1),
    ):
        if not await agent.tell(words, times):
            return
    for _ in range(12):
        if not await agent.tell("turn"):
            return
        if moved(lab):
            break
        await asyncio.sleep(0.05)
    assert moved(lab), "mover is created again"
    await agent.end()


def moved(lab: MemoryLab) -> bool:
    """Whether the pod that may move has been created again."""
    pod = lab.pod("mover")
    return pod is not None and "affinity" in pod["spec"]


async def put_right(lab: MemoryLab) -> None:
    """A successor on a calm node: all must come to be as if nothing had happened."""
    held = lab.held()
    off = (lab.root / "state" / "memory-off").exists()
    async with Process(lab, life=2) as successor:
        assert await successor.hears("ok")
        for _ in range(12):
            assert await successor.tell("turn")
            await asyncio.sleep(0.02)
        state = await successor.state()
        running = {uid: ids for uid, ids in lab.held().items() if uid in lab.cluster.kubelet.records}
        assert {uid: set(ids) for uid, ids in state.holders.items()} == running
        assert all(held.get(uid, ids) == ids for uid, ids in running.items()), "the same ids"
        assert state.ladder.rung is None
        assert state.debt is None
        for name in ("batch", "mover"):
            if lab.phase(name) == Phase.RUNNING:
                assert lab.limit(name) == (None if off else 4 * BLOCK)
        assert not list((lab.root / "state").glob("memory-recreate-*"))
        if off:
            assert not lab.healthy()
        else:
            await until(lambda: set(lab.healthy()) == set(state.blocks.healthy()), "no stale list")
        assert await successor.end() == 0


@pytest.mark.parametrize("start", range(STRIDE))
async def test_a_memory_part_killed_at_any_side_effect_is_put_right_by_its_successor(
    start: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    violations = Violations(monkeypatch)
    lives = Lives(start, STRIDE, tmp_path)
    for crash_at, log in lives:
        async with memory_lab() as lab:
            async with Process(lab, 1, crash_at, log) as agent:
                await live_a_life(lab, agent)
                if not agent.dead:
                    raise AssertionError(f"the agent neither lived nor died:\n{lab.log()}")
                survived = agent.exit_code == 0
            if not survived:
                assert agent.exit_code == -signal.SIGKILL, lab.log()
                there = lab.pod("mover") is not None
                await put_right(lab)
                assert not there or lab.pod("mover") is not None, "no pod is lost on its way"
            assert not lab.cluster.kubelet.panics
        assert not violations.found, f"killed at {log.read_text().splitlines()[-1]}"
        lives.over(log, survived=survived)
    lives.tell(record_property)
    assert lives.points >= EVERY_LIFE
