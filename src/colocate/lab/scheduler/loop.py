"""The scheduler's loop: reads every change of nodes and pods, and places the pods with its scheduler names.

Driven by the store; nothing is polled. It places one pod at a time, as kube-scheduler does, so that each placement
knows all earlier ones. It counts the pods in the store, plus running binds.
"""

import asyncio
from random import Random
from types import TracebackType

from colocate import telemetry
from colocate.aio import Watched, first
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.scheduler.attempts import Attempts
from colocate.lab.scheduler.cluster import SchedulerCache
from colocate.lab.scheduler.configuration import Configuration
from colocate.lab.scheduler.cycle import Cycle
from colocate.lab.scheduler.extender import Extender
from colocate.lab.scheduler.feed import Feed
from colocate.lab.scheduler.queue import Queue
from colocate.lab.scheduler.recorder import Recorder
from colocate.telemetry import Event

_BATCH = 16
"""Pods that are placed before other tasks of the process run."""


class Scheduler:
    """Places pods while it runs. `random` breaks ties; with a seed, placements are reproducible."""

    def __init__(
        self,
        registry: ObjectRegistry,
        configuration: Configuration | None = None,
        random: Random | None = None,
        host: str = "lab",
    ) -> None:
        self._store = registry.store
        self._clock = registry.clock
        settings = self._configuration = configuration or Configuration()
        self._extenders = [Extender(one, self._clock) for one in settings.extenders]
        self._queue = Queue(settings.pod_initial_backoff_seconds, settings.pod_max_backoff_seconds)
        cluster = SchedulerCache()
        names = frozenset(profile.scheduler_name for profile in settings.profiles)
        self._feed = Feed(registry, cluster, self._queue, names)
        cycle = Cycle(settings, self._extenders, cluster, random or Random())
        recorder = Recorder(registry, host)
        self._attempts = Attempts(
            registry, self._feed, cluster, self._queue, cycle, self._extenders, recorder
        )
        self._task: asyncio.Task[None] | None = None
        self._idle_since = -1
        self._rested = Watched()

    async def __aenter__(self) -> "Scheduler":
        await self.start()
        return self

    async def __aexit__(
        self, type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start; pods that already wait are placed first."""
        if self._configuration.ignored:
            telemetry.logger().warning(Event.LAB_SETTINGS_IGNORED, settings=list(self._configuration.ignored))
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop at once. Pods being placed stay unchanged in the store; no task or connection is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._attempts.stop()
        for extender in self._extenders:
            await extender.close()

    async def settled(self) -> None:
        """Return once every change was processed and no pod can be tried now."""
        while not self._is_settled:
            assert self._task is not None, "a scheduler that was not started never settles"
            if self._task.done():
                self._task.result()
            await self._rested.beyond(self._rested.count)

    @property
    def waiting(self) -> int:
        """How many of its pods have no node yet."""
        return len(self._queue)

    @property
    def _is_settled(self) -> bool:
        return self._idle_since == self._store.changed.count and not self._attempts.binding

    async def _run(self) -> None:
        placed = 0
        try:
            while True:
                self._idle_since = -1
                seen = self._store.changed.count
                self._feed.read()
                waiting = self._queue.take(self._clock.monotonic())
                if waiting is not None:
                    await self._attempts.attempt(waiting)
                    placed += 1
                    if placed % _BATCH == 0:
                        await asyncio.sleep(0)
                    continue
                self._idle_since = seen
                self._rested.changed()
                await self._rest(seen)
        finally:
            self._rested.changed()

    async def _rest(self, seen: int) -> None:
        """Wait for a change, for the end of the next back-off, or for a bind to finish."""
        waits = [self._store.changed.beyond(seen)]
        if (when := self._queue.next_time()) is not None:
            waits.append(self._until(when))
        if self._attempts.binding:
            waits.append(self._one_bound())
        await first(*waits)

    async def _until(self, when: float) -> int:
        await self._clock.sleep(max(0.0, when - self._clock.monotonic()))
        return 0

    async def _one_bound(self) -> int:
        # The last bind may have finished before this starts.
        if binding := list(self._attempts.binding):
            await asyncio.wait(binding, return_when=asyncio.FIRST_COMPLETED)
        return 0
