"""A Prometheus that says of every node what the test wants, always as of now; and ways in which it fails."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from tests.cluster.serving import Scripted
from tests.cluster.usage.fake import CPU, MEMORY, TIME, Answer, Table, vector

P95 = [f"quantile_over_time(0.95, {series}[1h])" for series in (CPU, MEMORY)]
DEVIATIONS = [f"stddev_over_time({series}[15m])" for series in (CPU, MEMORY)]
NAMES = ("n1", "n2", "n3")
CALM = dict.fromkeys(NAMES, (10.0, 20.0))
ONE_HOT = CALM | {"n2": (10.0, 95.0)}
HALF = vector({"n1": 20})[:-20]


class Pretended:
    """What each node uses, in percent of CPU and of memory."""

    def __init__(self, table: Table, uses: Mapping[str, tuple[float, float]]) -> None:
        self.table = table
        self.uses = dict(uses)
        self.well()

    @property
    def url(self) -> str:
        return self.table.url

    def well(self) -> None:
        """Nodes are as they always were: the percentile is the use, and there is no deviation."""
        for query, answer in zip(P95, (self._cpu, self._memory), strict=True):
            self.table.do(query, answer)
        for query in DEVIATIONS:
            self.table.do(query, self._nothing)
        for query, answer in ((CPU, self._cpu), (MEMORY, self._memory), (TIME, self._time)):
            self.table.do(query, answer)

    def ill(self, answer: Answer) -> None:
        for query in (CPU, MEMORY, TIME, *P95, *DEVIATIONS):
            self.table.do(query, answer)

    async def _cpu(self, request: web.Request) -> web.StreamResponse:
        return _vector({name: cpu for name, (cpu, _) in self.uses.items()})

    async def _memory(self, request: web.Request) -> web.StreamResponse:
        return _vector({name: memory for name, (_, memory) in self.uses.items()})

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        return _vector(dict.fromkeys(self.uses, 0.0))

    async def _time(self, request: web.Request) -> web.StreamResponse:
        return _vector(dict.fromkeys(self.uses, time.time()))


def _vector(values: Mapping[str, object]) -> web.Response:
    return web.Response(body=vector(values, time.time()), content_type="application/json")


async def slow(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def internal_error(request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="boom")


async def html(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>log in, please</html>", content_type="text/html")


async def half(request: web.Request) -> web.StreamResponse:
    return web.Response(body=HALF, content_type="application/json")


async def other_schema(request: web.Request) -> web.StreamResponse:
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [{"values": [[1, "2"]]}]}}
    return web.Response(text=json.dumps(answer), content_type="application/json")


async def nonsense(request: web.Request) -> web.StreamResponse:
    zeros = b'{"status":"success","data":{"resultType":"vector","result":[0' + b",0" * 400_000 + b"]}}"
    return web.Response(body=zeros, content_type="application/json")


async def hundred_megabytes(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    try:
        for _ in range(100):
            await response.write(b" " * (1 << 20))
    except ConnectionError:
        pass
    return response


FAULTS = (slow, internal_error, html, half, other_schema, nonsense, hundred_megabytes)


@asynccontextmanager
async def pretending(uses: Mapping[str, tuple[float, float]]) -> AsyncIterator[Pretended]:
    async with Scripted().running() as scripted:
        yield Pretended(Table(scripted), uses)
