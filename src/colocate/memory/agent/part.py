"""The memory part of an agent. A turn collects facts, decides, stores the state and carries out the plan.

A turn starts about every `refresh` seconds, and at once when the kubelet takes blocks or a job has ended. An error
ends its turn and is logged; no block is offered until a later turn succeeds. The state is stored before anything is
done to a pod. If that fails, the turn is decided again: no block is offered or given out, and pods are touched only
in ways that can be undone without the stored state.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from colocate import telemetry
from colocate.aio import Watched, first, in_thread
from colocate.clock import Clock
from colocate.errors import ColocateError, UserError
from colocate.host.page_calls import Kernel
from colocate.kubelet.paths import KubeletPaths
from colocate.memory import (
    Action,
    ActionResult,
    MemoryDecision,
    MemoryFacts,
    MemorySettings,
    MemoryState,
    Reclaim,
    SwitchDemotion,
    blocks_for_settings,
    decide,
    limits_of,
    pod_ref,
)
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.executor import Executor
from colocate.memory.agent.machine import Machine
from colocate.memory.agent.notices import MemoryNotices
from colocate.memory.agent.observer import MemoryObserver, NodeLook
from colocate.memory.agent.plugin import MemoryPlugin
from colocate.memory.agent.pod_moves import EXPIRY, PodMoves
from colocate.memory.agent.prestart import PreStart
from colocate.memory.agent.report import MemoryReport, report
from colocate.memory.agent.store import MemoryStore
from colocate.model.memory import Bytes, PodUid
from colocate.telemetry import MEMORY_STATE_STORED, MEMORY_TURN_SECONDS, MEMORY_TURNS, Event

_SYNC_TIME = 10.0
"""Seconds that the first turn waits for the API server's list of pods."""
_LEAST_GAP = 1.0
"""Least number of seconds between two turns."""
_JITTER = 0.05
_FLUSH_TIME = 2.0


