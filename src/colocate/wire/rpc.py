"""gRPC over unix sockets: typed methods, called and served.

A `Method` names one RPC with its message types; `methods` lists those of the kubelet's services. Generated service
stubs are not used, because a server here may answer with bytes that were serialised earlier.
"""

import asyncio
import socket as sockets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import Message

from colocate.errors import UserError

Request = TypeVar("Request")
Response = TypeVar("Response")
ProtoRequest = TypeVar("ProtoRequest", bound=Message)
ProtoResponse = TypeVar("ProtoResponse", bound=Message)

# sun_path has 108 bytes with the closing NUL.
MAX_SOCKET_PATH = 107


class Method(Generic[Request, Response]):
    """One RPC: its path, and how its messages are encoded and decoded."""

    def __init__(
        self,
        path: str,
        write_request: Callable[[Request], bytes],
        read_request: Callable[[bytes], Request],
        write_response: Callable[[Response], bytes],
        read_response: Callable[[bytes], Response],
    ) -> None:
        self.path = path
        self.write_request = write_request
        self.read_request = read_request
        self.write_response = write_response
        self.read_response = read_response


def proto(
    path: str, request: type[ProtoRequest], response: type[ProtoResponse]
) -> Method[ProtoRequest, ProtoResponse]:
    """An RPC whose messages are protobuf."""
    return Method(
        path,
        request.SerializeToString,
        request.FromString,
        response.SerializeToString,
        response.FromString,
    )


def json(path: str, request: type[Request], response: type[Response]) -> Method[Request, Response]:
    """An RPC between two processes of this project: msgspec structs as JSON, no .proto needed."""
    return Method(
        path,
        msgspec.json.encode,
        msgspec.json.Decoder(request).decode,
        msgspec.json.encode,
        msgspec.json.Decoder(response).decode,
    )


class RpcError(Exception):
    """Raised by a handler to end a call with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


Unary = Callable[[Any], Awaitable[Any]]
Stream = Callable[[Any], AsyncIterator[bytes]]


def connect(socket: Path, *, receive_limit: int | None = None) -> grpc.aio.Channel:
    """A channel to the server behind a unix socket. Each call has its own timeout."""
    options: list[tuple[str, int | str]] = [
        # A replaced socket is another server: never share a connection between channels.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.default_authority", "localhost"),
        ("grpc.enable_http_proxy", 0),
    ]
    if receive_limit is not None:
        options.append(("grpc.max_receive_message_length", receive_limit))
    return grpc.aio.insecure_channel(f"unix:{socket.absolute()}", options=options)


async def call(
    channel: grpc.aio.Channel,
    method: Method[Request, Response],
    request: Request,
    *,
    timeout: float | None = None,
) -> Response:
    """Call a unary method and wait for its answer."""
    # Encoded before the call: gRPC would turn an encoding error into an empty request.
    payload = method.write_request(request)
    invoke = channel.unary_unary(method.path, response_deserializer=method.read_response)
    try:
        answer: Response | None = await invoke(payload, timeout=timeout)
    except asyncio.CancelledError:
        if cancelled():
            raise
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.UNAVAILABLE, nothing, nothing, "the connection was closed on this side"
        ) from None
    if answer is None:  # gRPC's sign that decoding failed
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL, nothing, nothing, f"the answer to {method.path} cannot be read"
        )
    return answer


def cancelled() -> bool:
    """Whether this task was cancelled. If not, a CancelledError means that the channel was closed during a call."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def subscribe(
    channel: grpc.aio.Channel, method: Method[Request, Response], request: Request
) -> grpc.aio.UnaryStreamCall:
    """Call a streaming method; iterate over the result, or cancel() it."""
    invoke = channel.unary_stream(
        method.path,
        request_serializer=method.write_request,
        response_deserializer=method.read_response,
    )
    return invoke(request)


class Service:
    """The methods of one gRPC service with their handlers.

    A unary handler takes a message and returns one; a streaming handler yields serialised messages.
    """

    def __init__(
        self,
        unary: Mapping[Method[Any, Any], Unary],
        streams: Mapping[Method[Any, Any], Stream] | None = None,
    ) -> None:
        handlers: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
        for method, answer in unary.items():
            service, _, name = method.path[1:].partition("/")
            handlers.setdefault(service, {})[name] = grpc.unary_unary_rpc_method_handler(
                _unary(answer),
                request_deserializer=method.read_request,
                response_serializer=method.write_response,
            )
        for method, stream in (streams or {}).items():
            service, _, name = method.path[1:].partition("/")
            handlers.setdefault(service, {})[name] = grpc.unary_stream_rpc_method_handler(
                _stream(stream), request_deserializer=method.read_request
            )
        self.handlers = [
            grpc.method_handlers_generic_handler(service, methods) for service, methods in handlers.items()
        ]


def _unary(answer: Unary) -> Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]:
    async def handle(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await answer(request)
        except RpcError as error:
            await context.abort(error.code, str(error))

    return handle


def _stream(stream: Stream) -> Callable[[Any, grpc.aio.ServicerContext], AsyncIterator[bytes]]:
    async def handle(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        async for payload in stream(request):
            yield payload

    return handle


async def serve(socket: Path, *services: Service) -> grpc.aio.Server:
    """Serve on a new unix socket; on return the socket accepts connections."""
    path = str(socket.absolute())
    if len(path.encode()) > MAX_SOCKET_PATH:
        raise UserError(
            f"the socket path {path} has {len(path.encode())} bytes, but a unix socket allows "
            f"{MAX_SOCKET_PATH}: use a folder with a shorter path"
        )
    server = grpc.aio.server(
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20)]
    )
    for service in services:
        server.add_generic_rpc_handlers(service.handlers)
    server.add_insecure_port(f"unix:{path}")
    try:
        await server.start()
    except BaseException:
        await stop_server(server)
        raise
    return server


async def stop_server(server: grpc.aio.Server, flush: float | None = None) -> None:
    """Stop a server completely, even if the caller is cancelled meanwhile.

    Open calls are aborted, or get `flush` seconds to end: an aborted call may lose its last message.

    A half-stopped server would run on in tasks without an owner until the garbage collector stops it.
    """
    stopping = asyncio.ensure_future(server.stop(flush))
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await stopping
        raise


def is_served(socket: Path) -> bool:
    """Whether a process listens on a unix socket; True where that cannot be determined."""
    try:
        return answers(socket)
    except OSError:
        return True


def answers(socket: Path) -> bool:
    """Whether a process listens on a unix socket; OSError where that cannot be determined.

    The socket of a killed process refuses connections.
    """
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            # No file, no listener, however long the path is.
            socket.stat()
            probe.connect(str(socket))
        except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
            return False
        except (TimeoutError, BlockingIOError):
            return True  # Its backlog is full, so a process listens.
    return True
