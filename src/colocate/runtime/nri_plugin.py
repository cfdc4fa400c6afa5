"""The NRI plugin: connects to a runtime's socket, and connects again whenever the connection ends.

Containers keep running while their runtime is gone; when it is back, it announces what it has, and cpusets that
differ are corrected. The end of a connection is logged once, and so is a runtime that cannot be reached.
"""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

from colocate import telemetry
from colocate.backoff import BackOff, Random
from colocate.clock import Clock
from colocate.errors import Unavailable, system_reason, visible
from colocate.runtime.events import ContainerEvents
from colocate.runtime.nri_session import NriSession, PluginIdentity
from colocate.telemetry import NRI_CONNECTED, Event
from colocate.wire.ttrpc import CallRefused
from colocate.wire.ttrpc_link import TtrpcLink

_FIRST_PAUSE = 0.1
_LAST_PAUSE = 2.0
_LASTING = 10.0
"""Seconds after which a connection counts as stable, and the pauses start small again."""
_FAREWELL = 2.0
"""Seconds for a request that is under way when the plugin stops."""
_LONGEST_REASON = 300


class NriPlugin:
    """Announces to `events` what a runtime does."""

    def __init__(
        self,
        events: ContainerEvents,
        clock: Clock,
        *,
        socket: Path,
        identity: PluginIdentity | None = None,
        random: Random = random.random,
    ) -> None:
        self._events = events
        self._clock = clock
        self._socket = socket
        self._identity = identity or PluginIdentity()
        self._pauses = BackOff(_FIRST_PAUSE, _LAST_PAUSE, random)
        self._awaited = False

    async def run(self) -> None:
        """Connect and serve until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            session = NriSession(self._events)
            try:
                _, link = await loop.create_unix_connection(lambda: TtrpcLink(session), str(self._socket))  # noqa: B023
            except OSError as error:
                self._tell_awaited(error)
            else:
                self._awaited = False
                begun = self._clock.monotonic()
                await self._serve(session, link)
                if self._clock.monotonic() - begun >= _LASTING:
                    self._pauses.reset()
            await self._clock.sleep(self._pauses.pause())

    async def _serve(self, session: NriSession, link: TtrpcLink) -> None:
        answering = asyncio.create_task(link.run())
        try:
            try:
                await session.register(link, self._identity)
            except (Unavailable, CallRefused) as error:
                link.close(str(error))
            else:
                NRI_CONNECTED.set(1)
            reason = visible(await link.ended())[:_LONGEST_REASON]
            telemetry.logger().warning(Event.NRI_DISCONNECTED, socket=str(self._socket), reason=reason)
        finally:
            NRI_CONNECTED.set(0)
            link.close("the plugin stops")
            await self._end(answering)
            if session.synchronized:
                await self._events.detached(session)

    async def _end(self, answering: "asyncio.Task[None]") -> None:
        """Give the request that is under way some time to end."""
        await asyncio.wait([answering], timeout=_FAREWELL)
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering

    def _tell_awaited(self, error: OSError) -> None:
        if not self._awaited:
            self._awaited = True
            telemetry.logger().warning(
                Event.NRI_AWAITED,
                socket=str(self._socket),
                reason=system_reason(error),
                remedy="containerd 1.7 needs NRI enabled in its configuration; containerd 2 has it on",
            )
