"""Keeps the placer's state in its store, and goes on where that cannot be: it can be rebuilt from what runs.

A disk that is slow is not waited for longer than a runtime waits for us.
"""

import asyncio

from colocate import telemetry
from colocate.cpus.placer.book import PlacementState
from colocate.cpus.placer.store import PlacementStore
from colocate.telemetry import Event

DEADLINE = 1.0
"""Seconds that storing may take; a runtime waits for two."""
_SLOW = "the disk takes too long"


class StateKeeper:
    """Saves one state after the other."""

    def __init__(self, store: PlacementStore) -> None:
        self.unstored = ""
        """Why the last state is not stored; empty where it is."""
        self._store = store
        self._saving: asyncio.Future[None] | None = None

    def begin(self) -> PlacementState:
        """The state as it was stored last; UserError where another placer has it."""
        self.unstored = self._store.prepare()
        state, aside = self._store.load()
        if aside:
            telemetry.logger().warning(Event.PLACEMENT_STATE_SET_ASIDE, reason=aside)
        return state

    def set_aside(self, why: str) -> None:
        """Begin without the file: it can be read, and nobody can go on with what it says."""
        telemetry.logger().warning(Event.PLACEMENT_STATE_SET_ASIDE, reason=self._store.set_aside(why))

    def close(self) -> None:
        self._store.close()

    async def save(self, state: PlacementState) -> None:
        """On return it is on disk, or `unstored` says why not."""
        if not await self._ended():
            return
        self._saving = asyncio.ensure_future(asyncio.to_thread(self._store.save, state))
        if not await self._ended():
            return
        error = self._saving.exception()
        if error is None:
            self._tell("")
        else:
            self._tell(self._store.why_not(error) if isinstance(error, OSError) else repr(error))

    async def _ended(self) -> bool:
        """Whether the write that is under way, if any, came to its end in time."""
        if self._saving is None:
            return True
        await asyncio.wait({self._saving}, timeout=DEADLINE)
        if not self._saving.done():
            self._saving.add_done_callback(lambda late: late.cancelled() or late.exception())
            self._tell(_SLOW)
        return self._saving.done()

    def _tell(self, why: str) -> None:
        telemetry.CPUS_STATE_STORED.set(0 if why else 1)
        if why and why != self.unstored:
            telemetry.logger().warning(Event.PLACEMENT_STATE_UNSTORED, reason=why)
        elif self.unstored and not why:
            telemetry.logger().info(Event.PLACEMENT_STATE_STORED)
        self.unstored = why
