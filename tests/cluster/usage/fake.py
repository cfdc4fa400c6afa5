"""Prometheus as a table: what each query answers, until the test says otherwise."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from colocate.clock import Clock, ManualClock
from colocate.cluster.usage import (
    KnownNode,
    MetricsApi,
    Prometheus,
    PrometheusSettings,
    UsagePoller,
    UsageSettings,
    UsageSnapshot,
    Window,
)
from colocate.model.load import Amount
from colocate.model.values import Seconds, Size
from tests.cluster.serving import Scripted

CPU = "node_cpu_usage_avg_5m"
MEMORY = "node_mem_usage_avg_5m"
TIME = f"timestamp({MEMORY})"
NODES = [KnownNode(name, (f"10.0.0.{n}",), Amount(4000, 1 << 30)) for n, name in enumerate("abc", start=1)]
EVERY_ROUND = UsageSettings(pods_interval=Seconds(0))
"""Pods are asked for as often as nodes."""
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def vector(values: Mapping[str, object], time: float = 1_700_000_000.0) -> bytes:
    """A good answer, with a series for each node."""
    result = [{"metric": {"node": name}, "value": [time, str(value)]} for name, value in values.items()]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def contested(node: str, ours: float, theirs: float, time: float, others: Mapping[str, float]) -> bytes:
    """An answer in which a tenant's pod has a series of one node, beside those of node-exporter."""
    said = [(name, use, "node-exporter") for name, use in {node: ours, **others}.items()]
    said.append((node, theirs, "tenant"))
    result = [
        {"metric": {"node": name, "job": job}, "value": [time, str(value)]} for name, value, job in said
    ]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


async def passing(clock: ManualClock, work: asyncio.Task[UsageSnapshot]) -> UsageSnapshot:
    """Let time pass until the round is done. Some of it is done in threads, which wait for no clock."""
    while not work.done():
        await clock.advance(0.25)
        await asyncio.sleep(0.001)
    return work.result()


class Table:
    """What each query is answered with; an empty vector where nothing is said."""

    def __init__(self, scripted: Scripted) -> None:
        self._scripted = scripted
        self._bodies: dict[str, tuple[int, bytes, dict[str, str]]] = {}
        self._answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        scripted.answers.append(self._answer)

    @property
    def url(self) -> str:
        return self._scripted.url

    def say(self, query: str, body: bytes, code: int = 200, **headers: str) -> None:
        self._answers.pop(query, None)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._bodies[query] = (code, body, named)

    def do(self, query: str, answer: Answer) -> None:
        self._answers[query] = answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        query = request.query.get("query", "")
        self.asked.append(query)
        if query in self._answers:
            return await self._answers[query](request)
        code, body, headers = self._bodies.get(query, (200, vector({}), {}))
        return web.Response(status=code, body=body, content_type="application/json", headers=headers)


@asynccontextmanager
async def poller(
    url: str,
    clock: Clock,
    metrics_api: MetricsApi | None = None,
    settings: UsageSettings | None = None,
    longest_answer: int = 1 << 20,
    nodes: list[KnownNode] | Callable[[], list[KnownNode]] = NODES,
    pods: bool = False,
    windows: tuple[Window, ...] = (),
) -> AsyncIterator[UsagePoller]:
    """A poller with the queries of the preset real-usage, whose luck is always the same."""
    prometheus = Prometheus(
        PrometheusSettings(url=url, longest_answer=Size(longest_answer)), clock, environ={}
    )
    asked = msgspec.structs.replace(settings or EVERY_ROUND, pods=pods, windows=windows)
    known = nodes if callable(nodes) else lambda: nodes
    try:
        yield UsagePoller(asked, known, clock, prometheus, metrics_api, lambda: 0.0)
    finally:
        await prometheus.close()
