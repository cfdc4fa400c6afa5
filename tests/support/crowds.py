"""Many bare sockets at once, as an attacker opens them: what each sends is said, and none is closed by itself."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_AT_ONCE = 50


class Crowd:
    """Sockets of an attacker."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sockets: list[socket.socket] = []

    async def come(self, count: int, sending: bytes = b"", source: str = "127.0.0.1") -> None:
        """So many more, from an address of this machine; whoever is turned away does not mind."""
        while count > 0:
            await asyncio.gather(*(self._one(sending, source) for _ in range(min(count, _AT_ONCE))))
            count -= _AT_ONCE

    async def _one(self, sending: bytes, source: str) -> None:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        self.sockets.append(sock)
        sock.bind((source, 0))
        await loop.sock_connect(sock, ("127.0.0.1", self._port))
        if sending:
            try:
                await loop.sock_sendall(sock, sending)
            except ConnectionError:
                pass

    def left(self) -> int:
        """How many the other side has not closed."""
        return sum(_is_open(sock) for sock in self.sockets)


@asynccontextmanager
async def crowd(port: int) -> AsyncIterator[Crowd]:
    made = Crowd(port)
    try:
        yield made
    finally:
        for sock in made.sockets:
            sock.close()


def allow_files(count: int) -> None:
    """Let this process have so many files open, as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def _is_open(sock: socket.socket) -> bool:
    try:
        while data := sock.recv(1 << 16):
            assert data
        return False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
