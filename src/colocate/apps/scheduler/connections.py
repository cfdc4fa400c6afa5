"""Connections of the HTTP server: how many there may be, and how long one may dawdle over a request's headers."""

import asyncio
from typing import Any

from aiohttp import web

from colocate import telemetry
from colocate.apps.scheduler.settings import Limits
from colocate.telemetry import Event

_BUFFER = 256 << 10
"""Bytes of a body that wait for us; aiohttp's own default makes a transport stop and go for every request."""
_LINGER = 2.0
"""Seconds for which the rest of a refused body is read and dropped, so that its sender comes to read why."""


class Connections(web.Server):
    """Makes a `Connection` for every caller. aiohttp speaks HTTP; what it does not bound is bounded here."""

    def __init__(self, handler: Any, limits: Limits) -> None:
        super().__init__(handler)
        self._limits = limits

    def __call__(self) -> "Connection":
        return Connection(self, self._limits, self._loop)

    def close_idle(self) -> None:
        """Close the connections on which nothing is under way."""
        for connection in self.connections:
            if isinstance(connection, Connection) and connection.is_idle:
                connection.force_close()


class Connection(web.RequestHandler):
    """One connection. Whoever begins a request and does not come to the end of its headers is cut off."""

    def __init__(self, manager: Connections, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=limits.idle_timeout,
            lingering_time=_LINGER,
            read_bufsize=_BUFFER,
            # Decompressed here it would be unbounded; see `bodies`.
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]
        )
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it waits for the headers of a request."""
        return self._waiter is not None and not self._waiter.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wait_for_headers()
        if self._manager is not None and len(self._manager.connections) > self._limits.connections:
            telemetry.EXTENDER_CONNECTIONS_REFUSED.labels("too many").inc()
            self.force_close()

    def connection_lost(self, error: BaseException | None) -> None:
        self._stop_timer()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_idle:
            self._stop_timer()
        elif self._timer is None:
            self._wait_for_headers()

    def log_exception(self, *args: Any, **fields: Any) -> None:
        telemetry.logger().error(Event.EXTENDER_FAULT, where="http", exc_info=fields.get("exc_info", True))

    def _wait_for_headers(self) -> None:
        self._timer = self._loop.call_later(self._limits.header_timeout, self._cut_off)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut_off(self) -> None:
        self._timer = None
        if self.is_idle:
            telemetry.EXTENDER_CONNECTIONS_REFUSED.labels("slow headers").inc()
            self.force_close()
