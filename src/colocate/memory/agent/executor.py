"""Carries out what was decided about pods: control groups, pages, evictions. Decides nothing.

`Executor._do` is the one place that says how each kind of action is done: at once, or as a job that reports later. It
never touches a pod that holds no block. The next turn reads the outcomes.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from colocate.aio import Watched, in_thread
from colocate.clock import Clock
from colocate.errors import ColocateError
from colocate.host.memory_group import GroupGone, MemoryGroup
from colocate.host.memory_limits import restore_high, throttle
from colocate.host.page_calls import Kernel
from colocate.host.reclaim import put_back
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
from colocate.memory.agent.jobs import Job, Jobs
from colocate.memory.agent.machine import Machine
from colocate.memory.agent.pod_moves import PodMoves, request_eviction
from colocate.memory.agent.pod_pages import demote_pages, move_pages, reclaim_pages
from colocate.model.memory import Bytes, PodUid

UNCHANGED = "as it was"
"""The message of an outcome where nothing had to be changed."""


class Executor:
    """Acts for one node's memory part."""

    def __init__(
        self,
        machine: Machine,
        cluster: ClusterView,
        moves: PodMoves,
        clock: Clock,
        *,
        rate: Bytes,
        most_pressure: float,
        calls: Callable[[], Kernel] = Kernel,
    ) -> None:
        """Pages move at `rate` bytes a second; nothing more is reclaimed from a pod that loses `most_pressure`
        percent of its time to memory pressure."""
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
        """Counts outcomes of jobs, so that a turn can follow each."""

    async def carry_out(
        self, actions: Iterable[Action], holders: AbstractSet[PodUid], *, off: bool, recorded: bool = True
    ) -> list[ActionOutcome]:
        """Carry out short actions and return their outcomes; start jobs for the others.

        Without `recorded` the state could not be stored: a throttle then needs a mark on the pod's control group.
        """
        self._jobs.keep_only(holders)
        done: list[ActionOutcome] = []
        for action in actions:
            outcome: ActionOutcome | None
            if isinstance(action, SwitchDemotion) or action.pod.uid in holders:
                outcome = await self._attempt(action, off, recorded)
            else:
                outcome = ActionOutcome(action, ActionResult.GONE, "it holds no block")
            if outcome is not None:
                done.append(outcome)
        self._outcomes += done
        return done

    @property
    def is_busy(self) -> bool:
        """Whether a job is running."""
        return self._jobs.any

    def take_outcomes(self) -> tuple[ActionOutcome, ...]:
        """The outcomes since the last call."""
        taken = tuple(self._outcomes)
        self._outcomes.clear()
        return taken

    def give_back(self, outcomes: Iterable[ActionOutcome]) -> None:
        """Return outcomes that a failed turn has taken and not used."""
        self._outcomes[:0] = outcomes

    async def demotion_off(self) -> None:
        """Switch the kernel's demotion off; OSError where that fails."""
        # Without it, a demotion step would drop the pages that it should move.
        await self._jobs.end(Demote)
        await in_thread(partial(self._machine.demotion.switch, False))

    async def put_back(self, pod: PodRef, limit: Bytes) -> None:
        """Raise a pod's limit where it is found lowered; the next turn reports it."""
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
        """Create evicted pods again on another node, once they have ended here."""
        if self._cluster.answers:
            await self.moves.finish(self._jobs.is_busy)

    async def close(self) -> None:
        await self._jobs.close()

    def _report(self, outcome: ActionOutcome) -> None:
        self._outcomes.append(outcome)
        self.reported.changed()

    async def _attempt(self, action: Action, off: bool, recorded: bool) -> ActionOutcome | None:
        """The outcome of an action; None where a job reports it later."""
        try:
            changed = await self._do(action, off, recorded)
        except GroupGone as gone:
            return ActionOutcome(action, ActionResult.GONE, str(gone))
        except (ColocateError, OSError) as error:
            return ActionOutcome(action, ActionResult.FAILED, str(error))
        if changed is None:
            return None
        return ActionOutcome(action, ActionResult.DONE, "" if changed else UNCHANGED)

    async def _do(self, action: Action, off: bool, recorded: bool) -> bool | None:
        """Carry out an action and return whether it changed anything; None where it goes on as a job."""
        job: Job
        match action:
            case SwitchDemotion(on=True):
                await in_thread(partial(self._machine.demotion.switch, True))
                return True
            case SwitchDemotion():
                await self.demotion_off()
                return True
            case SetLimit():
                group, ids = await self._group(action), self._container_ids(action)
                return await in_thread(partial(pod_limits.hold, group, action, ids))
            case RestoreLimit():
                group, ids = await self._group(action), self._container_ids(action)
                pod = self._cluster.pod(action.pod)
                running = pod.running_containers if pod else None
                return await in_thread(partial(pod_limits.restore, group, action, ids, running, off=off))
            case Throttle() | Ease():
                group = await self._group(action)
                must_mark = isinstance(action, Throttle) and not recorded
                return await in_thread(
                    partial(throttle, group, action.high, action.before, must_mark=must_mark)
                )
            case Unthrottle():
                return await in_thread(partial(restore_high, await self._group(action), action.to))
            case Reclaim():
                group = await self._group(action)
                job = partial(reclaim_pages, group, action, self._clock, self._most_pressure)
            case MovePages() | ReturnPages():
                group = await self._group(action)
                job = partial(move_pages, group, action, self.rate, self._clock, self._calls())
            case Demote():
                job = partial(
                    demote_pages,
                    await self._group(action),
                    action,
                    self._machine.demotion,
                    rate=self.rate,
                    clock=self._clock,
                    most_pressure=self._most_pressure,
                )
            case Evict():
                job = partial(request_eviction, self._cluster, action)
            case Recreate():
                job = partial(self.moves.begin, action)
        self._jobs.start(action, job)
        return None

    async def _group(self, action: PodAction) -> MemoryGroup:
        found = await self._machine.find(action.pod.uid)
        if found is None:
            raise GroupGone("it has no control group")
        return found.group

    def _container_ids(self, action: PodAction) -> Mapping[str, str]:
        pod = self._cluster.pod(action.pod)
        return pod.container_ids if pod else {}
