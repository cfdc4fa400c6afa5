"""All connections of an HTTP server: which of them have a place, and how they end. The handler knows who asks."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import msgspec

from colocate import telemetry
from colocate.aio import Watched
from colocate.http.connection import HttpConnection
from colocate.http.exchange import Exchange
from colocate.http.places import LOCAL, ConnectionPlaces, PlaceLimits, Rank, address_of
from colocate.http.requests import HttpRequest
from colocate.telemetry import Event


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What connections may cost."""

    places: PlaceLimits
    header_timeout: float = 10.0
    """Seconds for the headers of a request, from their first byte; and for the first request."""
    body_timeout: float = 30.0
    """Seconds for the body of a request."""
    idle_timeout: float = 120.0
    """Seconds after an answer."""
    answer_timeout: float = 30.0
    """Seconds for the caller to read its answer."""


class Connections:
    """All connections of a server, which telemetry calls by `name`."""

    def __init__(
        self,
        name: str,
        handler: Callable[[HttpRequest, HttpConnection], Exchange],
        limits: ConnectionLimits,
        may_stay: Callable[[HttpConnection], bool] = lambda connection: True,
    ) -> None:
        """`may_stay` says whether a connection may wait for another request after an answer."""
        self.handler = handler
        self.limits = limits
        self.may_stay = may_stay
        self.stopping = False
        self.places: ConnectionPlaces[HttpConnection] = ConnectionPlaces(limits.places)
        self.present: set[HttpConnection] = set()
        """Those that are open, and those whose handler goes on without them."""
        self.changes = Watched()
        """Counts changes of what is present or under way, once the server is stopping."""
        self._name = name

    @property
    def under_way(self) -> int:
        """Requests that are not answered to their end."""
        return sum(connection.asking for connection in self.present)

    def admit(self, sock: socket.socket) -> HttpConnection | None:
        """A connection for what has just been accepted; None where there is no place for it."""
        local = sock.family is socket.AF_UNIX
        try:
            address = LOCAL if local else address_of(sock.getpeername())
        except OSError:
            # It has hung up already.
            return None
        made = HttpConnection(self, address)
        # A socket file is for its owner alone: a caller that connects there has shown enough.
        admission = self.places.admit(made, address, Rank.KNOWN if local else Rank.STRANGER)
        if not admission.admitted:
            self.told("too many")
            return None
        self._cut(admission.closed)
        return made

    def raise_to(self, connection: HttpConnection, rank: Rank) -> None:
        """Raise a connection that has shown more of its caller."""
        self._cut(self.places.move(connection, rank).closed)

    def make_room(self) -> None:
        """Close one that can be spared, if any."""
        self._cut(self.places.close_a_spare())

    async def drain(self) -> None:
        """Close the connections on which nothing is under way, and each of the others after its answer."""
        self.stopping = True
        for connection in tuple(self.present):
            if not connection.asking:
                connection.end()
        seen = 0
        while self.under_way:
            seen = await self.changes.beyond(seen)

    async def shutdown(self, seconds: float) -> None:
        """Give up what is under way; what was written has `seconds` to go out."""
        self.stopping = True
        for connection in tuple(self.present):
            connection.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                seen = 0
                while self.present:
                    seen = await self.changes.beyond(seen)
        for connection in tuple(self.present):
            connection.cut()

    def told(self, reason: str) -> None:
        telemetry.HTTP_CONNECTIONS_CLOSED.labels(self._name, reason).inc()

    def failed(self, error: BaseException) -> None:
        telemetry.logger().error(Event.HTTP_FAULT, server=self._name, exc_info=error)

    def _cut(self, connection: HttpConnection | None) -> None:
        if connection is not None:
            self.told("made room")
            connection.cut()
