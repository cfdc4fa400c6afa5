"""The two servers that are compared, each for a process of its own; the port is printed once it listens."""

import asyncio
from collections.abc import Sequence

import uvloop
from aiohttp import web

from bench.extender_questions import node_names
from colocate import telemetry
from colocate.apps.scheduler.judge import Judge, Sieved
from colocate.apps.scheduler.server import serving
from colocate.apps.scheduler.settings import Endpoint, Server
from colocate.clock import SystemClock
from colocate.wire.extender import Asked

_ANY_PORT = "127.0.0.1:0"
_MOST = 5000


class TableJudge:
    """Looks every candidate up in a table of scores, and has no node out of the question."""

    def __init__(self, names: Sequence[str]) -> None:
        self._scores = {name: number % 101 for number, name in enumerate(names)}

    def prioritize(self, asked: Asked) -> list[int]:
        return list(map(self._scores.__getitem__, asked.names))

    def filter(self, asked: Asked) -> Sieved:
        return Sieved()

    def unready(self) -> Sequence[str]:
        return ()


def judge() -> Judge:
    """Who judges in this bench."""
    return TableJudge(node_names(_MOST))


def serve(kind: str) -> None:
    telemetry.configure_logs("json", "error")
    uvloop.run({"ours": _ours, "echo": _echo}[kind]())


async def _ours() -> None:
    async with serving(Server(address=Endpoint(_ANY_PORT)), judge(), SystemClock()) as listening:
        print(listening.port, flush=True)
        await asyncio.Event().wait()


async def _echo() -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), content_type="application/json")

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{verb}", echo)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()
