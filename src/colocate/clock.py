"""Clocks, which are passed in as arguments, so that tests control the time."""

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Reads the time and waits for it to pass."""

    def time(self) -> float:
        """Seconds since the epoch, for what people read."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return once `seconds` have passed."""


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """Time that passes only when a test says so."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._epoch = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._arrived = asyncio.Event()

    def time(self) -> float:
        """Seconds since the epoch."""
        return self._epoch + self._elapsed

    def monotonic(self) -> float:
        """Seconds that have passed."""
        return self._elapsed

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, as an administrator or NTP does."""
        self._epoch += seconds

    async def sleep(self, seconds: float) -> None:
        """Return once a test has let `seconds` pass."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        done = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), done))
        self._arrived.set()
        await done

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass: tasks that sleep are woken in the order of their deadlines."""
        target = self._elapsed + seconds
        while True:
            await _let_others_run()
            if not self._sleepers or self._sleepers[0][0] > target:
                break
            self._elapsed, _, done = heapq.heappop(self._sleepers)
            if not done.done():
                done.set_result(None)
        self._elapsed = target
        await _let_others_run()

    async def until_someone_sleeps(self) -> None:
        """Return once at least one task waits for this clock."""
        while not any(not done.done() for _, _, done in self._sleepers):
            self._arrived.clear()
            await self._arrived.wait()


async def _let_others_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
