"""Opens the address that the server listens on: TCP or a unix socket, with TLS or without."""

import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from colocate import telemetry
from colocate.errors import UserError, system_reason
from colocate.http.connections import Connections
from colocate.http.listener import BACKLOG, Listener, bound_sockets
from colocate.scheduler.server.certificates import Certificates
from colocate.scheduler.settings import Server
from colocate.telemetry import Event
from colocate.wire import rpc


class Listening:
    """An open address."""

    def __init__(self, url: str, port: int, listener: Listener) -> None:
        self.url = url
        """As kube-scheduler's urlPrefix has it; `unix:` and a path for a socket."""
        self.port = port
        """0 for a unix socket."""
        self._listener = listener

    def close(self) -> None:
        """Take no more connections; those that are open stay."""
        self._listener.close()


@asynccontextmanager
async def listen(settings: Server, connections: Connections) -> AsyncIterator[Listening]:
    """Listen for as long as the body runs; a UserError where that cannot be."""
    certificates = Certificates.of(settings.tls)
    context = certificates.current if certificates else None
    path = settings.address.socket
    try:
        if path is not None:
            _make_room(path)
            sockets = [_unix_socket(path)]
        else:
            host, port = settings.address.host_and_port
            sockets = await bound_sockets(host, port)
    except OSError as error:
        reason = system_reason(error)
        raise UserError(
            f"server.address: cannot listen on {settings.address} ({reason}); choose another address"
        ) from error
    listener = Listener(sockets, connections, context)
    if path is not None:
        listening = Listening(settings.address, 0, listener)
    else:
        port = sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        listening = Listening(f"{'https' if context else 'http'}://{shown}:{port}", port, listener)
    try:
        yield listening
    finally:
        listener.close()
        await listener.closed()
        if path is not None:
            path.unlink(missing_ok=True)


def _unix_socket(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        # No moment in which another user could connect: the socket is born with mode 0600.
        mask = os.umask(0o177)
        try:
            made.bind(str(path))
        finally:
            os.umask(mask)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def _make_room(socket: Path) -> None:
    """Make the folder, and remove what a killed process left behind."""
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.path.lexists(socket):
        return
    if not stat.S_ISSOCK(socket.stat(follow_symlinks=False).st_mode):
        raise UserError(f"server.address: {socket} exists and is not a socket; choose another path")
    if rpc.is_served(socket):
        raise UserError(
            f"server.address: another process already listens on {socket}; stop it, or choose another path"
        )
    socket.unlink(missing_ok=True)
    telemetry.logger().info(Event.STALE_SOCKET_REMOVED, socket=str(socket))
