"""kill -9 of the agent at every side effect on cgroup v2 with a far NUMA node, in the middle of a debt.

A life has three phases: blocks are held to; online work grows until memory was reclaimed, memory.high set and pages
moved far; it goes and all returns. One life is lived to its end, and every side effect that it had is a place to be
killed at: the first of each phase in one life, the second in the next, and so on. A successor must find the same ids,
holders, limits and debt, and go on to the same end of the phase and of the life.
"""

import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec
import pytest

from colocate.host.cgroups import Naming
from colocate.host.demotion import KernelDemotion
from colocate.host.memory_limits import GroupLimits, read_high_mark, read_limits, set_limits
from colocate.memory.settings import Deadlines, MemorySettings, Rung, height
from colocate.memory.state import MemoryState
from tests.support import components
from tests.support.memory_probe import oom_kills
from tests.support.real_pods import MIB, Eater, RealPods, real_pods
from tests.vm.dying_agents import Agent
from tests.vm.nodes import BATCH, BLOCKS, IDS, SETTINGS, WEB, Node, far_bytes, state_store

pytestmark = [pytest.mark.vm("mini"), pytest.mark.timeout(600)]

EVERY_LIFE = {
    *("file.written", "file.replaced", "memory.published"),
    *("cgroup.memory.max", "cgroup.memory.swap.max", "cgroup.memory.reclaim"),
    *("cgroup.marked", "cgroup.memory.high", "pages.moved", "cgroup.unmarked"),
}
"""Side effects without which a life has not come down the ladder and up again."""
BY_DEMOTION = {"demotion.switched", "cgroup.memory.reclaim", "pages.moved"}
"""And without which memory was not demoted, nor moved back; the rest is as in any life."""

QUICK = msgspec.structs.replace(
    SETTINGS,
    block_size=8 * MIB,
    deadlines=Deadlines(withdraw=0, reclaim=0, throttle=0, far=0),
    without=(Rung.EVICT, Rung.RECREATE),
    cool_down=0.0,
    undo_pause=0.0,
    reclaim_pressure=100.0,
)
"""A rung a turn, both ways. No pod is evicted, so a debt lasts as long as online work does."""
SYSTEM = 261 * MIB
FOR_PODS = 100 * MIB
"""What the node has then beyond the system, the kubelet's threshold and the margin."""
HELD = GroupLimits(memory=BLOCKS * QUICK.block_size, swap=0)
"""The limits of a colocated pod that has all that its blocks stand for."""
MOST_TURNS = 10
"""Of one phase."""
IN_DEBT = 1
"""The phase."""


class Life:
    """A colocated and an online process, and the agents that see them, one after another."""

    def __init__(
        self,
        pods: RealPods,
        batch: Eater,
        web: Eater,
        folder: Path,
        settings: MemorySettings = QUICK,
        cache: int = 12 * MIB,
    ) -> None:
        """The colocated process has so much page cache, which a kernel may drop before it moves anything else."""
        self.pods = pods
        self.batch = batch
        self.web = web
        self.folder = folder
        self.settings = settings
        self.cache = cache
        self.group = pods.create(BATCH)
        self.phases = (
            (self._begins, self._is_held),
            (self._online_work_grows, self._is_down_the_ladder),
            (self._online_work_goes, self._is_returned),
        )
        self.died_at: list[str] = []
        self._agents = 0
        self._offered = 0

    async def live(self, crash_at: int = 0) -> None:
        """To the end; where `crash_at` is given, an agent dies at that side effect of each phase that has so many."""
        async with AsyncExitStack() as agents:
            agent = await agents.enter_async_context(self._agent(crash_at, self._log(0)))
            for phase, (change, has_come_about) in enumerate(self.phases):
                if phase:
                    agent.count_anew(crash_at, self._log(phase))
                await change()
                if await _turns(agent, has_come_about):
                    continue
                assert agent.exit_code == -signal.SIGKILL
                self.died_at.append(self.points(phase)[-1])
                stored = state_store(self.folder).load()
                agent = await agents.enter_async_context(self._agent())
                now = await agent.turn()
                assert now is not None
                self._check_same(phase, stored, now)
                assert has_come_about(now) or await _turns(agent, has_come_about)

    def points(self, phase: int) -> list[str]:
        """The side effects of a phase, up to its end or to a death."""
        return [line.split(maxsplit=1)[1] for line in self._log(phase).read_text().splitlines()]

    def _log(self, phase: int) -> Path:
        return self.folder.with_name(f"{self.folder.name}-{phase}.log")

    def _agent(self, crash_at: int = 0, log: Path | None = None) -> Agent:
        self._agents += 1
        return Agent(
            partial(Node, self.pods, self.folder, self.settings, SYSTEM), self._agents * 1000.0, crash_at, log
        )

    async def _begins(self) -> None:
        await self.web.free()
        await self.batch.free()
        set_limits(self.group, GroupLimits())
        await self.batch.bulk(24 * MIB)
        if self.cache:
            await self.batch.read(next((components.FOLDER / "vm").glob("vmlinux-*")), self.cache)

    def _is_held(self, state: MemoryState) -> bool:
        self._offered = len(state.blocks.healthy())
        return self._offered > BLOCKS and read_limits(self.group) == HELD

    async def _online_work_grows(self) -> None:
        used = sum(self.pods.read(uid).usage for uid in (BATCH, WEB))
        await self.web.bulk(FOR_PODS - used + 32 * MIB)

    def _is_down_the_ladder(self, state: MemoryState) -> bool:
        return (
            state.debt is not None
            and state.ladder.rung is Rung.FAR
            and read_limits(self.group).high is not None
            and far_bytes(self.batch) >= 8 * MIB
        )

    async def _online_work_goes(self) -> None:
        await self.web.free()

    def _is_returned(self, state: MemoryState) -> bool:
        return (
            state.debt is None
            and state.ladder.rung is None
            and not state.ladder.has_done_something
            and len(state.blocks.healthy()) >= self._offered - QUICK.hysteresis
            and state.blocks.healthy() >= set(IDS)
            and read_limits(self.group) == HELD
            and read_high_mark(self.group.folder) is None
            and far_bytes(self.batch) < 2 * MIB
            and not KernelDemotion().enabled
            and not state.ladder.demotion_is_ours
        )

    def _check_same(self, phase: int, stored: MemoryState, now: MemoryState) -> None:
        """What a successor has after its first turn, against what was stored."""
        assert now.holders == {BATCH: IDS}
        assert {block.id for block in now.blocks.listed} >= set(IDS)
        limits = read_limits(self.group)
        assert msgspec.structs.replace(limits, high=None) == HELD
        assert limits.high is None or read_high_mark(self.group.folder) is not None
        if phase != IN_DEBT:
            assert now.debt is None
            return
        assert now.debt is not None
        assert now.blocks.healthy() <= set(IDS), "nothing is offered in debt"
        assert height(now.ladder.rung) >= height(stored.ladder.rung)
        if stored.debt is not None:
            assert now.debt.since == stored.debt.since
            paid = stored.debt.bytes - now.debt.bytes
            assert -4 * MIB < paid < far_bytes(self.batch) + 4 * MIB, "no other than pages that are far"
        for uid, throttled in stored.ladder.throttled.items():
            assert now.ladder.throttled[uid].before == throttled.before
        for uid, moved in stored.ladder.moved.items():
            assert now.ladder.moved[uid].before == moved.before


