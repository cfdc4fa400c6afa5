"""Carries out what was decided about pods: control groups, pages, evictions. Decides nothing.

Nothing is ever done to a pod that holds no block: that is looked at here once more. What becomes of an action is
reported, for the next turn; what takes long goes on as a job meanwhile.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import partial

from colocate.aio import Watched, in_thread
from colocate.clock import Clock
from colocate.errors import ColocateError, Unavailable
from colocate.host import memory_files
from colocate.host.memory_group import GroupGone, MemoryGroup
from colocate.host.page_calls import Kernel, PageCalls
from colocate.host.reclaim import ReclaimEnd, put_back, reclaim
from colocate.memory import (
    Action,
    ActionOutcome,
    ActionResult,
    Demote,
    Ease,
    Evict,
    MovePages,
    PodAction,
    PodRef,
    Reclaim,
    Recreate,
    RestoreLimit,
    ReturnPages,
    SetLimit,
    SwitchDemotion,
    Throttle,
    Unthrottle,
)
from colocate.memory.agent import pod_limits
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.jobs import Jobs
from colocate.memory.agent.machine import Machine
from colocate.memory.agent.page_moves import demote, move_pages
from colocate.memory.agent.pod_moves import PodMoves, send_off
from colocate.model.figures import amount
from colocate.model.memory import Bytes, PodUid

_RECLAIM_TIME = 5.0
"""Seconds after which a reclaim takes no further step: the next turn looks at what it did."""


UNCHANGED = "as it was"
"""The message of an outcome that found everything as wanted."""


class Executor:
    """The hands of one node's memory part."""

    def __init__(
        self,
        machine: Machine,
        cluster: ClusterView,
        moves: PodMoves,
        clock: Clock,
        *,
        rate: Bytes,
        most_pressure: float,
        calls: Callable[[], PageCalls] = Kernel,
    ) -> None:
        """Pages move at `rate` bytes a second; no more is reclaimed from a pod that loses `most_pressure` percent of
        its time to it."""
        self._machine = machine
        self._cluster = cluster
        self.moves = moves
        self._clock = clock
        self._calls = calls
        self._outcomes: list[ActionOutcome] = []
        self._jobs = Jobs(self._report)
        self._most_pressure = most_pressure
        self.rate = rate
        self.reported = Watched()
        """Counts outcomes of jobs, which somebody may wait for."""

    async def carry_out(
        self, actions: Iterable[Action], holders: AbstractSet[PodUid], *, off: bool, recorded: bool = True
    ) -> list[ActionOutcome]:
        """Do what can be done at once, and begin the rest; what was done at once is returned, too.

        Not `recorded` are actions of a state that could not be stored: each must then tell of itself on its pod.
        """
        self._jobs.keep_only(holders)
        done: list[ActionOutcome] = []
        for action in actions:
            if isinstance(action, SwitchDemotion):
                done.append(await self._switch(action))
                continue
            if action.pod.uid not in holders:
                done.append(ActionOutcome(action, ActionResult.GONE, "it holds no block"))
                continue
            outcome = await self._do(action, off, recorded)
            if outcome is not None:
                done.append(outcome)
        self._outcomes += done
        return done

    @property
    def is_busy(self) -> bool:
        """Whether a long deed is under way."""
        return self._jobs.any

    def take_outcomes(self) -> tuple[ActionOutcome, ...]:
        """What became of actions since the last time this was asked."""
        taken = tuple(self._outcomes)
        self._outcomes.clear()
        return taken

    def give_back(self, outcomes: Iterable[ActionOutcome]) -> None:
        """Outcomes that nobody could take in after all."""
        self._outcomes[:0] = outcomes

    async def demotion_off(self) -> None:
        """Switch the kernel's demotion off; OSError where that cannot be."""
        # A step without it would drop what it was to move.
        await self._jobs.end(Demote)
        await in_thread(partial(self._machine.demotion.switch, False))

    async def put_back(self, pod: PodRef, limit: Bytes) -> None:
        """Raise a pod's limit where it is found lowered; the next turn tells."""
        reason = (
            "The agent was killed while it reclaimed from the pod, so it restores the limit it had lowered."
        )
        action = SetLimit(pod=pod, limit=limit, swap=None, reason=reason)
        try:
            found = await self._machine.find(pod.uid)
            if found is not None and await in_thread(partial(put_back, found.group, limit)):
                self._outcomes.append(ActionOutcome(action, ActionResult.DONE))
        except GroupGone:
            return
        except (ColocateError, OSError) as error:
            self._outcomes.append(ActionOutcome(action, ActionResult.FAILED, str(error)))

    async def finish_moves(self) -> None:
        """Create pods again whose end a move has waited for."""
        if self._cluster.answers:
            await self.moves.finish(self._jobs.is_busy)

    async def close(self) -> None:
        await self._jobs.close()

    def _report(self, outcome: ActionOutcome) -> None:
        self._outcomes.append(outcome)
        self.reported.changed()

    async def _switch(self, action: SwitchDemotion) -> ActionOutcome:
        try:
            if action.on:
                await in_thread(partial(self._machine.demotion.switch, True))
            else:
                await self.demotion_off()
        except OSError as error:
            return ActionOutcome(action, ActionResult.FAILED, str(error))
        return ActionOutcome(action, ActionResult.DONE)

    async def _do(self, action: PodAction, off: bool, recorded: bool) -> ActionOutcome | None:
        if isinstance(action, Evict):
            self._jobs.start(action, partial(send_off, self._cluster, action))
            return None
        if isinstance(action, Recreate):
            self._jobs.start(action, partial(self.moves.begin, action))
            return None
        try:
            found = await self._machine.find(action.pod.uid)
            if found is None:
                return ActionOutcome(action, ActionResult.GONE, "it has no control group")
            return await self._do_to_group(action, found.group, off, recorded)
        except GroupGone as gone:
            return ActionOutcome(action, ActionResult.GONE, str(gone))
        except (ColocateError, OSError) as error:
            return ActionOutcome(action, ActionResult.FAILED, str(error))

    async def _do_to_group(
        self, action: PodAction, group: MemoryGroup, off: bool, recorded: bool
    ) -> ActionOutcome | None:
        if isinstance(action, MovePages | ReturnPages):
            self._jobs.start(
                action, partial(move_pages, group, action, self.rate, self._clock, self._calls())
            )
            return None
        if isinstance(action, Demote):
            self._jobs.start(
                action,
                partial(
                    demote,
                    group,
                    action,
                    self._machine.demotion,
                    rate=self.rate,
                    clock=self._clock,
                    # A throttled pod suffers already; demoting it is to make nothing worse.
                    go_on=partial(_suffers_no_more, group, max(self._most_pressure, _pressure(group))),
                ),
            )
            return None
        if isinstance(action, Reclaim):
            self._jobs.start(action, partial(self._reclaim, action, group))
            return None
        changed = await in_thread(partial(self._set, action, group, off, recorded))
        return ActionOutcome(action, ActionResult.DONE, "" if changed else UNCHANGED)

    def _set(self, action: PodAction, group: MemoryGroup, off: bool, recorded: bool) -> bool:
        """In a thread: what is one or two writes."""
        pod = self._cluster.pod(action.pod)
        ids = pod.container_ids if pod else {}
        match action:
            case SetLimit():
                return pod_limits.hold(group, action, ids)
            case RestoreLimit():
                running = pod.running_containers if pod else None
                return pod_limits.restore(group, action, ids, running, off=off)
            case Throttle() | Ease():
                return pod_limits.throttle(group, action, recorded=recorded)
            case Unthrottle():
                return pod_limits.let_go(group, action)
        raise TypeError(f"unknown action {action!r:.100}")

    async def _reclaim(self, action: Reclaim, group: MemoryGroup) -> ActionOutcome:
        end = self._clock.monotonic() + _RECLAIM_TIME
        done = await reclaim(
            group,
            action.bytes,
            leave=action.leave,
            go_on=lambda: self._clock.monotonic() < end and _pressure(group) <= self._most_pressure,
        )
        told = f"{amount(done.amount)} of {amount(action.bytes)} reclaimed: {done.end}"
        if done.end is ReclaimEnd.GONE:
            return ActionOutcome(action, ActionResult.GONE, told)
        if done.end is ReclaimEnd.NOTHING_LEFT and done.amount < 1 << 20:
            return ActionOutcome(action, ActionResult.FAILED, told)
        return ActionOutcome(action, ActionResult.DONE, told)


def _suffers_no_more(group: MemoryGroup, most: float) -> bool:
    return _pressure(group) <= most


def _pressure(group: MemoryGroup) -> float:
    """The percentage of its time that a pod lost to memory pressure just now; 0 where nobody measures that."""
    try:
        return memory_files.pressure(group.read("memory.pressure")).some10
    except (Unavailable, OSError):
        return 0.0
