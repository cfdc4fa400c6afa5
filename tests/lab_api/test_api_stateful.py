"""A client that lists and watches has what the store has after every quiet moment, come what may."""

import asyncio
import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from colocate.clock import ManualClock
from colocate.lab.api.deletion import delete
from colocate.lab.api.lists import select
from colocate.lab.api.query import ListQuery
from colocate.lab.api.registry import ObjectRegistry
from colocate.lab.api.representation import ObjectView, Renderer
from colocate.lab.api.resources import CONFIG_MAPS, NAMESPACES
from colocate.lab.api.store import ObjectStore
from colocate.lab.api.watch import Watch, subject

names = st.sampled_from("abcd")
marks = st.sampled_from(["yes", "no"])


class Client:
    """Follows a selection: lists, watches, and lists again when it is told 410."""

    def __init__(self, store: ObjectStore, clock: ManualClock, selector: str) -> None:
        self._store, self._clock, self._selector = store, clock, selector
        self.objects: dict[str, str] = {}
        self.version = ""
        self._watch: Any = None
        self._pending: asyncio.Task[bytes] | None = None
        self._stopping: asyncio.Future[None] | None = None
        self.relists = 0
        self.relist()

    def relist(self) -> None:
        selection = ListQuery({"labelSelector": self._selector}).selection("configmaps")
        found = select(self._store, CONFIG_MAPS, "default", selection)
        self.objects = {one.key.name: one.body["metadata"]["resourceVersion"] for one in found}
        self.version = str(self._store.revision)
        self.relists += 1

    async def disconnect(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        if self._watch is not None:
            await self._watch.aclose()
        self._watch = self._pending = None

    async def catch_up(self) -> None:
        """Take everything that the watch has to say now."""
        for _ in range(10):
            if self._watch is None:
                self._connect()
            if self._pending is None:
                self._pending = asyncio.ensure_future(anext(self._watch, b""))
            for _ in range(3):
                await asyncio.sleep(0)
            if not self._pending.done():
                return
            lines, self._pending = self._pending.result(), None
            for line in lines.splitlines():
                self._read(json.loads(line))
            if not lines:
                await self.disconnect()

    def _connect(self) -> None:
        query = ListQuery(
            {"labelSelector": self._selector, "resourceVersion": self.version, "allowWatchBookmarks": "1"}
        )
        self._stopping = asyncio.get_running_loop().create_future()
        watched = subject(CONFIG_MAPS, "default", query)
        watch = Watch(self._store, self._clock, watched, Renderer(CONFIG_MAPS, ObjectView(), 0.0))
        self._watch = watch.lines(self._stopping)

    def _read(self, line: Any) -> None:
        if line["type"] == "ERROR":
            assert line["object"]["code"] == 410
            self.relist()
            return
        marked = line["object"]["metadata"]
        assert int(marked["resourceVersion"]) > int(self.version) or line["type"] == "BOOKMARK"
        self.version = marked["resourceVersion"]
        match line["type"]:
            case "ADDED":
                assert marked["name"] not in self.objects
                self.objects[marked["name"]] = self.version
            case "MODIFIED":
                assert marked["name"] in self.objects
                self.objects[marked["name"]] = self.version
            case "DELETED":
                del self.objects[marked["name"]]


class Follow(RuleBasedStateMachine):
    """Objects come, change and go; history is expired, connections are dropped, time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self.clock = ManualClock()
        self.store = ObjectStore(history=3)
        self.registry = ObjectRegistry(self.store, self.clock)
        self.registry.create(NAMESPACES, "", {"metadata": {"name": "default"}})
        self.clients = [Client(self.store, self.clock, selector) for selector in ("", "on=yes", "on!=yes")]

    @rule(name=names, mark=marks)
    def create(self, name: str, mark: str) -> None:
        body = {"metadata": {"name": name, "labels": {"on": mark}}}
        if not self.registry.find(CONFIG_MAPS, "default", name):
            self.registry.create(CONFIG_MAPS, "default", body)

    @rule(name=names, mark=marks, value=st.integers(0, 3))
    def change(self, name: str, mark: str, value: int) -> None:
        def write(body: Any) -> None:
            body["metadata"]["labels"] = {"on": mark}
            body["data"] = {"value": str(value)}

        if self.registry.find(CONFIG_MAPS, "default", name):
            self.registry.modify(CONFIG_MAPS, "default", name, write)

    @rule(taken=st.lists(st.tuples(names, marks, st.integers(0, 3)), min_size=4, max_size=8))
    def burst(self, taken: list[tuple[str, str, int]]) -> None:
        """More than the store remembers, before anybody has read it."""
        for name, mark, value in taken:
            self.create(name=name, mark=mark)
            self.change(name=name, mark=mark, value=value)

    @rule(name=names)
    def remove(self, name: str) -> None:
        if self.registry.find(CONFIG_MAPS, "default", name):
            delete(self.registry, CONFIG_MAPS, "default", name)

    @rule()
    def expire(self) -> None:
        self.store.expire()

    @rule(which=st.integers(0, 2))
    def drop(self, which: int) -> None:
        self.loop.run_until_complete(self.clients[which].disconnect())

    @rule(seconds=st.sampled_from([1, 61, 1801]))
    def wait(self, seconds: int) -> None:
        self.loop.run_until_complete(self.clock.advance(seconds))

    quiet = False

    @rule()
    def settle(self) -> None:
        for client in self.clients:
            self.loop.run_until_complete(client.catch_up())
        self.quiet = True

    @precondition(lambda self: self.quiet)
    @invariant()
    def clients_have_what_the_store_has(self) -> None:
        self.quiet = False
        held = {one.key.name: one.body["metadata"] for one in self.store.items(CONFIG_MAPS.storage)}
        for client, wanted in zip(self.clients, (("yes", "no"), ("yes",), ("no",)), strict=True):
            expected = {name for name, marked in held.items() if marked["labels"]["on"] in wanted}
            assert set(client.objects) == expected
            for name, version in client.objects.items():
                assert version == held[name]["resourceVersion"]

    def teardown(self) -> None:
        async def leave() -> None:
            for client in self.clients:
                await client.disconnect()

        self.loop.run_until_complete(leave())
        self.loop.close()


TestFollow = Follow.TestCase
TestFollow.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
