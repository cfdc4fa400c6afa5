"""Clients of an API server, in a process of their own: what they decode is not on the server's core.

The process takes one order after the other as lines of JSON on its standard input, and answers each with a
line. It reads all that it is sent and understands none of it.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import uvloop

from bench.child import child
from colocate.errors import ColocateError
from colocate.lab.api.server import ApiServer

PATIENCE = 60
"""Seconds for any one order, so that a bench fails rather than hangs."""

IN_FLIGHT = 10
"""How many bindings are under way at a time."""

_PODS = "/api/v1/pods"


class Target(msgspec.Struct, frozen=True):
    """A server, and what opens it."""

    url: str
    token: str


class ListPods(msgspec.Struct, frozen=True, tag=True):
    """List all pods once."""

    target: Target


class WatchPods(msgspec.Struct, frozen=True, tag=True):
    """Watch all pods from a revision on with so many clients, until each has so many changes.

    There are two answers: one when all of them watch, one when all of them have everything.
    """

    target: Target
    revision: int
    clients: int
    changes: int


class BindPods(msgspec.Struct, frozen=True, tag=True):
    """Bind pods of the namespace default to nodes."""

    target: Target
    bindings: dict[str, str]
    """Nodes by the names of the pods."""


class Done(msgspec.Struct, frozen=True):
    """How long it took, and how much was read."""

    seconds: float = 0.0
    read: int = 0


class Clients:
    """The process, from outside."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def order(self, order: ListPods | WatchPods | BindPods) -> Done:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        return await self.answer()

    async def answer(self) -> Done:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
        if not line:
            raise ColocateError("the clients of the API server ended before they were done; see above")
        return msgspec.json.decode(line, type=Done)


def target(server: ApiServer) -> Target:
    return Target(server.url, server.admin().token)


@asynccontextmanager
async def clients() -> AsyncIterator[Clients]:
    """The process, for the time of a block."""
    async with child("-c", "from bench.api_clients import obey; obey()") as process:
        yield Clients(process)


# --- in that process ---------------------------------------------------------------------------------


def obey() -> None:
    uvloop.run(_obey())


async def _obey() -> None:
    orders = msgspec.json.Decoder(ListPods | WatchPods | BindPods)
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        order = orders.decode(line)
        async with aiohttp.ClientSession(
            order.target.url,
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Authorization": f"Bearer {order.target.token}"},
            raise_for_status=True,
            timeout=aiohttp.ClientTimeout(total=PATIENCE),
            read_bufsize=1 << 20,
        ) as session:
            match order:
                case ListPods():
                    done = await _list(session)
                case WatchPods():
                    done = await _watch(session, order)
                case BindPods():
                    done = await _bind(session, order)
        _say(done)


async def _list(session: aiohttp.ClientSession) -> Done:
    read = 0
    started = time.perf_counter()
    async with session.get(_PODS) as response:
        async for data in response.content.iter_any():
            read += len(data)
    return Done(time.perf_counter() - started, read)


async def _watch(session: aiohttp.ClientSession, order: WatchPods) -> Done:
    query = {"watch": "1", "resourceVersion": str(order.revision)}
    watches = await asyncio.gather(*(session.get(_PODS, params=query) for _ in range(order.clients)))
    _say(Done())
    started = time.perf_counter()
    read = await asyncio.gather(*(_changes(response, order.changes) for response in watches))
    return Done(time.perf_counter() - started, sum(read))


async def _changes(watch: aiohttp.ClientResponse, wanted: int) -> int:
    """Read until so many changes have come, a line each; returns how many bytes that were."""
    lines = read = 0
    async for data in watch.content.iter_any():
        read += len(data)
        lines += data.count(b"\n")
        if lines >= wanted:
            watch.close()
            return read
    raise ColocateError(f"a watch of pods ended after {lines} of {wanted} changes; is the history too short?")


async def _bind(session: aiohttp.ClientSession, order: BindPods) -> Done:
    left = iter(order.bindings.items())

    async def some() -> None:
        for pod, node in left:
            body = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": node}}
            async with session.post(f"/api/v1/namespaces/default/pods/{pod}/binding", json=body) as response:
                await response.read()

    started = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
    return Done(time.perf_counter() - started)


def _say(done: Done) -> None:
    print(msgspec.json.encode(done).decode(), flush=True)
