"""Since when a pod is on its node, and a node in the cluster: by our own clock, whatever the API server's shows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest

from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.resources import NODES, PODS, Object
from colocate.lab.api.server import ApiServer
from colocate.load import LoadSettings, LoadTable
from colocate.load.settings import LedgerSettings
from colocate.model.load import BoundPod
from colocate.scheduler.loop.table_feed import TableFeed
from tests.cluster.serving import connect, new_server
from tests.load.facts import load
from tests.support.waiting import until

WINDOW = 60.0


def pod_of(name: str, node: str = "") -> Object:
    spec = {"containers": [{"name": "main", "image": "x"}], **({"nodeName": node} if node else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _name(bound: BoundPod) -> str:
    return bound.pod.key.removeprefix("default/")


class Watching:
    """A cluster whose API server has a clock of its own, and the facts of a process that comes to look."""

    def __init__(
        self, server: ApiServer, server_clock: ManualClock, clock: ManualClock, client: Client
    ) -> None:
        self.server = server
        self.server_clock = server_clock
        self.clock = clock
        self.client = client
        table = LoadTable(LoadSettings(ledger=LedgerSettings(window=WINDOW)))
        self.facts = TableFeed(table, Mock(), client, clock)

    @property
    def now(self) -> float:
        return self.clock.time()

    async def create(self, name: str, node: str = "") -> None:
        await self.client.create(PODS, pod_of(name, node), "default")

    async def add_node(self, name: str) -> None:
        await self.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    async def bind(self, name: str) -> None:
        await self.client.bind(name, "n", "default")

    async def place(self, name: str) -> None:
        await self.create(name)
        await self.bind(name)

    async def make_prod(self, name: str) -> None:
        labels = {"koordinator.sh/qosClass": "LS"}
        await self.client.patch(PODS, name, {"metadata": {"labels": labels}}, "default")

    async def passes(self, seconds: float) -> None:
        await self.server_clock.advance(seconds)
        await self.clock.advance(seconds)

    def sampled(self) -> None:
        self.facts.table.observe({"n": load(10, 10, at=self.now)}, self.now)

    async def seen(self, name: str) -> BoundPod:
        await until(lambda: name in self.bound, f"{name} on its node")
        return self.bound[name]

    @property
    def bound(self) -> dict[str, BoundPod]:
        return {_name(one): one for one in self.facts.table.pods.bound.values()}

    @property
    def unseen(self) -> set[str]:
        """The pods that no sample shows yet."""
        return {name for name, one in self.bound.items() if one.pod.uid in self.facts.table.ledger.bound}

    async def age(self, node: str) -> float:
        await until(lambda: node in self.facts.table.nodes, f"{node} in the table")
        created = self.facts.table.nodes[node].created
        assert created is not None
        return self.now - created

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(cache.run()) for cache in (self.facts.nodes, self.facts.pods)]
        try:
            await self.facts.synced()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(params=[0.0, -3600.0, 3600.0], ids=["agrees", "behind", "ahead"])
async def watching(request: pytest.FixtureRequest) -> AsyncIterator[Watching]:
    clock = ManualClock()
    server_clock = ManualClock(clock.time() + request.param)
    server = new_server(server_clock)
    await server.start(tls=False)
    async with connect(server.url, clock) as client:
        yield Watching(server, server_clock, clock, client)
    await server.stop()


async def test_a_binding_that_was_seen_counts_from_then(watching: Watching) -> None:
    await watching.create("known")
    async with watching.looking():
        await watching.passes(30)
        watching.sampled()
        await watching.bind("known")
        await watching.create("new", "n")
        assert (await watching.seen("known")).bound_at == watching.now
        assert (await watching.seen("new")).bound_at == watching.now
        watching.sampled()
        assert watching.unseen == {"known", "new"}
        await watching.passes(WINDOW)
        watching.sampled()
        assert watching.unseen == set()


async def test_what_else_changes_of_a_pod_does_not_make_it_new(watching: Watching) -> None:
    async with watching.looking():
        await watching.place("p")
        at = (await watching.seen("p")).bound_at
        # Less than a watch lives: opening another may sleep first, and this clock stands still by then.
        await watching.passes(30)
        await watching.make_prod("p")
        await until(lambda: watching.bound["p"].pod.prod, "another class")
        assert watching.bound["p"].bound_at == at


async def test_no_binding_is_of_the_future_once_our_clock_is_set_back(watching: Watching) -> None:
    async with watching.looking():
        await watching.place("p")
        await watching.seen("p")
        watching.clock.jump(-1000)
        await watching.make_prod("p")
        await until(lambda: watching.bound["p"].pod.prod, "another class")
        assert watching.bound["p"].bound_at == watching.now


async def test_a_list_that_is_read_again_makes_no_pod_new(watching: Watching) -> None:
    await watching.place("before")
    await watching.passes(200)
    async with watching.looking():
        await watching.place("after")
        seen = [(await watching.seen(name)).bound_at for name in ("before", "after")]
    for name in ("before", "after"):
        await watching.make_prod(name)
    watching.server.store.expire()
    async with watching.looking():
        while not watching.facts.pods.health.relists:
            await watching.passes(1)
            await asyncio.sleep(0.01)
        assert all(one.pod.prod for one in watching.bound.values())
        assert [watching.bound[name].bound_at for name in ("before", "after")] == seen


async def test_of_a_pod_that_was_there_before_the_api_tells_by_its_own_clock(watching: Watching) -> None:
    await watching.place("old")
    await watching.passes(200)
    await watching.place("young")
    await watching.passes(20)
    watching.sampled()
    async with watching.looking():
        assert (await watching.seen("old")).bound_at == pytest.approx(watching.now - 220, abs=1)
        assert (await watching.seen("young")).bound_at == pytest.approx(watching.now - 20, abs=1)
        assert watching.unseen == {"young"}


async def test_a_node_is_as_old_as_it_really_is(watching: Watching) -> None:
    await watching.add_node("old")
    await watching.passes(400)
    async with watching.looking():
        await watching.add_node("new")
        assert await watching.age("old") == pytest.approx(400, abs=1)
        assert await watching.age("new") == pytest.approx(0, abs=1)
