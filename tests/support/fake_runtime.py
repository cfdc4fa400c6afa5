"""A gRPC server that serves every path of every service by what a test says, and what a caller sees of a call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec

Requests = AsyncIterator[bytes]
Serve = Callable[[str, Requests, grpc.aio.ServicerContext], Awaitable[None]]
"""Serves a call of any kind: reads its messages, writes others."""
LIMIT = 16 << 20

Pairs = tuple[tuple[str, str | bytes], ...]


class Ended(msgspec.Struct, frozen=True):
    """All that a caller sees of a call."""

    answers: tuple[bytes | None, ...]
    code: str
    details: str
    initial: Pairs
    trailing: Pairs


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, serve: Serve) -> None:
        self._serve = serve

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = handler_call_details.method

        async def handle(requests: Requests, context: grpc.aio.ServicerContext) -> None:
            await self._serve(path, requests, context)

        return grpc.stream_stream_rpc_method_handler(handle)


@asynccontextmanager
async def serving(socket: Path, serve: Serve) -> AsyncIterator[None]:
    """A runtime on this socket that refuses messages beyond 16 MiB, as real ones do."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", LIMIT),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
    )
    server.add_generic_rpc_handlers((_Handler(serve),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def client(socket: Path) -> grpc.aio.Channel:
    """As a kubelet connects."""
    return grpc.aio.insecure_channel(
        f"unix:{socket}",
        options=[
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.default_authority", "localhost"),
            ("grpc.primary_user_agent", "kubelet/v1.34"),
            ("grpc.max_receive_message_length", LIMIT),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_reconnect_backoff_ms", 200),
        ],
    )


async def call_unary(
    channel: grpc.aio.Channel, path: str, request: bytes, metadata: Pairs = (), timeout: float = 60
) -> Ended:
    call = channel.unary_unary(path)(request, metadata=metadata, timeout=timeout)
    try:
        answers: tuple[bytes | None, ...] = (await call,)
    except grpc.aio.AioRpcError:
        answers = ()
    return await _ended(call, answers)


async def call_stream(
    channel: grpc.aio.Channel,
    path: str,
    requests: Iterable[bytes],
    metadata: Pairs = (),
    timeout: float = 60,
) -> Ended:
    call = channel.stream_stream(path)(iter(requests), metadata=metadata, timeout=timeout)
    answers: Sequence[bytes] = []
    try:
        answers = [answer async for answer in call]
    except grpc.aio.AioRpcError:
        pass
    return await _ended(call, tuple(answers))


async def _ended(call: Any, answers: tuple[bytes | None, ...]) -> Ended:
    return Ended(
        answers,
        (await call.code()).name,
        await call.details() or "",
        tuple((key, value) for key, value in await call.initial_metadata()),
        tuple((key, value) for key, value in await call.trailing_metadata()),
    )


async def never() -> None:
    await asyncio.Event().wait()
