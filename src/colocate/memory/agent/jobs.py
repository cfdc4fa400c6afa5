"""Jobs: actions that take longer than a turn. At most one runs per pod.

An action of another kind, or the end of the pod, cancels a job. Every job that is not cancelled reports one outcome.
"""

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet

import msgspec

from colocate.errors import ColocateError
from colocate.memory import ActionOutcome, ActionResult, PodAction
from colocate.model.memory import PodUid

Job = Callable[[], Awaitable[ActionOutcome]]


class _Running(msgspec.Struct, frozen=True):
    action: PodAction
    task: asyncio.Task[None]


class Jobs:
    """The jobs that run."""

    def __init__(self, report: Callable[[ActionOutcome], None]) -> None:
        self._report = report
        self._running: dict[PodUid, _Running] = {}

    def start(self, action: PodAction, job: Job) -> None:
        """Start a job, unless one of the same kind runs for this pod."""
        uid = action.pod.uid
        known = self._running.get(uid)
        if known is not None:
            if type(known.action) is type(action):
                return
            known.task.cancel()
        task = asyncio.create_task(self._run(action, job), name=f"{type(action).__name__} {action.pod}")
        self._running[uid] = _Running(action, task)
        task.add_done_callback(lambda done: self._ended(uid, done))

    @property
    def any(self) -> bool:
        return bool(self._running)

    def is_busy(self, uid: PodUid) -> bool:
        return uid in self._running

    def keep_only(self, uids: AbstractSet[PodUid]) -> None:
        """Cancel the jobs of all other pods."""
        for uid, running in self._running.items():
            if uid not in uids:
                running.task.cancel()

    async def end(self, kind: type[PodAction]) -> None:
        """Cancel all jobs of a kind, and wait for their end."""
        await self._cancel([each.task for each in self._running.values() if type(each.action) is kind])

    async def close(self) -> None:
        """Cancel all jobs, and wait for their end."""
        await self._cancel([each.task for each in self._running.values()])

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, action: PodAction, job: Job) -> None:
        try:
            outcome = await job()
        except (ColocateError, OSError) as error:
            outcome = ActionOutcome(action, ActionResult.FAILED, str(error))
        self._report(outcome)

    def _ended(self, uid: PodUid, task: asyncio.Task[None]) -> None:
        if (known := self._running.get(uid)) is not None and known.task is task:
            del self._running[uid]
        if not task.cancelled():
            task.result()
