"""The two servers that are compared, each for a process of its own; the port is printed once it listens."""

import asyncio

import uvloop
from aiohttp import web

from bench.extender_questions import node_names
from bench.load_table import cluster
from colocate import telemetry
from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.load import LoadTable
from colocate.load.settings import FilterSettings
from colocate.scheduler.loop.decision_log import DecisionLog
from colocate.scheduler.loop.load_judge import LoadJudge
from colocate.scheduler.loop.table_feed import TableFeed
from colocate.scheduler.process import spare_the_garbage_collector
from colocate.scheduler.sections import Decisions, Load
from colocate.scheduler.server.extender import serving
from colocate.scheduler.server.judge import Judge
from colocate.scheduler.settings import CallerSettings, Server, ServerEndpoint

_ANY_PORT = "127.0.0.1:0"
_MOST = 5000


async def judge(clock: SystemClock) -> Judge:
    """The real one, which knows every node that is asked about, its samples and the pods there."""
    names = node_names(_MOST)
    known = cluster(_MOST, names, clock.time())
    load = Load(filter=FilterSettings(enabled=True))
    settings = load.settings(300.0)
    decisions = DecisionLog(Decisions(), settings, shadow=False)
    facts = TableFeed(
        LoadTable(settings), decisions, Client(Connection("http://127.0.0.1:9", "nobody")), clock
    )
    facts.table.add_nodes(known.nodes)
    facts.table.observe(known.loads, clock.time())
    for bound in known.pods:
        facts.table.bind(bound)
    spare_the_garbage_collector()
    return LoadJudge(facts, decisions, clock)


def serve(kind: str) -> None:
    telemetry.configure_logs("json", "error")
    uvloop.run({"ours": _ours, "echo": _echo}[kind]())


async def _ours() -> None:
    clock = SystemClock()
    settings = Server(address=ServerEndpoint(_ANY_PORT), callers=CallerSettings(anyone=True))
    async with serving(settings, await judge(clock), clock) as listening:
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
