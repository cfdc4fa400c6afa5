"""A deadline that is set for every step of a request and mostly met: to move it costs less than a timer."""

import asyncio
from collections.abc import Callable
from math import inf


class Deadline:
    """Calls back once it has passed. A timer that is set already stays, and looks again when the deadline is due."""

    def __init__(self, passed: Callable[[], None]) -> None:
        self._passed = passed
        self._loop = asyncio.get_running_loop()
        self._due = inf
        self._wakes = inf
        """When the timer looks next; never after the deadline."""
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """From now on; in place of the one before. Without end where the seconds are infinite."""
        self._due = self._loop.time() + seconds
        if self._due < self._wakes:
            if self._timer is not None:
                self._timer.cancel()
            self._start()

    def stop(self) -> None:
        """There is none any more, and no timer."""
        self._due = self._wakes = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        self._wakes = self._due
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        self._wakes = inf
        if self._loop.time() >= self._due:
            self._due = inf
            self._passed()
        elif self._due < inf:
            self._start()
