"""Twenty plugins in one process: what each costs, compared with one plugin alone and with bare gRPC.

Times are from the start, or from the moment at which a restarted kubelet has its new socket, until the
kubelet has a list of every plugin, divided by the number of plugins; kubelet and plugins share one loop.
Memory is that of a process of its own, with the kubelet outside: how it grows from one plugin to twenty.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from bench import growing
from bench.growing import FEW, MANY
from bench.listening_kubelet import ListeningKubelet, listening_kubelet
from bench.measure import Measured, Sample, side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate import telemetry
from colocate.kubelet import Plugins, Settings

START = Ratio("start of 20 plugins, per plugin", "one plugin alone", 1.5)
RESTART = Ratio("kubelet restart with 20 plugins, per plugin", "one plugin alone", 1.5)
MEMORY = Ratio("memory of each further plugin", "a bare gRPC server with a stream", 6.0)
RATIOS = (START, RESTART, MEMORY)


def bench() -> list[Row]:
    telemetry.configure_logs("json", "error")
    return uvloop.run(_bench())


async def _bench() -> list[Row]:
    async with listening_kubelet() as crowded, listening_kubelet() as lonely:
        start = await side_by_side(_start(crowded, MANY), _start(lonely, FEW))
        async with _running(crowded, MANY), _running(lonely, FEW):
            restart = await side_by_side(_restart(crowded, MANY), _restart(lonely, FEW))
    memory = await side_by_side(growing.per_plugin, growing.per_bare_server, warm_up=0, at_least=5, seconds=0)
    return [
        START.row(start.ratio, *_times(start)),
        RESTART.row(restart.ratio, *_times(restart)),
        MEMORY.row(
            memory.ratio,
            Figure("plugin", memory.ours / 1000, "kB"),
            Figure("bare", memory.theirs / 1000, "kB"),
            Figure("rounds", memory.rounds),
        ),
    ]


def _start(kubelet: ListeningKubelet, plugins: int) -> Sample:
    async def sample() -> float:
        started = time.perf_counter()
        async with _running(kubelet, plugins):
            took = time.perf_counter() - started
        return took / plugins

    return sample


def _restart(kubelet: ListeningKubelet, plugins: int) -> Sample:
    async def sample() -> float:
        await kubelet.stop()
        await kubelet.start()
        started = time.perf_counter()
        await kubelet.listed(plugins)
        return (time.perf_counter() - started) / plugins

    return sample


@asynccontextmanager
async def _running(kubelet: ListeningKubelet, plugins: int) -> AsyncIterator[None]:
    """So many plugins, registered and listed."""
    group = Plugins(
        *(growing.Small(number) for number in range(plugins)), settings=Settings(paths=kubelet.paths)
    )
    running = asyncio.create_task(group.run())
    await kubelet.listed(plugins)
    try:
        yield
    finally:
        group.stop()
        await running
        await kubelet.forget()


def _times(measured: Measured) -> list[Figure]:
    return [
        Figure("each of 20", 1000 * measured.ours, "ms"),
        Figure("all of them", 1000 * MANY * measured.ours, "ms"),
        Figure("one alone", 1000 * measured.theirs, "ms"),
        Figure("rounds", measured.rounds),
    ]
