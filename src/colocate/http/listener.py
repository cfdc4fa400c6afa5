"""Accepts connections on open sockets, one a turn of the loop, each only where it has a place.

A handshake is a header too: the place is taken before it begins, and a caller that dawdles over it is cut off.
A process that has run out of open files spares a connection of a stranger and goes on.
"""

import asyncio
import errno
import resource
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from colocate.http.connection import HttpConnection
from colocate.http.connections import Connections

BACKLOG = 1024
_SPENT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE = 0.05
"""Seconds until the next try to accept, when there was no file for a connection."""
_OTHER_FILES = 256
"""Files that a process has open besides its callers' connections, with room to spare."""


class Listener:
    """Open sockets that connections are accepted on, until it is closed."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        connections: Connections,
        context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`context` is asked for each connection; without one there is no TLS."""
        self.sockets = sockets
        self._connections = connections
        self._context = context
        self._arrivals: set[asyncio.Task[None]] = set()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        for sock in sockets:
            self._open(sock)

    def close(self) -> None:
        """Accept no more connections; those that are open stay, handshakes are ended. May be called twice."""
        for sock in self.sockets:
            if sock.fileno() < 0:
                continue
            self._loop.remove_reader(sock)
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for pause in self._pauses.values():
            pause.cancel()
        for arrival in self._arrivals:
            arrival.cancel()

    async def closed(self) -> None:
        """Return once no connection is between the door and a place, after `close`."""
        await asyncio.gather(*self._arrivals, return_exceptions=True)

    def _open(self, listening: socket.socket) -> None:
        # Called once a turn of the loop. A connection that is let in is read from before the next comes, or a crowd
        # would push out those that it has overtaken. No task waits for a connection: one that is cancelled loses it.
        self._pauses.pop(listening, None)
        self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if error.errno in _SPENT:
                self._connections.make_room()
            # Any other is the connection's own: it was there and is gone.
            self._loop.remove_reader(listening)
            self._pauses[listening] = self._loop.call_later(_PAUSE, self._open, listening)
            return
        sock.setblocking(False)
        connection = self._connections.admit(sock)
        if connection is None:
            sock.close()
            return
        arrival = connection.arrival = asyncio.create_task(self._arrive(sock, connection))
        self._arrivals.add(arrival)
        # Not in the task itself: one that is cancelled before it began does nothing.
        arrival.add_done_callback(partial(self._arrived, sock, connection))

    async def _arrive(self, sock: socket.socket, connection: HttpConnection) -> None:
        loop = asyncio.get_running_loop()
        context = self._context() if self._context is not None else None
        patience = self._connections.limits.header_timeout if context else None
        # No handshake, or none in time, is an OSError: no caller is there to be told.
        with suppress(OSError):
            if sock.family is not socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                lambda: connection, sock, ssl=context, ssl_handshake_timeout=patience
            )

    def _arrived(self, sock: socket.socket, connection: HttpConnection, arrival: asyncio.Task[None]) -> None:
        self._arrivals.discard(arrival)
        connection.arrival = None
        if connection.transport is None:
            self._connections.places.leave(connection)
            sock.close()


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on an address, on each that its name has; an OSError where that cannot be."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            sock.setblocking(False)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def connections_within_files(wanted: int) -> int:
    """How many of the wanted connections this process has files for; its limit is raised as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, max(soft - _OTHER_FILES, soft // 2))
