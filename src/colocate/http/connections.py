"""Connections of an HTTP server: which of them have a place, and how long one may dawdle over a request's headers.

aiohttp speaks HTTP; what it does not bound is bounded here. Who a caller is, the handler of requests says.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from colocate import telemetry
from colocate.http.places import LOCAL, ConnectionPlaces, PlaceLimits, Rank, address_of
from colocate.http.whole_requests import AtOnce, WholeRequestHandler
from colocate.telemetry import Event

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_BUFFER = 256 << 10
"""Bytes of a body that wait for us; aiohttp's own default makes a transport stop and go for every request."""
_LINGER = 2.0
"""Seconds for which the rest of a refused body is read and dropped, so that its sender comes to read why."""

_TURNS_TO_HANDLER = 3
"""Of the loop, from waking aiohttp's task to the call of a handler."""

_NOT_HTTP = "this is not a request in HTTP, or its first line or headers are too long"


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What connections may cost."""

    places: PlaceLimits
    header_timeout: float = 10.0
    """Seconds for the headers of a request, from their first byte; and for the first request."""
    idle_timeout: float = 120.0
    """Seconds after an answer."""
    answer_timeout: float = 30.0
    """Seconds for the caller to read its answer."""


class Connections(web.Server):
    """All connections of a server, which telemetry calls by `name`."""

    def __init__(
        self,
        name: str,
        handler: Handler,
        limits: ConnectionLimits,
        at_once: "AtOnce[HttpConnection] | None" = None,
    ) -> None:
        super().__init__(self._marked(handler))
        self.name = name
        self.limits = limits
        self.at_once = at_once
        self.places: ConnectionPlaces[HttpConnection] = ConnectionPlaces(limits.places)

    def admit(self, sock: socket.socket) -> "HttpConnection | None":
        """A connection for what has just been accepted; None where there is no place for it."""
        local = sock.family is socket.AF_UNIX
        try:
            address = LOCAL if local else address_of(sock.getpeername())
        except OSError:
            # It has hung up already.
            return None
        made = HttpConnection(self, address, self._loop)
        # A socket file is for its owner alone: whoever connects there has shown enough.
        admission = self.places.admit(made, address, Rank.KNOWN if local else Rank.STRANGER)
        if not admission.admitted:
            self.told("too many")
            return None
        self._cut(admission.closed)
        return made

    def raise_to(self, connection: "HttpConnection", rank: Rank) -> None:
        """It has shown more of itself."""
        self._cut(self.places.move(connection, rank).closed)

    def make_room(self) -> None:
        """Close one that can be spared, if any."""
        self._cut(self.places.close_a_spare())

    async def close_idle(self) -> None:
        """Close the connections on which nothing is under way; when this returns, all others have a handler."""
        for connection in self.connections:
            if isinstance(connection, HttpConnection):
                connection.end()
        for _ in range(_TURNS_TO_HANDLER):
            await asyncio.sleep(0)

    def told(self, reason: str) -> None:
        telemetry.HTTP_CONNECTIONS_CLOSED.labels(self.name, reason).inc()

    def _cut(self, connection: "HttpConnection | None") -> None:
        if connection is not None:
            self.told("made room")
            connection.cut()

    def _marked(self, handler: Handler) -> Handler:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            connection = connection_of(request)
            connection.asking = True
            self.places.used(connection)
            try:
                return await handler(request)
            finally:
                connection.asking = False
                if connection.rank is not Rank.KNOWN and "Transfer-Encoding" in request.headers:
                    connection.drop_the_rest()

        return handle


class HttpConnection(WholeRequestHandler["HttpConnection"]):
    """One connection. Whoever begins a request and does not come to the end of its headers is cut off."""

    def __init__(self, server: Connections, address: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            at_once=server.at_once,
            answer_timeout=server.limits.answer_timeout,
            loop=loop,
            keepalive_timeout=server.limits.idle_timeout,
            lingering_time=_LINGER,
            read_bufsize=_BUFFER,
            # Decompressed here it would be unbounded; see the scheduler's `bodies`.
            auto_decompress=False,
            access_log=None,
        )
        self.address = address
        """Whose it is; see `places.address_of`."""
        self.asking = False
        """Whether a request is under way: its headers have come, its answer is not out yet."""
        self.arrival: asyncio.Task[None] | None = None
        """What makes a connection of an accepted socket."""
        self._server = server
        self._timer: asyncio.TimerHandle | None = None

    @property
    def rank(self) -> Rank:
        return self._server.places.rank(self)

    @property
    def spare(self) -> bool:
        """Whether nothing is lost to an honest caller when it is closed."""
        return not self.asking and not self.awaits_rest

    @property
    def unread(self) -> bool:
        """Whether its answer waits for its caller to read what came before."""
        return self._paused

    @property
    def is_idle(self) -> bool:
        """Whether it waits for the headers of a request."""
        return self._waiter is not None and not self._waiter.done() and not self.awaits_rest

    def end(self) -> None:
        """Close it once nothing is under way."""
        if self.is_idle:
            self.force_close()
        elif self.awaits_rest:
            self.wake()

    def raise_to(self, rank: Rank) -> None:
        self._server.raise_to(self, rank)

    def drop_the_rest(self) -> None:
        """Read no more of the body of this request: in chunks of a byte each it costs us a thousand times as much as
        its sender, and then the next answer waits for it."""
        self._lingering_time = 0.0

    def cut(self) -> None:
        """End it now, whatever its other end does."""
        transport = self.transport
        if transport is None:
            if self.arrival is not None:
                self.arrival.cancel()
            return
        # Not closed only: that would wait for a reader that does not read.
        transport.abort()
        self.force_close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, error: BaseException | None) -> None:
        self._stop_timer()
        self._server.places.leave(self)
        self._let_go_of_errors()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self.takes(data):
            self._stop_timer()
            return
        self._let_go_of_errors()
        if not self.is_idle:
            self._stop_timer()
        elif self._timer is None:
            self._wait_for_headers()

    def used(self) -> None:
        self._server.places.used(self)

    def reader_is_slow(self) -> None:
        self._server.told("slow reader")
        self.cut()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP is counted and not logged: anybody may send it, as often as they like, and what was wrong
        with a header would tell the token in it."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        _let_go(exc)
        self._server.told("not http")
        answer = text_page(400, _NOT_HTTP)
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **fields: Any) -> None:
        telemetry.logger().error(
            Event.HTTP_FAULT, server=self._server.name, exc_info=fields.get("exc_info", True)
        )

    def _let_go_of_errors(self) -> None:
        if self._messages:
            # Where the parser has failed, its error is the last: it reads no further.
            _let_go(getattr(self._messages[-1][0], "exc", None))

    def _wait_for_headers(self) -> None:
        self._timer = self._loop.call_later(self._server.limits.header_timeout, self._cut_off)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut_off(self) -> None:
        self._timer = None
        if self.is_idle:
            self._server.told("slow headers")
            self.force_close()


def _let_go(error: BaseException | None) -> None:
    """Part an error from the frames that it passed. They hold what was read, and it again: a megabyte of a stranger's
    for each connection, until the garbage collector comes by."""
    if error is not None:
        error.__traceback__ = None


def connection_of(request: web.BaseRequest) -> HttpConnection:
    """The connection that a request came on."""
    connection = request.protocol
    assert isinstance(connection, HttpConnection)
    return connection


async def send(request: web.BaseRequest, response: web.Response, timeout: float) -> str:
    """Send an answer. 'slow' where its reader was too slow and was hung up on, 'gone' where it hung up; else ''."""
    transport = request.transport
    if transport is None:
        return "gone"
    cut_off: list[str] = []

    def cut() -> None:
        cut_off.append("slow")
        transport.abort()

    # A timer and no more: most answers are gone at once, and asyncio.timeout would cost them dear.
    timer = asyncio.get_running_loop().call_later(timeout, cut)
    try:
        await response.prepare(request)
        await response.write_eof()
        await request.writer.drain()
    except ConnectionError:
        return cut_off[0] if cut_off else "gone"
    finally:
        timer.cancel()
    return cut_off[0] if cut_off else ""


def text_page(status: int, *lines: str) -> web.Response:
    return web.Response(
        status=status,
        body="".join(f"{line}\n" for line in lines).encode(),
        headers={"Content-Type": "text/plain; charset=utf-8"},
    )