async def _turns(agent: Agent, has_come_about: Callable[[MemoryState], bool]) -> bool:
    """Until it has; False where the agent dies before."""
    left = MOST_TURNS
    while (state := await agent.turn()) is not None:
        left -= 1
        if has_come_about(state):
            return True
        assert left, f"{has_come_about.__name__} does not come about: {state.ladder}, {state.debt}"
    return False


async def test_an_agent_killed_at_any_side_effect_is_followed_by_one_that_goes_on(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with real_pods(Naming.SYSTEMD) as pods:
        groups = pods.create(BATCH), pods.create(WEB)
        batch, web = await pods.run(BATCH), await pods.run(WEB)
        whole = Life(pods, batch, web, tmp_path / "whole")
        await whole.live()
        reached = [whole.points(phase) for phase in range(len(whole.phases))]
        kinds = set().union(*reached)
        assert kinds >= EVERY_LIFE
        died_at: list[str] = []
        for crash_at in range(1, max(map(len, reached)) + 1):
            life = Life(pods, batch, web, tmp_path / str(crash_at))
            try:
                await life.live(crash_at)
            except BaseException as error:
                error.add_note(f"killed at side effect {crash_at} of each phase: {life.died_at}")
                raise
            died_at += life.died_at
        assert set(died_at) >= kinds
        assert [oom_kills(group) for group in groups] == [0, 0]
    record_property("deaths", len(died_at))
    record_property("crash points", sorted(set(died_at)))


async def test_an_agent_killed_while_memory_is_demoted_is_followed_by_one_that_puts_the_switch_back(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Only the side effects from the switch on are places to die: the others are those of any life."""
    settings = msgspec.structs.replace(QUICK, demotion=True)
    async with real_pods(Naming.SYSTEMD) as pods:
        groups = pods.create(BATCH), pods.create(WEB)
        batch, web = await pods.run(BATCH), await pods.run(WEB)
        whole = Life(pods, batch, web, tmp_path / "whole", settings, cache=0)
        await whole.live()
        in_debt, calm = whole.points(IN_DEBT), whole.points(IN_DEBT + 1)
        assert {*in_debt, *calm} >= BY_DEMOTION
        # Its state is stored by the two side effects before.
        first = in_debt.index("demotion.switched") + 1 - 2
        last = max(len(in_debt), calm.index("demotion.switched") + 1 if "demotion.switched" in calm else 0)
        died_at: list[str] = []
        for crash_at in range(first, last + 1):
            life = Life(pods, batch, web, tmp_path / str(crash_at), settings, cache=0)
            try:
                await life.live(crash_at)
            except BaseException as error:
                error.add_note(f"killed at side effect {crash_at} of each phase: {life.died_at}")
                raise
            died_at += life.died_at
        assert "demotion.switched" in died_at
        assert [oom_kills(group) for group in groups] == [0, 0]
    record_property("deaths", len(died_at))
    record_property("crash points", sorted(set(died_at)))
