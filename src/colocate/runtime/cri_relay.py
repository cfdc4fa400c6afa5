"""Passes every call of every service on to the container runtime, byte for byte, and its answer back.

Metadata, deadlines, cancellation, status, details and trailers are passed on, too. Nothing is decoded here. A `Watch`
may change the request of a unary method; a `Tap` reads the answers of a stream.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import grpc
import grpc.aio

from colocate import telemetry
from colocate.aio import seen_through
from colocate.wire.cri_methods import UNARY

MESSAGE_LIMIT = 64 << 20
"""Largest message in bytes. Kubelet and runtime refuse messages over 16 MiB, with their own errors."""

Forward = Callable[[bytes], Awaitable[bytes]]
"""Sends a request to the runtime and returns its answer; an AioRpcError if it fails."""
Watch = Callable[[bytes, Forward], Awaitable[bytes]]
"""Stands between a unary call and the runtime."""
Tap = Callable[[bytes], Awaitable[None]]
"""Gets each message of a stream's answer before the caller does."""
MetadataPairs = tuple[tuple[str, str | bytes], ...]

_STREAMS_KEPT = 256
"""Handlers of unknown methods that are kept, at most: a caller could invent any number of methods."""


class RelayRefused(Exception):
    """Raised by a watch: the call ends with this status, and the runtime is not asked."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


def connect(runtime: Path) -> grpc.aio.Channel:
    """A channel to the runtime, which reconnects within a second after the runtime is back."""
    return grpc.aio.insecure_channel(
        f"unix:{runtime.absolute()}",
        options=[
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.default_authority", "localhost"),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.max_receive_message_length", MESSAGE_LIMIT),
            ("grpc.max_send_message_length", MESSAGE_LIMIT),
        ],
    )


def server(relay: "Relay") -> grpc.aio.Server:
    """A server that answers every call by this relay; the caller binds and starts it."""
    made = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MESSAGE_LIMIT),
            ("grpc.max_send_message_length", MESSAGE_LIMIT),
        ]
    )
    made.add_generic_rpc_handlers((relay,))
    return made


class Relay(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Finds the handler that passes a call on."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        watches: Mapping[str, Watch] | None = None,
        taps: Mapping[str, Tap] | None = None,
    ) -> None:
        self._channel = channel
        watches = watches or {}
        self._taps = taps or {}
        self._handlers = {
            path: _unary_handler(channel, path, watches.get(path)) for path in UNARY | watches.keys()
        }
        self._streams: dict[str, grpc.RpcMethodHandler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = handler_call_details.method
        found = self._handlers.get(path) or self._streams.get(path)
        if found is None:
            found = _stream_handler(self._channel, path, self._taps.get(path))
            if len(self._streams) < _STREAMS_KEPT:
                self._streams[path] = found
        return found


def _unary_handler(channel: grpc.aio.Channel, path: str, watch: Watch | None) -> grpc.RpcMethodHandler:
    invoke = channel.unary_unary(path)

    async def pass_on(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        call = invoke(request, metadata=context.invocation_metadata(), timeout=context.time_remaining())
        answer: bytes | None = await call
        if initial := await call.initial_metadata():
            await context.send_initial_metadata(_pairs(initial))
        if trailing := await call.trailing_metadata():
            context.set_trailing_metadata(_pairs(trailing))
        if answer is None:
            # No runtime does this. A kubelet would report the same error; Python's gRPC would send an empty message.
            await context.abort(grpc.StatusCode.INTERNAL, "the runtime ended the call without an answer")
        return cast("bytes", answer)

    async def handle(request: bytes, context: grpc.aio.ServicerContext) -> bytes | None:
        try:
            return await pass_on(request, context)
        except grpc.aio.AioRpcError as error:
            await _abort(context, error)
        return None

    if watch is None:
        return grpc.unary_unary_rpc_method_handler(handle)
    added = telemetry.CRI_ADDED_SECONDS.labels(method=path.rpartition("/")[2])
    watched = watch

    async def handle_watched(request: bytes, context: grpc.aio.ServicerContext) -> bytes | None:
        began = perf_counter()
        away = 0.0

        async def forward(payload: bytes) -> bytes:
            nonlocal away
            left = perf_counter()
            try:
                return await pass_on(payload, context)
            finally:
                away += perf_counter() - left

        try:
            return await watched(request, forward)
        except grpc.aio.AioRpcError as error:
            await _abort(context, error)
        except RelayRefused as refused:
            await context.abort(refused.code, str(refused))
        finally:
            added.observe(perf_counter() - began - away)
        return None

    return grpc.unary_unary_rpc_method_handler(handle_watched)


def _stream_handler(channel: grpc.aio.Channel, path: str, tap: Tap | None) -> grpc.RpcMethodHandler:
    """A method of any kind: on the wire, one message is a stream of one."""
    invoke = channel.stream_stream(path)

    async def handle(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        call = invoke(metadata=context.invocation_metadata(), timeout=context.time_remaining())
        sending = asyncio.create_task(_send(requests, call))
        try:
            if initial := await call.initial_metadata():
                await context.send_initial_metadata(_pairs(initial))
            while (answer := await call.read()) is not grpc.aio.EOF:
                if tap is not None:
                    await tap(answer)
                await context.write(answer)
            await _end(context, call)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", _pairs(error.trailing_metadata()))
        finally:
            call.cancel()
            sending.cancel()
            await seen_through(_ended(sending))

    return grpc.stream_stream_rpc_method_handler(handle)


async def _send(requests: AsyncIterator[bytes], call: Any) -> None:
    """Send all that the caller sends. The answers say how the call ends."""
    try:
        await call.wait_for_connection()
        async for request in requests:
            # Not call.write: if the runtime has ended the call, it raises INTERNAL before the real status arrives.
            await call._cython_call.send_serialized_message(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
        return


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.gather(task, return_exceptions=True)


async def _end(context: grpc.aio.ServicerContext, call: Any) -> None:
    """End the stream with the status of the runtime's call."""
    trailing = _pairs(await call.trailing_metadata())
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        await context.abort(code, await call.details() or "", trailing)
    if trailing:
        context.set_trailing_metadata(trailing)


async def _abort(context: grpc.aio.ServicerContext, error: grpc.aio.AioRpcError) -> None:
    """End a unary call with the error of the runtime's call."""
    if initial := error.initial_metadata():
        await context.send_initial_metadata(_pairs(initial))
    await context.abort(error.code(), error.details() or "", _pairs(error.trailing_metadata()))


def _pairs(metadata: Any) -> MetadataPairs:
    return tuple(metadata or ())