class MemoryPart:
    """Sells and takes back the memory of one node."""

    def __init__(
        self,
        settings: MemorySettings,
        *,
        store: MemoryStore,
        machine: Machine,
        cluster: ClusterView,
        paths: KubeletPaths,
        clock: Clock,
        refresh: float = 10.0,
        rate: Bytes = 256 << 20,
        move_expiry: float = EXPIRY,
        dry_run: bool = False,
        calls: Callable[[], Kernel] = Kernel,
        random: Callable[[], float] = random.random,
    ) -> None:
        """UserError where the stored state cannot be read, or another agent uses it."""
        self.settings = settings
        self.refresh = refresh
        self.dry_run = dry_run
        self._store = store
        if not dry_run:
            store.prepare()
        try:
            self._state = store.load()
            self._off = store.is_off
        except UserError:
            store.close()
            raise
        self._stored = self._state
        """The state on disk, which the next process will find."""
        self._unstored = ""
        """Why the last state could not be stored; empty where it could."""
        self._switch_unstored = ""
        """Why the switch could not be stored; empty where it could."""
        self._machine = machine
        self._cluster = cluster
        self._clock = clock
        self._random = random
        prestart = PreStart(
            paths,
            machine,
            cluster,
            clock,
            resource=settings.resource,
            block_size=settings.block_size,
            swap=settings.swap,
            state=lambda: self._state,
            is_off=lambda: self._off,
        )
        self.plugin = MemoryPlugin(lambda: self.settings, cluster, prestart, self._holders, clock)
        self._observer = MemoryObserver(machine, paths, cluster, clock, settings.resource)
        self.executor = Executor(
            machine,
            cluster,
            PodMoves(cluster, store, clock, move_expiry),
            clock,
            rate=rate,
            most_pressure=settings.reclaim_pressure,
            calls=calls,
        )
        self._notices = MemoryNotices(cluster, settings.resource)
        self._log = telemetry.logger(resource=settings.resource)
        self._asked = Watched()
        self._report: MemoryReport | None = None
        self.turns = Watched()
        """Counts finished turns."""

    @property
    def report(self) -> MemoryReport:
        """The report of the last turn; UserError before the first."""
        if self._report is None:
            raise UserError("the agent has not looked at its node's memory yet; ask again in a moment")
        return self._report

    @property
    def state(self) -> MemoryState:
        return self._state

    @property
    def is_off(self) -> bool:
        return self._off

    @property
    def switch_unstored(self) -> str:
        """Why the switch would not survive a restart; empty where it would."""
        return self._switch_unstored

    def switch(self, off: bool) -> None:
        """Switch colocation off or on; a turn follows at once, even where the switch is not stored
        (`switch_unstored`)."""
        if self.dry_run:
            raise UserError("this agent runs with --dry-run and changes nothing; start it without --dry-run")
        self._off = off
        self._asked.changed()
        self._store_switch()
        self._log.info(
            Event.MEMORY_SWITCHED,
            off=off,
            **({"unstored": self._switch_unstored} if self._switch_unstored else {}),
        )

    def _store_switch(self) -> None:
        try:
            self._store.switch(self._off)
            self._switch_unstored = ""
        except OSError as error:
            self._switch_unstored = self._store.why_not(error)

    async def run(self) -> None:
        """Take turns until cancelled."""
        try:
            await self.begin()
            wakers = (_relay(source, self._asked) for source in (self.plugin.used, self.executor.reported))
            await first(self._cluster.run(), self._take_turns(), *wakers)
        finally:
            await self.executor.close()
            await self._demotion_off()
            await self._cluster.close(_FLUSH_TIME)
            self._machine.close()
            self._store.close()

    async def _demotion_off(self) -> None:
        """Switch off what this agent has switched on: a switch for the whole machine must not outlive its process."""
        if not self._state.ladder.demotion_is_ours or self.dry_run:
            return
        try:
            await self.executor.demotion_off()
        except OSError as error:
            self._log.error(
                Event.MEMORY_ACTED,
                action=SwitchDemotion.__name__,
                result=str(ActionResult.FAILED),
                message=str(error),
                why="the agent ends and must switch the kernel's demotion off again; its next start tries again",
            )

    async def begin(self) -> None:
        """Restore limits that an earlier process had lowered when it was killed. Needs no API server."""
        if self.dry_run or self._off:
            return
        for pod in self._state.pods.values():
            wanted = limits_of(pod, self._state.blocks.size)
            if wanted is not None and wanted.pod is not None:
                await self.executor.put_back(pod_ref(pod), wanted.pod)

    async def _take_turns(self) -> None:
        await self._cluster.synced(_SYNC_TIME)
        while True:
            seen = self._asked.count
            started = self._clock.monotonic()
            await self._take_turn()
            await self._clock.sleep(max(0.0, _LEAST_GAP - (self._clock.monotonic() - started)))
            pause = self.refresh * (1 + _JITTER * (2 * self._random() - 1)) - _LEAST_GAP
            await first(self._clock.sleep(max(0.0, pause)), _wait(self._asked, seen))

    async def _take_turn(self) -> None:
        started = self._clock.monotonic()
        try:
            await self.turn()
        except Exception as error:
            if isinstance(error, UserError) and self._report is None:
                raise  # The settings contradict blocks that pods hold: an operator has to decide.
            MEMORY_TURNS.labels(self.settings.resource, "failed").inc()
            self.plugin.suspend(f"the agent's last look at its node failed ({error})")
            expected = isinstance(error, ColocateError | OSError)
            self._log.error(
                Event.MEMORY_TURN_FAILED,
                reason=str(error),
                effect="no block is offered; the next turn looks again",
                # An unexpected error is a bug of ours and is logged with its traceback; limits stay set.
                **({} if expected else {"exc_info": error}),
            )
        else:
            MEMORY_TURNS.labels(self.settings.resource, "done").inc()
        took = self._clock.monotonic() - started
        MEMORY_TURN_SECONDS.labels(self.settings.resource).observe(took)

    async def turn(self) -> MemoryDecision:
        """Take one turn now."""
        outcomes = self.executor.take_outcomes()
        off = self._off
        try:
            await self._check_name()
            look = await self._observer.look(
                off=off, outcomes=outcomes, promised=self.plugin.promised, unstored=self._unstored
            )
            decision = self._decide(look.facts)
        except BaseException:
            self.executor.give_back(outcomes)
            raise
        self._notices.outcomes(outcomes)
        if self.dry_run:
            self._state = decision.state
            self._note(decision, look)
            self._notices.plan(decision)
            return decision
        await self._store_all(decision.state)
        if self._unstored and not look.facts.unstored:
            facts = msgspec.structs.replace(look.facts, unstored=self._unstored)
            look, decision = msgspec.structs.replace(look, facts=facts), self._decide(facts)
        self._state = decision.state
        self._note(decision, look)
        self.plugin.publish(decision.plan.blocks.devices, self._why_closed())
        actions = decision.plan.actions
        if self._unstored:
            actions = _undoable_after_a_kill(actions, look.facts, self._stored)
        holders = frozenset(self._state.holders)
        await self.executor.carry_out(actions, holders, off=off, recorded=not self._unstored)
        await self.executor.finish_moves()
        return decision

    def _decide(self, facts: MemoryFacts) -> MemoryDecision:
        return decide(self._state, facts, self.settings, self._clock.monotonic())

    def _why_closed(self) -> str:
        return f"the agent cannot store its state ({self._unstored})" if self._unstored else ""

    async def _check_name(self) -> None:
        """UserError where blocks got a new name while pods hold old ones, which the observer would not find."""
        old = self._state.blocks.resource
        if not old or old == self.settings.resource:
            return
        holders = await self._observer.holders_of(old)
        told = self._state.holders if holders is None else holders
        blocks_for_settings(
            self._state.blocks, self.settings, frozenset(id for ids in told.values() for id in ids)
        )

    def _note(self, decision: MemoryDecision, look: NodeLook) -> None:
        lost = () if self.dry_run else self._store.moves().lost
        silent = (*look.silent, *lost)
        self._report = report(
            decision,
            look.facts,
            self.settings,
            silent,
            self._clock.time(),
            dry_run=self.dry_run,
            switch_unstored=self._switch_unstored,
        )
        self._cluster.rights.want(
            (*(each.pod.namespace for each in decision.pods), *self.settings.namespaces)
        )
        self._notices.lost(lost)
        self._notices.collisions(look.collisions, self._report.at)
        self._notices.turn(decision, self._report)
        self.turns.changed()

    async def _store_all(self, state: MemoryState) -> None:
        """Store the state, and a switch that could not be stored before; `_unstored` says why that failed."""
        if self._switch_unstored:
            await in_thread(self._store_switch)
        was = self._unstored
        try:
            await in_thread(partial(self._store.save, state))
        except OSError as error:
            self._unstored = self._store.why_not(error)
            self._log.error(
                Event.MEMORY_STATE_UNSTORED,
                reason=self._unstored,
                effect="until it can be stored, no block is offered or given out and no pod is moved or evicted",
            )
        else:
            self._stored, self._unstored = state, ""
            if was:
                self._log.info(
                    Event.MEMORY_STATE_STORED, effect="blocks are offered again after the cool-down"
                )
                self._asked.changed()
        MEMORY_STATE_STORED.labels(self.settings.resource).set(0 if self._unstored else 1)

    def _holders(self) -> Mapping[PodUid, tuple[str, ...]]:
        return self._state.holders


def _undoable_after_a_kill(
    actions: tuple[Action, ...], facts: MemoryFacts, stored: MemoryState
) -> tuple[Action, ...]:
    """The actions that the next process can undo from the stored state, if this one is killed meanwhile.

    On cgroup v1 a reclaim lowers a limit for a moment; the next process restores it for pods in the stored state.
    """
    return tuple(
        action
        for action in actions
        if not isinstance(action, Reclaim) or facts.controls.cgroup == 2 or action.pod.uid in stored.pods
    )


async def _wait(source: Watched, seen: int) -> None:
    await source.beyond(seen)


async def _relay(source: Watched, to: Watched) -> None:
    seen = source.count
    while True:
        seen = await source.beyond(seen)
        to.changed()
