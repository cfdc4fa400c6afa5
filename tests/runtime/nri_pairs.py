"""A plugin and a runtime of the test, connected."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.logs import Logs, logged
from tests.support.noted_events import NotedEvents
from tests.support.nri_runtime import NriRuntime, PluginConnection

from colocate.clock import Clock, SystemClock
from colocate.runtime.nri_plugin import NriPlugin
from colocate.wire import nri_pb2 as nri


class HastyClock(SystemClock):
    """Skips every pause."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class NriPair:
    """The plugin runs; what it logs is noted."""

    def __init__(self, runtime: NriRuntime, events: NotedEvents, logs: Logs) -> None:
        self.runtime = runtime
        self.events = events
        self._logs = logs

    async def synchronized(self) -> PluginConnection:
        """The plugin, registered, at a runtime without containers."""
        plugin = await self.runtime.connection()
        await plugin.introduce()
        await plugin.ask("Synchronize", nri.SynchronizeRequest())
        return plugin

    def told(self) -> list[str]:
        """The events that were logged since the last time."""
        names = [str(entry["event"]) for entry in self._logs]
        self._logs.clear()
        return names

    def reasons(self) -> list[str]:
        return [str(entry["reason"]) for entry in self._logs if "reason" in entry]


@asynccontextmanager
async def nri_pair(folder: Path, clock: Clock | None = None) -> AsyncIterator[NriPair]:
    """A plugin that has connected, or is about to."""
    events = NotedEvents()
    async with NriRuntime(folder / "nri.sock").listening() as runtime:
        plugin = NriPlugin(events, clock or HastyClock(), socket=runtime.socket, random=lambda: 0.0)
        with logged() as logs:
            running = asyncio.create_task(plugin.run())
            try:
                yield NriPair(runtime, events, logs)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                assert running.cancelled() or running.exception() is None, running.exception()
