"""The GPU part of the scheduler's process: joins book, feed, judge, binder and lease, and answers the server."""

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from colocate import telemetry
from colocate.aio import first
from colocate.clock import Clock
from colocate.cluster.client import Client
from colocate.cluster.errors import ClusterError
from colocate.cluster.lease import LeaseHolder, LeaseSettings
from colocate.errors import UserError
from colocate.gpus.packing import PackingPolicy
from colocate.gpus.packing.cluster_book import ClusterBook
from colocate.scheduler.gpus.binder import GpuBinder
from colocate.scheduler.gpus.feed import GpuFeed
from colocate.scheduler.gpus.judge import GpuJudge
from colocate.scheduler.gpus.sealing import SealingKeys
from colocate.scheduler.gpus.section import GpuSection
from colocate.telemetry import GPUS_UNALLOCATED, Event
from colocate.wire import extender_answers as answers
from colocate.wire.extender_questions import read_binding, read_preemption, read_question

_PATIENCE = 0.1
"""Seconds for which news is waited for before a pod is sent away everywhere."""
_PATIENT_EVERY = 1.0
"""Seconds between two such waits: kube-scheduler asks about one pod at a time, and all others wait for it."""
_OF_THE_LEASE = 4 / 15
"""It counts as held for two thirds of its duration after a renewal; this is less than the last third."""
_AGAIN = 1.0
_KEYS_AGAIN = 60.0
"""Seconds between two looks at the keys."""
_SWEEP = 5.0
"""Seconds between two looks at choices whose time is over."""


class GpuScheduling:
    """Chooses GPUs and binds. See `server.extender.GpuDoor`."""

    def __init__(self, settings: GpuSection, client: Client, clock: Clock, identity: str = "") -> None:
        self._clock = clock
        self._leaving = asyncio.Event()
        self._patient_again = float("-inf")
        self.sealing = SealingKeys(settings, client)
        self.book = ClusterBook(PackingPolicy(settings.policy), settings.spoken(), self.sealing.keys)
        self.feed = GpuFeed(self.book, client)
        self.judge = GpuJudge(self.feed, clock, hold=settings.hold)
        lease = settings.lease
        self.lease = LeaseHolder(
            client,
            LeaseSettings(
                namespace=lease.namespace,
                name=lease.name,
                identity=identity or f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}",
                duration=lease.duration,
            ),
            clock,
        )
        self.binder = GpuBinder(
            self.feed,
            client,
            self.lease,
            clock,
            keys=self.sealing.keys,
            doubt=settings.doubt,
            # What is sent while the lease is held must be done before another can have it.
            timeout=lease.duration * _OF_THE_LEASE,
        )

    async def filter(self, body: bytes, caller: str) -> bytes:
        """Filter as the judge says, but refuse no pod on every node by old news: what woke kube-scheduler, such as
        the end of another pod, may reach it a moment before it reaches us, and a refused pod waits for minutes.
        """
        question = read_question(body, self.judge.most_candidates())
        sieved = self.judge.filter(question, caller)
        now = self._clock.monotonic()
        if question.names and len(sieved.failed) == len(question.names) and now >= self._patient_again:
            self._patient_again = now + _PATIENT_EVERY
            if await self.feed.news(_PATIENCE):
                sieved = self.judge.filter(question, caller)
        return answers.filtered(question, sieved.failed, sieved.unresolvable)

    def prioritize(self, body: bytes, caller: str) -> bytes:
        question = read_question(body, self.judge.most_candidates())
        return answers.priorities(
            question.names, self.judge.prioritize(question, caller), plain=question.plain
        )

    def preempt(self, body: bytes, caller: str) -> bytes:
        return answers.preempting(self.judge.preempt(read_preemption(body)))

    async def bind(self, body: bytes, caller: str) -> bytes:
        return answers.bound(await self.binder.bind(read_binding(body)))

    def unready(self) -> Sequence[str]:
        reasons = list(self.judge.unready())
        if not self.lease.held:
            reasons.append("another replica holds the lease and binds pods with GPUs, or none has it yet")
        elif not self.binder.caught_up:
            reasons.append("the GPU scheduler is still reading what was bound before it got the lease")
        return reasons

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the cluster and hold the lease, or wait to, for as long as the body runs."""
        tasks = [
            asyncio.create_task(work)
            for work in (self.feed.run(), self._sweep(), self._lead(self._leaving), self._follow_keys())
        ]
        try:
            yield
        finally:
            self._leaving.set()
            # The lease is given back first, so that the next replica need not wait longer.
            await asyncio.gather(tasks[2], return_exceptions=True)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _lead(self, leaving: asyncio.Event) -> None:
        """Take the lease only after the caches have synced."""
        await first(self._take_keys(), leaving.wait())
        await first(self.feed.synced(), leaving.wait())
        if not leaving.is_set():
            async with self.lease.running():
                await first(self._follow_lease(), leaving.wait())

    async def _follow_lease(self) -> None:
        while True:
            seen = self.lease.changed.count
            # It may have been lost and won back: another replica may have bound pods in between that we do not know.
            self.binder.caught_up = False
            if self.lease.held:
                try:
                    await self.binder.catch_up()
                except (ClusterError, UserError) as error:
                    telemetry.logger().warning(Event.GPU_BOOK_UNREAD, reason=str(error))
                    await self._clock.sleep(_AGAIN)
                    continue
            await self.lease.changed.beyond(seen)

    async def _take_keys(self) -> None:
        """Seals are made and believed with the keys that there are by now."""
        keys = await self.sealing.refresh()
        self.book.take_keys(keys)
        self.binder.keys = keys

    async def _follow_keys(self) -> None:
        while True:
            await self._clock.sleep(_KEYS_AGAIN)
            await self._take_keys()

    async def _sweep(self) -> None:
        while True:
            self.book.expire(self._clock.monotonic())
            await self.binder.resolve_doubts()
            GPUS_UNALLOCATED.set(self.book.fleet.unallocated())
            await self._clock.sleep(_SWEEP)
