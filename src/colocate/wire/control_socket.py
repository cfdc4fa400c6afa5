"""The agent's control socket: how commands on the same machine reach a running agent.

Only the agent's own user may connect. Each feature defines its own methods and messages (see
`devices.mock.control`); this module only serves, calls and refuses them.
"""

import errno
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import msgspec

from colocate import telemetry
from colocate.crashpoints import reached
from colocate.errors import Unavailable, UserError, system_reason
from colocate.telemetry import Event
from colocate.wire import rpc
from colocate.wire.rpc import Method, RpcError, Service

Request = TypeVar("Request")
Response = TypeVar("Response")

_TIMEOUT = 10.0


def answering(answer: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose UserError becomes the caller's UserError, for an answer that is there at once."""

    async def later(request: Request) -> Response:
        return answer(request)

    return answering_later(later)


def answering_later(
    answer: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose UserError becomes the caller's UserError, for an answer that takes time."""

    async def handle(request: Request) -> Response:
        try:
            return await answer(request)
        except UserError as error:
            raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error

    return handle


class ControlPeer(msgspec.Struct, frozen=True):
    """The process expected behind a control socket, in the words of error messages."""

    what: str = "agent"
    start: str = "'colocate agent --config FILE'"
    setting: str = "control.socket"
    variable: str = "COLOCATE_CONTROL_SOCKET"


AGENT = ControlPeer()


@asynccontextmanager
async def serving(socket: Path, *services: Service, peer: ControlPeer = AGENT) -> AsyncIterator[None]:
    """Serve on the control socket for as long as the body runs."""
    _make_room(socket, peer)
    reached("control.serve")
    # The socket is created with mode 0600, so that no other user can ever connect.
    mask = os.umask(0o177)
    try:
        server = await rpc.serve(socket, *services)
    except (OSError, RuntimeError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else str(error)
        raise UserError(
            f"{peer.setting}: cannot listen on {socket} ({reason}); choose another path"
        ) from error
    finally:
        os.umask(mask)
    reached("control.served")
    try:
        yield
    finally:
        await rpc.stop_server(server)
        socket.unlink(missing_ok=True)
        reached("control.removed")


def _make_room(socket: Path, peer: ControlPeer) -> None:
    """Make the folder, and remove the socket of a killed process."""
    try:
        socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(socket.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not os.path.lexists(socket):
            return
        found = socket.stat(follow_symlinks=False)
    except OSError as error:
        reason = system_reason(error)
        as_root = "run this as root, or " if isinstance(error, PermissionError) else ""
        raise UserError(
            f"{peer.setting}: cannot make a socket in {socket.parent} ({reason}); "
            f"{as_root}choose another path with {peer.setting} or {peer.variable}"
        ) from error
    if not stat.S_ISSOCK(found.st_mode):
        raise UserError(f"{peer.setting}: {socket} exists and is not a socket; choose another path")
    if rpc.is_served(socket):
        raise UserError(
            f"{peer.setting}: another {peer.what} already runs with the control socket {socket}; "
            f"stop it, or give this one another with {peer.setting} or {peer.variable}"
        )
    socket.unlink(missing_ok=True)
    telemetry.logger().info(Event.STALE_SOCKET_REMOVED, socket=str(socket))


async def ask(
    socket: Path, method: Method[Request, Response], request: Request, peer: ControlPeer = AGENT
) -> Response:
    """Call a running agent. UserError where there is none, or where it refuses."""
    if len(os.fsencode(socket)) > rpc.MAX_SOCKET_PATH:
        raise UserError(
            f"{socket}: the path is too long for a unix socket, which takes {rpc.MAX_SOCKET_PATH} bytes; give the "
            f"{peer.what}'s own with --socket or {peer.variable}"
        )
    try:
        async with rpc.connect(socket, receive_limit=-1) as channel:
            return await rpc.call(channel, method, request, timeout=_TIMEOUT)
    except grpc.RpcError as error:
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            raise UserError(details) from error
        if code is grpc.StatusCode.UNAVAILABLE:
            raise UserError(_why_no_answer(socket, peer)) from error
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise UserError(
                f"the {peer.what} behind {socket} does not know this command; update it"
            ) from error
        raise Unavailable(
            f"the {peer.what} behind {socket} did not answer: {code.name}: {details}"
        ) from error


def _why_no_answer(socket: Path, peer: ControlPeer) -> str:
    try:
        socket.stat()
        if not os.access(socket, os.W_OK):
            return f"{socket}: this user may not talk to the {peer.what}; run the command as the {peer.what}'s user"
    except PermissionError:
        return f"{socket}: this user may not read it; run the command as the {peer.what}'s user"
    except OSError:
        pass
    return (
        f"no {peer.what} answers on {socket}; start one with {peer.start}, "
        f"or give its socket with --socket or {peer.variable}"
    )
