"""`kubectl logs` and `kubectl exec`: a container's output, and a command beside it, over HTTP and WebSocket.

A `PodAccess` reaches the processes. Simulated nodes have none, and the error says so. Exec speaks the channel
protocols v5 and v4 of kubectl 1.31 and later; SPDY, of older versions, is refused with an explanation.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec
from aiohttp import WSMsgType, web

from colocate.lab.api.objects import Object, at, encode, name_of, uid_of
from colocate.lab.api.query import ListQuery
from colocate.lab.api.status import StatusError, bad_request

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_LARGEST_INPUT = 1 << 20


class TerminalSize(msgspec.Struct, frozen=True):
    """The size of a terminal."""

    width: int = msgspec.field(name="Width", default=80)
    height: int = msgspec.field(name="Height", default=24)


class ExecProcess(Protocol):
    """A command that runs beside a container."""

    async def read(self, error: bool) -> bytes:
        """Some of its output; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Write to its input; empty data closes it."""

    def resize(self, size: TerminalSize) -> None: ...

    async def wait(self) -> int: ...

    async def close(self) -> None:
        """End it, if it still runs."""


class PodAccess(Protocol):
    """Reaches the processes of pods."""

    def log(
        self, uid: str, container: str, *, previous: bool, tail: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """The output of a container. LookupError with a sentence where there is none."""

    async def start(
        self, uid: str, container: str, command: list[str], *, terminal: bool, input: bool
    ) -> ExecProcess:
        """Run a command beside a container. LookupError with a sentence where that is not possible."""


def container_of(pod: Object, wanted: str) -> str:
    """The requested container; raises a Status where it must be named, or does not exist."""
    spec = pod.get("spec") or {}
    names = [str(one["name"]) for key in ("initContainers", "containers") for one in spec.get(key) or []]
    apps = [str(one["name"]) for one in spec.get("containers") or []]
    if wanted and wanted not in names:
        raise bad_request(f"container {wanted} is not valid for pod {name_of(pod)}")
    if not wanted and len(apps) > 1:
        raise bad_request(
            f"a container name must be specified for pod {name_of(pod)}, choose one of: [{' '.join(apps)}]"
        )
    return wanted or apps[0]


async def serve_log(
    request: web.Request, pod: Object, query: ListQuery, access: PodAccess | None
) -> web.StreamResponse:
    """Answer with a container's output, to its end or as long as it continues."""
    container = container_of(pod, query.text("container"))
    pieces = _reachable(pod, access).log(
        uid_of(pod),
        container,
        previous=query.flag("previous"),
        tail=query.number("tailLines"),
        follow=query.flag("follow"),
    )
    left = query.number("limitBytes")
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    try:
        first = await anext(pieces, b"")
    except LookupError as error:
        raise bad_request(str(error.args[0])) from None
    with contextlib.suppress(ConnectionError):  # the reader may disconnect at any time
        await response.prepare(request)
        piece = first
        while piece:
            piece = piece if left is None else piece[:left]
            left = None if left is None else left - len(piece)
            await response.write(piece)
            if left == 0:
                break
            piece = await anext(pieces, b"")
        await response.write_eof()
    return response


async def serve_exec(request: web.Request, pod: Object, access: PodAccess | None) -> web.StreamResponse:
    """Run a command beside a container, with its streams over a WebSocket.

    Why a command cannot run is sent over the WebSocket: if it were refused, kubectl would try SPDY and show that
    refusal.
    """
    query = ListQuery(dict(request.query))
    if "spdy" in request.headers.get("Upgrade", "").lower():
        raise bad_request(
            "the embedded cluster speaks WebSocket for exec, and this kubectl SPDY; use kubectl 1.31 or newer"
        )
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise bad_request("exec needs a WebSocket; ask with Upgrade: websocket")
    command = request.query.getall("command", [])
    if not command:
        raise bad_request("you must specify at least one command for the container")
    terminal = query.flag("tty")
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=_LARGEST_INPUT)
    await socket.prepare(request)
    try:
        process = await _reachable(pod, access).start(
            uid_of(pod),
            container_of(pod, query.text("container")),
            command,
            terminal=terminal,
            input=query.flag("stdin"),
        )
    except (LookupError, StatusError) as error:
        await _end(socket, {"metadata": {}, "status": "Failure", "message": str(error.args[0])})
        return socket
    try:
        await _joined(socket, process, terminal)
    finally:
        await process.close()
    return socket


async def _end(socket: web.WebSocketResponse, outcome: Object) -> None:
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(bytes([_ERROR]) + encode(outcome))
        await socket.close()


async def _joined(socket: web.WebSocketResponse, process: ExecProcess, terminal: bool) -> None:
    """Pass all streams on until the command has ended, and send its outcome."""
    asking = asyncio.create_task(_input(socket, process))
    telling = [asyncio.create_task(_output(socket, process, _STDOUT, error=False))]
    if not terminal:
        telling.append(asyncio.create_task(_output(socket, process, _STDERR, error=True)))
    try:
        ended = asyncio.create_task(process.wait())
        await asyncio.wait([ended, asking], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():  # The client has disconnected.
            ended.cancel()
            return
        await asyncio.gather(*telling)
        await _end(socket, _outcome(ended.result()))
    finally:
        for task in (asking, *telling):
            task.cancel()
        await asyncio.gather(asking, *telling, return_exceptions=True)


async def _output(socket: web.WebSocketResponse, process: ExecProcess, channel: int, *, error: bool) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await process.read(error):
            await socket.send_bytes(bytes([channel]) + data)


async def _input(socket: web.WebSocketResponse, process: ExecProcess) -> None:
    """Read the client's input until it disconnects; a broken frame is ignored."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], bytes(message.data[1:])
        if channel == _STDIN and data:
            await process.write(data)
        elif channel == _CLOSE and data == bytes([_STDIN]):
            await process.write(b"")
        elif channel == _RESIZE:
            with contextlib.suppress(msgspec.MsgspecError):
                process.resize(msgspec.json.decode(data, type=TerminalSize))


def _outcome(code: int) -> Object:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _reachable(pod: Object, access: PodAccess | None) -> PodAccess:
    node = at(pod, "spec", "nodeName")
    if not node:
        raise bad_request(f"pod {name_of(pod)} does not have a host assigned")
    if access is None:
        raise StatusError(501, "NotImplemented", "this API server has no node with processes")
    return access
