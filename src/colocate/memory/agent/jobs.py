"""Deeds that take longer than a turn: at most one per pod, cancelled by another kind of deed or when the pod goes.

What becomes of each is reported once, whatever it raises.
"""

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet

import msgspec

from colocate.errors import ColocateError
from colocate.memory import ActionOutcome, ActionResult, PodAction
from colocate.model.memory import PodUid

Deed = Callable[[], Awaitable[ActionOutcome]]


class _Job(msgspec.Struct, frozen=True):
    action: PodAction
    task: asyncio.Task[None]


class Jobs:
    """What is under way."""

    def __init__(self, report: Callable[[ActionOutcome], None]) -> None:
        self._report = report
        self._running: dict[PodUid, _Job] = {}

    def start(self, action: PodAction, deed: Deed) -> None:
        """Begin, unless the same kind of deed is under way for this pod."""
        uid = action.pod.uid
        known = self._running.get(uid)
        if known is not None:
            if type(known.action) is type(action):
                return
            known.task.cancel()
        task = asyncio.create_task(self._run(action, deed), name=f"{type(action).__name__} {action.pod}")
        self._running[uid] = _Job(action, task)
        task.add_done_callback(lambda done: self._ended(uid, done))

    @property
    def any(self) -> bool:
        return bool(self._running)

    def is_busy(self, uid: PodUid) -> bool:
        return uid in self._running

    def keep_only(self, uids: AbstractSet[PodUid]) -> None:
        """Cancel what is done to pods that are no longer meant."""
        for uid, job in self._running.items():
            if uid not in uids:
                job.task.cancel()

    async def end(self, kind: type[PodAction]) -> None:
        """Cancel all deeds of a kind, and see them end."""
        await self._cancel([job.task for job in self._running.values() if type(job.action) is kind])

    async def close(self) -> None:
        """Cancel everything, and see it end."""
        await self._cancel([job.task for job in self._running.values()])

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, action: PodAction, deed: Deed) -> None:
        try:
            outcome = await deed()
        except (ColocateError, OSError) as error:
            outcome = ActionOutcome(action, ActionResult.FAILED, str(error))
        self._report(outcome)

    def _ended(self, uid: PodUid, task: asyncio.Task[None]) -> None:
        if (known := self._running.get(uid)) is not None and known.task is task:
            del self._running[uid]
        if not task.cancelled():
            task.result()
