"""One connection to a runtime: its mux, with a ttrpc server on one logical connection and a client on the other.

Requests are answered one by one, in the order of arrival. If an answer takes too long, its fallback is sent in
time, and its handler finishes before the next request begins. The queue is bounded: a runtime that sends more is
not read until some are done. Bytes that cannot be understood end the link.
"""

import asyncio
from collections import deque
from typing import Protocol, cast

import msgspec
from google.protobuf.message import DecodeError

from colocate.errors import Unavailable
from colocate.wire import mux
from colocate.wire import ttrpc_pb2 as messages
from colocate.wire.mux import GarbledStream
from colocate.wire.ttrpc import CallRefused, Frame, FrameKind, FrameReader, StatusCode, encode_frame

_MOST_WAITING = 64
_MOST_BYTES_WAITING = 8 << 20
_LONGEST_TIMEOUT = 60.0
_SHARE = 0.75
"""The share of the runtime's timeout in which an answer must be ready; the rest is for the transfer."""


class CallHandler(Protocol):
    """Answers the calls of the other side."""

    request_timeout: float
    """Seconds that an answer may take where the request names no timeout."""

    async def handle(self, service: str, method: str, payload: bytes) -> bytes:
        """The answer's payload; CallRefused for an error, GarbledStream to end the link. Other errors go to
        `failed`."""

    def fallback(self, method: str) -> bytes:
        """The payload to send in place of an answer that takes too long."""

    def failed(self, method: str, error: Exception) -> bytes | None:
        """The payload to send after `handle` failed; None ends the link."""


class _Waiting(msgspec.Struct):
    stream: int
    method: str
    service: str
    payload: bytes
    timer: asyncio.TimerHandle | None = None
    answered: bool = False


class TtrpcLink(asyncio.Protocol):
    """The protocol of one connection to a runtime."""

    def __init__(self, handler: CallHandler) -> None:
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._mux = mux.MuxReader()
        self._frames = {mux.PLUGIN_SERVICE: FrameReader(), mux.RUNTIME_SERVICE: FrameReader()}
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._last_stream = 0
        self._next_stream = 1
        self._calls: dict[int, asyncio.Future[messages.Response]] = {}
        self._full = False
        """Whether the write buffer is full, because the runtime does not read."""
        self._reading = True
        self._reason = ""
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set when the link has ended, to the reason."""

    async def run(self) -> None:
        """Answer requests until the link is lost; a request that is being handled then is finished."""
        while not self._lost.done():
            await self._arrived.wait()
            while self._waiting and not self._lost.done():
                request = self._waiting.popleft()
                await self._answer(request)
                self._bytes -= len(request.payload)
                self._regulate()
            self._arrived.clear()

    async def ended(self) -> str:
        """Wait for the end of the link; returns why it has ended."""
        return await asyncio.shield(self._lost)

    async def call(self, service: str, method: str, payload: bytes, timeout: float) -> bytes:
        """Call the other side. CallRefused where it answers with an error, Unavailable where it does not answer."""
        if self._lost.done():
            raise Unavailable(f"the runtime has hung up: {self._lost.result()}")
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        answer: asyncio.Future[messages.Response] = asyncio.get_running_loop().create_future()
        self._calls[stream] = answer
        request = messages.Request(
            service=service, method=method, payload=payload, timeout_nano=int(timeout * 1e9)
        )
        self._write(mux.RUNTIME_SERVICE, stream, FrameKind.REQUEST, request.SerializeToString())
        try:
            async with asyncio.timeout(timeout):
                response = await answer
        except TimeoutError:
            raise Unavailable(f"the runtime has not answered {method} within {timeout:g} s") from None
        finally:
            self._calls.pop(stream, None)
        if response.status.code != StatusCode.OK:
            raise CallRefused(response.status.code, response.status.message, response.payload)
        return response.payload

    def close(self, reason: str) -> None:
        """End the link; the first reason counts."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for connection, part in self._mux.feed(data):
                if connection in self._frames:
                    for frame in self._frames[connection].feed(part):
                        self._take(connection, frame)
        except (GarbledStream, DecodeError) as error:
            self.close(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set_result(self._reason or (str(error) if error else "it closed the connection"))
        for request in self._waiting:
            self._settle(request)
        self._waiting.clear()
        # Freed here and not by the garbage collector: an unfinished frame may have 4 MiB, and a runtime may
        # reconnect often.
        self._frames.clear()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(Unavailable(f"the runtime has hung up: {self._lost.result()}"))
        self._arrived.set()

    def pause_writing(self) -> None:
        self._full = True
        self._regulate()

    def resume_writing(self) -> None:
        self._full = False
        self._regulate()

    # Internals.

    def _take(self, connection: int, frame: Frame) -> None:
        if connection == mux.PLUGIN_SERVICE and frame.kind == FrameKind.REQUEST:
            self._take_request(frame)
        elif connection == mux.RUNTIME_SERVICE and frame.kind == FrameKind.RESPONSE:
            answer = self._calls.get(frame.stream)
            if answer is not None and not answer.done():
                answer.set_result(messages.Response.FromString(frame.body))

    def _take_request(self, frame: Frame) -> None:
        if frame.stream <= self._last_stream or frame.stream % 2 == 0:
            raise GarbledStream(f"a request came on stream {frame.stream} after {self._last_stream}")
        self._last_stream = frame.stream
        asked = messages.Request.FromString(frame.body)
        request = _Waiting(frame.stream, asked.method, asked.service, asked.payload)
        seconds = asked.timeout_nano / 1e9 if asked.timeout_nano > 0 else self._handler.request_timeout
        delay = min(seconds, _LONGEST_TIMEOUT) * _SHARE
        request.timer = asyncio.get_running_loop().call_later(delay, self._let_go, request)
        self._waiting.append(request)
        self._bytes += len(request.payload)
        self._arrived.set()
        self._regulate()

    async def _answer(self, request: _Waiting) -> None:
        response = messages.Response()
        try:
            response.payload = await self._handler.handle(request.service, request.method, request.payload)
        except CallRefused as refusal:
            response.status.code, response.status.message = refusal.code, str(refusal)
        except (GarbledStream, DecodeError) as error:
            self.close(f"{request.method}: {error}")
            return
        except Exception as error:  # noqa: BLE001 -- told by the handler; what it answers is as good as no plugin
            payload = self._handler.failed(request.method, error)
            if payload is None:
                self.close(f"our handler of {request.method} failed")
                return
            response.payload = payload
        self._send(request, response)

    def _let_go(self, request: _Waiting) -> None:
        self._send(request, messages.Response(payload=self._handler.fallback(request.method)))

    def _send(self, request: _Waiting, response: messages.Response) -> None:
        if not request.answered:
            self._write(mux.PLUGIN_SERVICE, request.stream, FrameKind.RESPONSE, response.SerializeToString())
        self._settle(request)

    def _settle(self, request: _Waiting) -> None:
        request.answered = True
        if request.timer is not None:
            request.timer.cancel()

    def _write(self, connection: int, stream: int, kind: FrameKind, body: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(mux.pieces(connection, encode_frame(stream, kind, body)))

    def _regulate(self) -> None:
        """Pause reading while the queue is full, or while the runtime does not read our answers."""
        transport = self._transport
        crowded = len(self._waiting) >= _MOST_WAITING or self._bytes >= _MOST_BYTES_WAITING
        reading = not (self._full or crowded)
        if transport is not None and reading != self._reading and not transport.is_closing():
            self._reading = reading
            if reading:
                transport.resume_reading()
            else:
                transport.pause_reading()
