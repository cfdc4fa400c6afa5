"""One connection of an HTTP server: how long each step of a request may take, and what is written when.

A request that is here as a whole is answered where it arrives, without a task. While one is answered, at most one
read of those that follow it waits.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Sequence
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, cast

from colocate.http.deadline import Deadline
from colocate.http.exchange import BodyFault, Exchange, HttpAnswer, Reply, Sent, text_page
from colocate.http.places import Rank
from colocate.http.requests import Chunks, HttpRequest, NotHttp, head_length

if TYPE_CHECKING:
    from colocate.http.connections import Connections

_LINGER = 2.0
"""Seconds for which the rest of what a caller sends is read and dropped, so that it comes to read its answer."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NOT_HTTP = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"this is not a request in HTTP, or its first line or headers are too long\n"
)
_FAULT = text_page(500, "the server failed with an internal error; see its log", close=True)


class _Phase(Enum):
    """What a connection waits for."""

    IDLE = "another request"
    HEAD = "the rest of a request's headers"
    BODY = "the rest of a request's body"
    WORK = "the handler"
    SEND = "the caller to read"
    NEXT = "other connections, before the next request that is here"
    LAST = "the end; nothing is read any more"


class HttpConnection(asyncio.Protocol):
    """One connection. A caller that takes too long over a step is cut off."""

    def __init__(self, server: "Connections", address: str) -> None:
        self.address = address
        """The address that it counts for; see `places.address_of`."""
        self.transport: asyncio.Transport | None = None
        self.arrival: asyncio.Task[None] | None = None
        """What makes a connection of an accepted socket."""
        self.unread = False
        """Whether its caller does not read what is sent."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._phase = _Phase.HEAD
        self._input = b""
        """What has come and is not dealt with."""
        self._paused = False
        self._exchange: Exchange | None = None
        self._chunks: Chunks | None = None
        self._missing = 0
        """Bytes of a body that are still to come."""
        self._lost = False
        """Whether a part of what its caller sends is not read."""
        self._last = False
        """Whether the answer under way is the last."""
        self._ending = Sent.GONE
        self._task: asyncio.Task[None] | None = None
        self._streaming = False
        self._resumed: asyncio.Future[None] | None = None
        """What a stream waits for until its caller has read."""
        self._deadline = Deadline(self._overdue)
        """When the phase must be over."""

    @property
    def rank(self) -> Rank:
        return self._server.places.rank(self)

    @property
    def asking(self) -> bool:
        """Whether a request is under way: its headers have come, its answer is not out yet."""
        return self._exchange is not None

    @property
    def spare(self) -> bool:
        return self._exchange is None

    def raise_to(self, rank: Rank) -> None:
        self._server.raise_to(self, rank)

    def end(self) -> None:
        """Close it: what is under way is given up, what was written goes out."""
        if self._task is not None:
            self._task.cancel()
        self._close()

    def cut(self) -> None:
        """End it now, whatever its other end does."""
        if self.transport is not None:
            self._phase = _Phase.LAST
            # Not closed only: that would wait for a reader that does not read.
            self.transport.abort()
        elif self.arrival is not None:
            self.arrival.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Of uvloop's transports asyncio does not know what they are.
        self.transport = cast(asyncio.Transport, transport)
        if self._server.stopping:
            self.transport.abort()
        self._server.present.add(self)
        self._enter(_Phase.HEAD, self._server.limits.header_timeout)

    def connection_lost(self, error: BaseException | None) -> None:
        self.transport = None
        self._phase = _Phase.LAST
        self._input = b""
        self._deadline.stop()
        self._server.places.leave(self)
        if self._streaming and self._task is not None:
            self._task.cancel()
        elif self._exchange is not None and self._task is None:
            self._over(self._ending)
        self._leave()

    def data_received(self, data: bytes) -> None:
        phase = self._phase
        if phase is _Phase.LAST:
            return
        try:
            if phase is _Phase.BODY and self._exchange is not None:
                self._take_body(self._exchange, data)
                return
            self._input = self._input + data if self._input else data
            if phase is _Phase.IDLE or phase is _Phase.HEAD:
                self._advance()
            else:
                self._pause(wanted=True)
        except Exception as fault:  # noqa: BLE001 -- a handler's, and costs the one request that it happens in
            self._fail(fault)

    def pause_writing(self) -> None:
        self.unread = True

    def resume_writing(self) -> None:
        self.unread = False
        if self._resumed is not None:
            if not self._resumed.done():
                self._resumed.set_result(None)
        elif self._phase is _Phase.SEND:
            self._over(Sent.WHOLE)

    def _advance(self) -> None:
        """Begin the next request, once all of its headers are here."""
        data = self._input
        if data.startswith((b"\r", b"\n")):
            data = data.lstrip(b"\r\n")
        try:
            length = head_length(data) if data else 0
            if not length:
                self._input = data
                self._pause(wanted=False)
                if data and self._phase is not _Phase.HEAD:
                    self._enter(_Phase.HEAD, self._server.limits.header_timeout)
                elif not data and self._phase is _Phase.NEXT:
                    # Only line breaks followed the last request.
                    self._enter(_Phase.IDLE, self._server.limits.idle_timeout)
                return
            request = HttpRequest(data[:length])
        except NotHttp:
            # Counted and not logged: anyone may send it, as often as they like, and it may hold a token.
            self._server.told("not http")
            self._lost = True
            if self.transport is not None:
                self.transport.write(_NOT_HTTP)
                self._finish()
            return
        self._input = b""
        self._begin(request, data[length:])

    def _begin(self, request: HttpRequest, rest: bytes) -> None:
        self._server.places.used(self)
        exchange = self._exchange = self._server.handler(request, self)
        reply = exchange.begin()
        length = request.length
        if reply is not None:
            if length is None or length > len(rest):
                self._lost = True
            else:
                self._input = rest[length:]
            self._reply(reply)
            return
        self._phase = _Phase.BODY
        self._chunks = Chunks() if length is None else None
        self._missing = length or 0
        if rest or length == 0:
            self._take_body(exchange, rest)
        elif request.expects_continue and self.transport is not None:
            self.transport.write(_CONTINUE)
        if self._phase is _Phase.BODY:
            # A request that came with the one before it finds reading paused.
            self._pause(wanted=False)
            self._enter(_Phase.BODY, self._server.limits.body_timeout)

    def _take_body(self, exchange: Exchange, data: bytes) -> None:
        parts: Sequence[bytes]
        if self._chunks is None:
            missing = self._missing
            if len(data) > missing:
                data, self._input = data[:missing], data[missing:]
            self._missing = missing - len(data)
            parts, whole = (data,), not self._missing
        else:
            try:
                parts = self._chunks.feed(data)
            except NotHttp as error:
                self._lost = True
                self._reply(exchange.fail(BodyFault.BROKEN, str(error)))
                return
            whole, self._lost = self._chunks.whole, self._chunks.surplus
        for part in parts:
            refusal = exchange.add(part)
            if refusal is not None:
                self._lost = self._lost or not whole
                self._reply(refusal)
                return
        if whole:
            self._reply(exchange.end())

    def _reply(self, reply: Reply) -> None:
        self._enter(_Phase.WORK)
        if isinstance(reply, HttpAnswer):
            self._send(reply)
        else:
            self._run(self.work(reply))

    async def work(self, coming: Awaitable[HttpAnswer]) -> None:
        """Wait for an answer that is not here, and send it; a task of its own."""
        try:
            answer = await coming
        except Exception as fault:  # noqa: BLE001 -- whatever it is, the next request must be answered
            self._server.failed(fault)
            answer = _FAULT
        self._task = None
        self._send(answer)

    def _send(self, answer: HttpAnswer) -> None:
        exchange, transport = self._exchange, self.transport
        assert exchange is not None
        if transport is None or transport.is_closing():
            self._over(Sent.GONE)
            return
        request, body = exchange.request, answer.body
        endless = not request.newest and not isinstance(body, bytes)
        self._last = answer.close or self._lost or endless or not request.keep_alive
        self._last = self._last or self._server.stopping or not self._server.may_stay(self)
        head = answer.head(newest=request.newest, last=self._last)
        if request.method == "HEAD":
            transport.write(head)
        elif isinstance(body, bytes):
            transport.writelines((head, body))
        else:
            transport.write(head)
            self._streaming = True
            self._run(self._stream(body, chunked=request.newest))
            return
        if self.unread:
            self._enter(_Phase.SEND, self._server.limits.answer_timeout)
        else:
            self._over(Sent.WHOLE)

    async def _stream(self, parts: AsyncIterator[bytes], *, chunked: bool) -> None:
        try:
            async for part in parts:
                # An empty chunk would be the last.
                if part and self.transport is not None:
                    framed = (b"%x\r\n" % len(part), part, b"\r\n") if chunked else (part,)
                    self.transport.writelines(framed)
                if self.unread:
                    await self._read_by_caller()
            if chunked and self.transport is not None:
                self.transport.write(b"0\r\n\r\n")
            if self.unread:
                await self._read_by_caller()
            sent = Sent.WHOLE
        except Exception as fault:  # noqa: BLE001 -- of what makes the parts
            self._server.failed(fault)
            # The caller is cut off: there is no other way to say that something is missing.
            sent = Sent.GONE
        finally:
            self._streaming = False
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()
        self._task = None
        self._over(sent)

    async def _read_by_caller(self) -> None:
        self._resumed = self._loop.create_future()
        self._enter(_Phase.SEND, self._server.limits.answer_timeout)
        try:
            await self._resumed
        finally:
            self._resumed = None
        self._enter(_Phase.WORK)

    def _over(self, sent: Sent) -> None:
        """The exchange has ended."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.ended(sent)
        if self._server.stopping:
            self._server.changes.changed()
        if self.transport is None:
            self._leave()
        elif sent is not Sent.WHOLE:
            self.cut()
        elif self._last or self._server.stopping:
            self._finish()
        elif self._input:
            self._enter(_Phase.NEXT)
            self._pause(wanted=True)
            self._loop.call_soon(self._next)
        else:
            self._pause(wanted=False)
            self._enter(_Phase.IDLE, self._server.limits.idle_timeout)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before it began does nothing.
        if task.cancelled():
            self._task = None
            self._over(self._ending)

    def _next(self) -> None:
        if self._phase is _Phase.NEXT and self.transport is not None and not self.transport.is_closing():
            try:
                self._advance()
            except Exception as fault:  # noqa: BLE001 -- see data_received
                self._fail(fault)

    def _fail(self, fault: Exception) -> None:
        self._server.failed(fault)
        self._lost = True
        if self._phase in (_Phase.WORK, _Phase.SEND, _Phase.LAST) or self._exchange is None:
            self.cut()
        else:
            self._reply(_FAULT)

    def _finish(self) -> None:
        """The last answer is out."""
        if not (self._lost or self._input) or self.transport is None:
            self._close()
            return
        # Closed now, with something unread, it would be reset, and the answer with it.
        self._input = b""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._pause(wanted=False)
        self._enter(_Phase.LAST, _LINGER)

    def _close(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self._input = b""
            self.transport.close()
            self._enter(_Phase.LAST, self._server.limits.answer_timeout)

    def _leave(self) -> None:
        """Forget the connection, once its handler has ended as well."""
        if self._exchange is None:
            self._server.present.discard(self)
            if self._server.stopping:
                self._server.changes.changed()

    def _pause(self, *, wanted: bool) -> None:
        """Read no more for now; or go on."""
        if wanted is not self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = wanted
            (self.transport.pause_reading if wanted else self.transport.resume_reading)()

    def _enter(self, phase: _Phase, seconds: float = inf) -> None:
        """Be in a phase, for so long at most."""
        self._phase = phase
        self._deadline.set(seconds)

    def _overdue(self) -> None:
        match self._phase:
            case _Phase.HEAD:
                self._server.told("slow headers")
                self._close()
            case _Phase.BODY if self._exchange is not None:
                self._lost = True
                self._reply(self._exchange.fail(BodyFault.LATE, "the body did not come in time"))
            case _Phase.SEND:
                self._server.told("slow reader")
                self._ending = Sent.SLOW
                self.cut()
            case _Phase.LAST if self.transport is not None and self.transport.is_closing():
                self.cut()
            case _:
                self._close()
