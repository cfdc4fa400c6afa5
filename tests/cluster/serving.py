"""Servers for these tests: the embedded one, one that says what it is told to, and a wire that can be cut."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from colocate.clock import Clock
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Connection, Login
from colocate.cluster.secret import Secret
from colocate.lab.api.registry import Identities
from colocate.lab.api.server import ApiServer
from colocate.lab.api.store import ObjectStore
from colocate.lab.api.users import MASTERS, User, known

TOKEN = "admin-token"
ADMIN = known("kubernetes-admin", MASTERS)


def new_server(
    clock: Clock, store: ObjectStore | None = None, seed: int = 1, tokens: dict[str, User] | None = None
) -> ApiServer:
    """A server that knows the administrator by TOKEN."""
    return ApiServer(store or ObjectStore(), clock, Identities(seed), {TOKEN: ADMIN} | (tokens or {}))


def connect(
    url: str, clock: Clock, token: str = TOKEN, settings: ClientSettings | None = None, chance: float = 0.0
) -> Client:
    """A client whose luck is always the same."""
    connection = Connection(url, "the test", login=Login(token=Secret(token)))
    return Client(connection, clock, settings, random=lambda: chance)


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Scripted:
    """A server that answers what the test has put down for the next request; then, always the last."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.seen: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.asked = asyncio.Event()
        self.url = ""

    def say(self, code: int = 200, body: bytes = b"{}", **headers: str) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return web.Response(status=code, body=body, content_type="application/json", headers=named)

        self.answers.append(answer)

    def hang(self) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            await asyncio.Event().wait()
            raise AssertionError

        self.answers.append(answer)

    def cut(self, start: bytes = b"") -> None:
        """Begin an answer and drop the connection."""

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.content_length = len(start) + 1000
            if start:
                await response.prepare(request)
                await response.write(start)
            assert request.transport is not None
            request.transport.abort()
            return response

        self.answers.append(answer)

    @property
    def methods(self) -> list[str]:
        return [request.method for request in self.seen]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.read())
        self.asked.set()
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return await answer(request)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Scripted"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


class Wire:
    """A TCP proxy on one port, to a server that may move, with connections that can be cut."""

    def __init__(self) -> None:
        self.target = 0
        """The port behind it; 0 while there is none: connections are closed at once."""
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def lead_to(self, server: ApiServer) -> None:
        self.target = int(server.url.rpartition(":")[2])

    def cut(self) -> None:
        """Reset every connection."""
        for writer in list(self._open):
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            if not self.target:
                return
            behind, onwards = await asyncio.open_connection("127.0.0.1", self.target)
            self._open.add(onwards)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_copy(reader, onwards))
                    group.create_task(_copy(behind, writer))
            finally:
                self._open.discard(onwards)
                onwards.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        except ExceptionGroup:
            pass
        finally:
            self._open.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    # The other half ends with this one: no server here writes after its client has finished.
    raise ConnectionResetError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment() -> dict[str, str]:
    """This process's, for children that must not find a cluster of the machine."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
