"""Choosing GPUs on the scale of a public trace, 1213 nodes: answers of the extender, and a burst of pods booked.

An answer (filter and prioritize, after another pod was booked) is compared with a dict looked into as often,
and with a tenth of the nodes; the first pod of a new kind with the next. In the burst 1000 pods come, ten
binds being under way at any time: its processor time against the ten seconds that 100 pods a second allow, and the
part of the binds that is refused because another pod was quicker.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec
from tests.gpu_scheduler.clusters import gpus
from tests.gpu_scheduler.fake_api import FakeApi, FakeLease, FaultyClient, typed
from tests.gpu_scheduler.test_stateful import Follower

from bench.measure import Sample, side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.lease import LeaseHolder
from colocate.gpus import DOSLAB
from colocate.gpus.packing import PackingPolicy
from colocate.gpus.packing.cluster_book import ClusterBook
from colocate.scheduler.gpus.binder import GpuBinder
from colocate.scheduler.gpus.feed import GpuFeed
from colocate.scheduler.gpus.judge import GpuJudge
from colocate.wire.extender_questions import BindingAsked, read_question

NODES = 1213
PODS = 1000
UNDER_WAY = 10
SIZE = 16384
MEMORIES = (2048, 4096, 6144, 8192, 12288, 16384)

LOOKED_UP = "1213 look-ups in a dict"
ANSWERED = Ratio("1213 nodes filtered and scored for a pod with a GPU", LOOKED_UP, 60.0)
LINEAR = Ratio("1213 nodes filtered and scored for a pod with a GPU", "121 nodes", 12.0)
NEW_KIND = Ratio("1213 nodes scored for the first pod of a kind", "for the next of it", 60.0)
BURST = Ratio("1000 pods with GPUs chosen, booked and bound", "ten seconds", 1.0)
REFUSED = Ratio("binds refused, ten being under way at a time", "all binds", 0.02)
RATIOS = (ANSWERED, LINEAR, NEW_KIND, BURST, REFUSED)


class Cluster:
    """A replica that has the lease, and so many nodes with eight GPUs each."""

    def __init__(self, nodes: int) -> None:
        self.api = FakeApi()
        self.names = [f"node-{number}" for number in range(nodes)]
        for name in self.names:
            self.api.put_node(name, gpus(name, 8, size=SIZE))
        clock, lease = ManualClock(), FakeLease()
        lease.held = True
        self.feed = Follower(self.api, ClusterBook(PackingPolicy.OURS, (DOSLAB,)))
        self.judge = GpuJudge(self.feed, clock, hold=10)
        self.binder = GpuBinder(
            cast(GpuFeed, self.feed),
            cast(Client, FaultyClient(self.api, lease, clock)),
            cast(LeaseHolder, lease),
            clock,
        )
        self.binder.caught_up = True
        self.numbers = itertools.count()
        self.follow()

    def follow(self) -> None:
        self.feed.follow(len(self.api.log))

    def create(self, memory: int, cores: int = 0) -> str:
        name = f"p{next(self.numbers)}"
        self.api.create(name, memory, cores, 1)
        self.follow()
        return name

    def ask(self, name: str) -> str:
        """The best node for a pod, by the two answers that kube-scheduler asks for."""
        question = read_question(
            msgspec.json.encode({"Pod": self.api.pods[name], "Nodes": None, "NodeNames": self.names})
        )
        sieved = self.judge.filter(question, "")
        assert len(sieved.failed) < len(self.names)
        scores = self.judge.prioritize(question, "")
        return self.names[max(range(len(scores)), key=scores.__getitem__)]

    async def bound(self, name: str, node: str) -> bool:
        asked = BindingAsked(name, "default", typed(self.api.pods[name]).uid, node)
        return not await self.binder.bind(asked)


def bench() -> list[Row]:
    return asyncio.run(_bench())


async def _bench() -> list[Row]:
    large, small = Cluster(NODES), Cluster(NODES // 10)
    looked_up = dict.fromkeys(large.names, 50)
    for cluster in (large, small):
        for memory in MEMORIES * 5:
            name = cluster.create(memory)
            await cluster.bound(name, cluster.ask(name))

    def answer(cluster: Cluster) -> Callable[[], object]:
        pods = itertools.cycle([cluster.create(memory) for memory in MEMORIES])
        return lambda: cluster.ask(next(pods))

    asked = await side_by_side(
        _timed(answer(large)), _timed(lambda: [looked_up[name] for name in large.names])
    )
    linear = await side_by_side(_timed(answer(large)), _timed(answer(small)))
    kinds = itertools.count(1)
    fresh: list[str] = []

    def first() -> object:
        fresh[:] = [large.create(1000 + next(kinds))]
        return large.ask(fresh[0])

    new = await side_by_side(_timed(first), _timed(lambda: large.ask(fresh[0])), at_least=10)
    seconds, refused = await _burst()
    return [
        ANSWERED.row(asked.ratio, _ms("answered", asked.ours), _ms("looked up", asked.theirs)),
        LINEAR.row(linear.ratio, _ms("1213 nodes", linear.ours), _ms("121 nodes", linear.theirs)),
        NEW_KIND.row(new.ratio, _ms("first", new.ours), _ms("next", new.theirs)),
        BURST.row(seconds / (PODS / 100), Figure("1000 pods", seconds, "s")),
        REFUSED.row(refused / PODS, Figure("refused", float(refused))),
    ]


async def _burst() -> tuple[float, int]:
    cluster = Cluster(NODES)
    sizes = itertools.cycle(MEMORIES)
    waiting: deque[tuple[str, str]] = deque()
    refused = 0
    started = time.process_time()
    for _ in range(PODS):
        name = cluster.create(next(sizes))
        waiting.append((name, cluster.ask(name)))
        if len(waiting) > UNDER_WAY:
            refused += not await cluster.bound(*waiting.popleft())
    while waiting:
        refused += not await cluster.bound(*waiting.popleft())
    return time.process_time() - started, refused


def _timed(work: Callable[[], object]) -> Sample:
    async def sample() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return sample


def _ms(name: str, seconds: float) -> Figure:
    return Figure(name, seconds * 1000, "ms")
