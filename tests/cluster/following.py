"""Caches of config maps for tests, and a listener that believes nothing but what it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from colocate.clock import ManualClock
from colocate.cluster.changes import Added, Change, Deleted, Key, Modified
from colocate.cluster.client import Client
from colocate.cluster.resources import CONFIG_MAPS, Selection
from colocate.cluster.watch_cache import WatchCache, WatchSettings
from colocate.lab.api.deletion import delete
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import CONFIG_MAPS as STORED
from colocate.lab.api.server import ApiServer


class Map(msgspec.Struct, frozen=True):
    """What these tests read of a config map. Its data must be texts: one that has not cannot be read."""

    class Metadata(msgspec.Struct, frozen=True):
        uid: str

    metadata: Metadata
    data: dict[str, str] = {}


MAPS = CONFIG_MAPS.read_as(Map)
DEFAULT = Selection("default")


class Listener:
    """Adds up the changes, and checks that each makes sense after the one before."""

    def __init__(self) -> None:
        self.objects: dict[Key, Map] = {}
        self.told: list[str] = []

    def __call__(self, change: Change[Map]) -> None:
        key = change.key
        match change:
            case Added():
                assert key not in self.objects
                self.objects[key] = change.new
            case Modified():
                assert self.objects[key] == change.old
                assert change.old != change.new
                self.objects[key] = change.new
            case Deleted():
                assert self.objects.pop(key).metadata.uid == change.last.metadata.uid
        self.told.append(f"{type(change).__name__} {key.name}")

    def take(self) -> list[str]:
        told, self.told = self.told, []
        return told


class Following:
    """A cache that runs, with its listener."""

    def __init__(self, client: Client, settings: WatchSettings | None = None) -> None:
        self.cache = WatchCache(client, MAPS, DEFAULT, settings, random=lambda: 0.0)
        self.listener = Listener()
        self.cache.add_handler(self.listener)
        self.by_value = self.cache.add_index(lambda one: one.data.get("value"))

    async def told(self, *changes: str) -> None:
        """Wait for just these changes."""
        while len(self.listener.told) < len(changes):
            await self.cache.changed.beyond(self.cache.changed.count)
        assert self.listener.take() == list(changes)


@asynccontextmanager
async def following(client: Client, settings: WatchSettings | None = None) -> AsyncIterator[Following]:
    """A cache that has seen everything that is there."""
    made = Following(client, settings)
    task = asyncio.create_task(made.cache.run())
    try:
        async with asyncio.timeout(30):
            await made.cache.synced()
            yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def put(server: ApiServer, name: str, value: str = "") -> None:
    """Make or change a config map behind the client's back."""

    def change(body: Object) -> None:
        body["data"] = {"value": value}

    if server.registry.find(STORED, "default", name):
        server.registry.modify(STORED, "default", name, change)
    else:
        body = {"metadata": {"name": name}, "data": {"value": value}}
        server.registry.create(STORED, "default", body)


def drop(server: ApiServer, name: str) -> None:
    delete(server.registry, STORED, "default", name)


def held(server: ApiServer) -> dict[Key, Map]:
    """What the server has, in the cache's shape."""
    return {
        Key("default", one.key.name): msgspec.convert(one.body, Map)
        for one in server.store.items(STORED.storage, "default")
    }


def key(name: str) -> Key:
    return Key("default", name)


async def pass_time(clock: ManualClock, seconds: float) -> None:
    """Let time pass in steps, so that sockets can keep up with it."""
    left = seconds
    while left > 0:
        await clock.advance(min(left, 1.0))
        await asyncio.sleep(0.001)
        left -= 1.0
