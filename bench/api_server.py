"""The API server with 500 simulated nodes and 10 000 pods: what lists, watches and bindings cost per object.

Each is compared with the same server that has a tenth of the pods. What is linear takes ten times as long; a
binding, which concerns one pod, takes as long as before. The servers are in this process, over plain HTTP on
loopback; their clients are in another. The best of some rounds counts, since noise only ever adds to a time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import uvloop

from bench.api_clients import BindPods, Clients, Done, ListPods, Target, WatchPods, clients, target
from bench.measure import Sample, side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate import telemetry
from colocate.clock import SystemClock
from colocate.lab.api.deletion import DeleteOptions, delete
from colocate.lab.api.objects import Object, at
from colocate.lab.api.resources import PODS
from colocate.lab.api.server import ApiServer
from colocate.lab.api.store import ObjectStore
from colocate.lab.nodes.shape import generated
from colocate.lab.nodes.simulated import SimulatedNodes

FEW, MANY = 1_000, 10_000
NODES = 500
WATCHES = 20
BINDINGS = 200
BURST = 20
"""How many changes come at a time: the nodes, too, look at all that has happened since they last did."""
CALM = 0.1
"""Seconds for the server to see to what a sample leaves behind, and not during the next one."""

LIST = Ratio("list of 10 000 pods", "of 1 000", 12.0)
FAN_OUT = Ratio("10 000 changes of pods to 20 watches", "1 000 changes", 12.0)
BIND = Ratio("200 bindings among 10 000 pods", "among 1 000", 2.0)
RATIOS = (LIST, FAN_OUT, BIND)

Timed = Callable[[], Awaitable[Done]]


def bench() -> list[Row]:
    telemetry.configure_logs("json", "error")
    return uvloop.run(_bench())


async def _bench() -> list[Row]:
    async with clients() as asking, _cluster(MANY) as many, _cluster(FEW) as few:
        return [
            await _compared(LIST, _list(asking, many), _repeated(_list(asking, few)), rounds=15),
            await _compared(FAN_OUT, _fan_out(asking, many), _repeated(_fan_out(asking, few)), rounds=4),
            await _compared(BIND, _bind(asking, many), _bind(asking, few), rounds=12),
        ]


class Cluster:
    """A server with its nodes and with so many pods, which all run."""

    def __init__(self, pods: int) -> None:
        clock = SystemClock()
        self.server = ApiServer(ObjectStore(), clock)
        self.registry = self.server.registry
        self.shapes = generated(NODES)
        self.simulated = SimulatedNodes(self.registry, clock, self.shapes)
        self.simulated.register()
        self.pods = [f"pod-{number:05}" for number in range(pods)]
        for number, name in enumerate(self.pods):
            self.create(name, self.node(number))

    @property
    def target(self) -> Target:
        return target(self.server)

    def node(self, number: int) -> str:
        return self.shapes[number % NODES].name

    def create(self, name: str, node: str = "") -> None:
        requests = {"cpu": "100m", "memory": "128Mi"}
        spec: Object = {
            "containers": [{"name": "main", "image": "app:1", "resources": {"requests": requests}}]
        }
        if node:
            spec["nodeName"] = node
        pod = {"metadata": {"name": name, "labels": {"app": "bench"}}, "spec": spec}
        self.registry.create(PODS, "default", pod)

    def delete(self, name: str) -> None:
        delete(self.registry, PODS, "default", name, DeleteOptions(gracePeriodSeconds=0))

    def restart(self, name: str) -> None:
        """Change the status of a pod, as its node would when the container has ended."""

        def once_more(pod: Object) -> None:
            pod["status"]["containerStatuses"][0]["restartCount"] += 1

        self.registry.modify(PODS, "default", name, once_more, "status")

    async def all_run(self) -> None:
        """Return once every pod runs."""
        changed = self.server.store.changed
        for name in self.pods:
            while at(self.registry.get(PODS, "default", name).body, "status", "phase") != "Running":
                await changed.beyond(changed.count)


@asynccontextmanager
async def _cluster(pods: int) -> AsyncIterator[Cluster]:
    cluster = Cluster(pods)
    await cluster.server.start(tls=False)
    running = asyncio.create_task(cluster.simulated.run())
    try:
        await cluster.all_run()
        yield cluster
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await cluster.server.stop()


def _list(asking: Clients, cluster: Cluster) -> Timed:
    async def once() -> Done:
        # A pod that comes and goes: no order of the pods is left from the list before.
        cluster.create("passing")
        cluster.delete("passing")
        return await asking.order(ListPods(cluster.target))

    return once


def _fan_out(asking: Clients, cluster: Cluster) -> Timed:
    """Every pod changes once, and every watch tells of it."""

    async def once() -> Done:
        await cluster.all_run()
        revision = cluster.server.store.revision
        await asking.order(WatchPods(cluster.target, revision, WATCHES, len(cluster.pods)))
        for start in range(0, len(cluster.pods), BURST):
            for name in cluster.pods[start : start + BURST]:
                cluster.restart(name)
            await asyncio.sleep(0)
        done = await asking.answer()
        await asyncio.sleep(CALM)
        return done

    return once


def _bind(asking: Clients, cluster: Cluster) -> Timed:
    """Bind the same number of pods among however many."""
    waiting = {f"waiting-{number:03}": cluster.node(number) for number in range(BINDINGS)}

    async def once() -> Done:
        for name in waiting:
            cluster.create(name)
        await asyncio.sleep(CALM)
        done = await asking.order(BindPods(cluster.target, waiting))
        for name in waiting:
            cluster.delete(name)
        await asyncio.sleep(CALM)
        return done

    return once


def _repeated(timed: Timed) -> Timed:
    """What is ten times shorter, done ten times: both sides of a pair then meet as much noise.

    The best of many short samples would be free of it, and the best of as many long ones would not.
    """

    async def once() -> Done:
        times = MANY // FEW
        each = [await timed() for _ in range(times)]
        return Done(sum(done.seconds for done in each) / times, each[0].read)

    return once


async def _compared(ratio: Ratio, many: Timed, few: Timed, *, rounds: int) -> Row:
    """The best times of both, taken in turn."""
    taken: tuple[list[Done], list[Done]] = ([], [])

    def sample(timed: Timed, kept: list[Done]) -> Sample:
        async def once() -> float:
            kept.append(await timed())
            return kept[-1].seconds

        return once

    pair = (sample(timed, kept) for timed, kept in zip((many, few), taken, strict=True))
    await side_by_side(*pair, warm_up=1, at_least=rounds, seconds=0)
    ours, theirs = (min(kept, key=lambda done: done.seconds) for kept in taken)
    return ratio.row(ours.seconds / theirs.seconds, *_figures(ours, theirs), Figure("rounds", rounds))


def _figures(ours: Done, theirs: Done) -> list[Figure]:
    figures = [
        Figure("with 10 000", 1000 * ours.seconds, "ms"),
        Figure("with 1 000", 1000 * theirs.seconds, "ms"),
    ]
    if ours.read:
        figures.append(Figure("read by the clients of 10 000", ours.read / 1e6, "MB"))
    return figures
