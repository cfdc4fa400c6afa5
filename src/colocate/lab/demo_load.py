"""The demo's step about scheduling by load: a simulated Prometheus in which one node is hot, `colocate scheduler
serve` as a process, and a second scheduler that asks it."""

import asyncio
import json
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from aiohttp import web

from colocate.lab.api.metrics import ANNOTATION
from colocate.lab.api.objects import Object
from colocate.lab.api.quantities import in_binary, in_decimal, parse
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.resources import NODES
from colocate.lab.demo_commands import begin, end
from colocate.lab.scheduler import configuration
from colocate.lab.scheduler.loop import Scheduler

NAME = "mem-real-usage-scheduler"
HOT = 91
COOL = (20, 30, 40)
CPU = 15
_CONFIG = """\
version: 1
log: {{format: json}}
metrics: {{address: "off"}}
server: {{address: "127.0.0.1:{port}", callers: {{tokenFile: "{token_file}"}}}}
usage: {{prometheus: {{url: "{prometheus}"}}, interval: 1s}}
"""
_SECOND_SCHEDULER = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{{schedulerName: {name}}}]
extenders:
  - {{urlPrefix: "{url}", prioritizeVerb: prioritize, weight: 3, nodeCacheCapable: true, ignorable: true}}
"""


class DemoLoad:
    """Runs the servers of the step."""

    def __init__(self, root: Path, nodes: Sequence[str]) -> None:
        self._root = root
        self.hot = nodes[0]
        self._memory = {self.hot: HOT} | {
            name: COOL[number % len(COOL)] for number, name in enumerate(nodes[1:])
        }
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.token_file = root / "scheduler-token"
        self.log = root / "scheduler.log"
        self.process: asyncio.subprocess.Process | None = None
        self._open = AsyncExitStack()

    async def start(self, registry: ObjectRegistry, kubeconfig: Path) -> None:
        for name, memory in self._memory.items():
            # `kubectl top` shows the same figures as the scheduler sees.
            registry.modify(NODES, "", name, partial(_claim, memory))
        prometheus = await self._open.enter_async_context(_pretending(self._memory))
        config = self._root / "scheduler.yaml"
        config.write_text(_CONFIG.format(port=self._port, prometheus=prometheus, token_file=self.token_file))
        token = secrets.token_urlsafe()
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(token)
        url = self.url.replace("://", f"://scheduler:{token}@")
        second = configuration.read(_SECOND_SCHEDULER.format(name=NAME, url=url))
        await self._open.enter_async_context(Scheduler(registry, second))
        words = ["scheduler", "serve", "--config", str(config), "--kubeconfig", str(kubeconfig)]
        self.process = await begin(self.log, *words)

    @property
    def ready(self) -> bool:
        return '"scheduler.ready"' in self.log.read_text()

    async def close(self) -> None:
        if self.process is not None:
            await end(self.process, signal.SIGTERM)
        await self._open.aclose()


def _claim(memory: float, node: Object) -> None:
    """Let a node look as busy as in the simulated Prometheus."""
    size = node["status"]["capacity"]
    used = (("cpu", size["cpu"], CPU, in_decimal), ("memory", size["memory"], memory, in_binary))
    claims = {
        ANNOTATION + name: shown(parse(whole) * round(share) / 100) for name, whole, share, shown in used
    }
    node["metadata"].setdefault("annotations", {}).update(claims)


@asynccontextmanager
async def _pretending(memory: Mapping[str, float]) -> AsyncIterator[str]:
    """A simulated Prometheus with these memory figures, and 15 % CPU on every node."""

    async def answer(request: web.Request) -> web.Response:
        asked = str((await request.post()).get("query") or request.query.get("query", ""))
        now = time.time()
        values: Mapping[str, float] = memory
        if asked.startswith("timestamp"):
            values = dict.fromkeys(memory, now)
        elif asked.startswith("stddev"):
            values = dict.fromkeys(memory, 0)
        elif "cpu" in asked:
            values = dict.fromkeys(memory, CPU)
        series = [
            {"metric": {"node": node}, "value": [now, str(value)]}
            for node, value in (values.items() if "node_" in asked else ())
        ]
        body = {"status": "success", "data": {"resultType": "vector", "result": series}}
        return web.Response(text=json.dumps(body), content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/api/v1/query", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
