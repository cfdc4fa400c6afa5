"""The watch cache before servers that say what no API server should, or say nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.errors import Doing
from colocate.cluster.watch_cache import WatchCache
from colocate.cluster.watch_stream import events
from colocate.lab.api.store import ObjectStore
from tests.support.nesting import DEEP
from tests.support.waiting import until

from .following import DEFAULT, MAPS, Following, following, key, pass_time, put
from .serving import Scripted, Wire, connect, new_server


def listed(*objects: Any, version: str = "5", **metadata: Any) -> bytes:
    return msgspec.json.encode({"metadata": {"resourceVersion": version, **metadata}, "items": list(objects)})


def config_map(name: str, value: object = "1", version: str = "5") -> Any:
    marks = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": version}
    return {"metadata": marks, "data": {"value": value}}


def event(type: str, object: Any) -> bytes:
    return msgspec.json.encode({"type": type, "object": object}) + b"\n"


class Watched:
    """A scripted server: lists are answered as told, watches are written by the test."""

    def __init__(self, scripted: Scripted, *objects: Any) -> None:
        self.listing = listed(*objects)
        self.first = objects[:1]
        self.lists = 0
        self.asked_for_one = 0
        self.watches: list[web.Request] = []
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        scripted.answers.append(self.answer)

    async def begun(self, watches: int) -> None:
        await until(lambda: len(self.watches) == watches, f"watch {watches}")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            self.watches.append(request)
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            while (line := await self.lines.get()) is not None:
                await response.write(line)
            return response
        body = self.listing
        if request.query.get("limit") == "1":
            self.asked_for_one += 1
            body = listed(*self.first, version="99")
        else:
            self.lists += 1
        return web.Response(body=body, content_type="application/json")


async def test_how_a_watch_is_asked_for(scripted: Scripted, asking: Client) -> None:
    fake = Watched(scripted, config_map("a"))
    cache = WatchCache(asking, MAPS, DEFAULT, random=lambda: 0.5)
    running = asyncio.create_task(cache.run())
    await until(lambda: bool(fake.watches), "the watch")
    assert dict(fake.watches[0].query) == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "5",
        "timeoutSeconds": "44",
    }
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_object_that_cannot_be_read_is_skipped(scripted: Scripted, asking: Client) -> None:
    fake = Watched(scripted, config_map("a"), config_map("b", 7))
    async with following(asking) as it:
        assert it.cache.health.skipped == 1
        fake.lines.put_nowait(event("MODIFIED", config_map("a", [], "6")))
        fake.lines.put_nowait(event("ADDED", config_map("c", "1", "7")))
        await it.told("Added a", "Added c")
        assert it.cache.health.skipped == 2
        assert it.cache._version == "7"
        fake.lines.put_nowait(event("DELETED", config_map("a", [], "8")))
        fake.lines.put_nowait(event("MODIFIED", config_map("b", "1", "9")))
        await it.told("Deleted a", "Added b")
        assert it.cache.health.skipped == 0
        assert fake.lists == 1


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "ADDED", "object": {"metadata": 7}}\n',
        b"[]\n",
        b'{"type": "ADDED", "object": {"metadata": {"name": "d"}, "data": ' + DEEP + b"}}\n",
        b'{"type": "ERROR", "object": {"code": 500, "details": ' + DEEP + b"}}\n",
    ],
    ids=["nonsense", "half", "no object", "no event", "deep object", "deep error"],
)
async def test_a_line_that_is_no_event_costs_a_list(
    scripted: Scripted, asking: Client, clock: ManualClock, line: bytes
) -> None:
    fake = Watched(scripted, config_map("a"))
    async with following(asking) as it:
        fake.listing = listed(config_map("b"), version="9")
        fake.lines.put_nowait(event("ADDED", config_map("c", version="6")) + line)
        while it.cache.health.relists == 0:
            await pass_time(clock, 1)
        assert it.listener.take() == ["Added a", "Added c", "Added b", "Deleted a", "Deleted c"]


async def test_an_unreadable_answer_before_a_watch_is_survived(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    fake = Watched(scripted, config_map("a"))
    good, fake.first = fake.first, ({"metadata": 7},)
    async with following(asking) as it:
        fake.lines.put_nowait(None)
        while it.cache.health.errors < 2:
            await pass_time(clock, 1)
        fake.first = good
        while len(fake.watches) < 2:
            await pass_time(clock, 1)
        assert fake.lists == 1


async def test_half_a_line_is_asked_for_again(scripted: Scripted, asking: Client, clock: ManualClock) -> None:
    fake = Watched(scripted, config_map("a"))
    async with following(asking) as it:
        whole = event("ADDED", config_map("b", version="6"))
        fake.lines.put_nowait(whole[:30])
        fake.lines.put_nowait(None)
        while len(fake.watches) < 2:
            await pass_time(clock, 1)
        assert fake.watches[1].query["resourceVersion"] == "5"
        fake.lines.put_nowait(whole[:10])
        fake.lines.put_nowait(whole[10:])
        await it.told("Added a", "Added b")


async def test_an_error_in_the_stream_that_is_not_410_goes_on_from_the_version(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    fake = Watched(scripted, config_map("a"))
    async with following(asking) as it:
        fake.lines.put_nowait(event("BOOKMARK", {"metadata": {"resourceVersion": "8"}}))
        fake.lines.put_nowait(event("ERROR", {"code": 500, "message": "etcd is away"}))
        fake.lines.put_nowait(None)
        while len(fake.watches) < 2:
            await pass_time(clock, 1)
        assert fake.watches[1].query["resourceVersion"] == "8"
        assert (it.cache.health.relists, it.cache.health.errors) == (0, 1)


async def test_410_as_an_answer_costs_a_list(scripted: Scripted, clock: ManualClock) -> None:
    scripted.say(200, listed(config_map("a")))
    scripted.say(410, b'{"message": "too old resource version"}')
    scripted.say(200, listed(config_map("b"), version="9"))
    scripted.hang()
    async with connect(scripted.url, clock) as asking, following(asking) as it:
        while it.cache.health.relists == 0:
            await pass_time(clock, 1)
        assert it.listener.take() == ["Added a", "Added b", "Deleted a"]


async def test_versions_that_go_back_within_a_watch_cost_a_list(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    fake = Watched(scripted, config_map("a"))
    async with following(asking) as it:
        fake.lines.put_nowait(event("ADDED", config_map("b", version="4")))
        while it.cache.health.relists == 0:
            await pass_time(clock, 1)
        assert fake.lists == 2


async def test_a_watch_that_stalls_silently_is_noticed_within_a_minute(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    """Its connection stays open, as behind a proxy that has lost its server, and nothing comes any more."""
    fake = Watched(scripted, config_map("a"))
    made = Following(asking)
    made.cache._random = lambda: 1.0
    running = asyncio.create_task(made.cache.run())
    await made.cache.synced()
    await until(lambda: bool(fake.watches), "the watch")
    stalled, fake.lines = fake.lines, asyncio.Queue()
    await pass_time(clock, 60)
    await until(lambda: len(fake.watches) == 2, "another watch")
    assert made.cache.health.errors == 1
    assert fake.lists == 1, "nothing is lost: it goes on from the last version"
    fake.lines.put_nowait(event("ADDED", config_map("b", version="6")))
    await made.told("Added a", "Added b")
    assert stalled.empty()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_quiet_watch_that_its_server_ends_is_no_error_and_costs_no_list(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    fake = Watched(scripted, config_map("a"))
    async with following(asking) as it:
        for number in range(1, 4):
            await fake.begun(number)
            await pass_time(clock, 38)
            fake.lines.put_nowait(event("BOOKMARK", {"metadata": {"resourceVersion": str(10 + number)}}))
            await pass_time(clock, 2)
            fake.lines.put_nowait(None)
        await until(lambda: len(fake.watches) == 4, "another watch")
        assert fake.watches[-1].query["resourceVersion"] == "13"
        assert (it.cache.health.errors, fake.lists, fake.asked_for_one) == (0, 1, 0)


async def test_whether_the_server_is_another_is_asked_after_a_while_and_when_a_watch_ends_early(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    fake = Watched(scripted, config_map("a"))
    async with following(asking):
        await until(lambda: bool(fake.watches), "the watch")
        await pass_time(clock, 10)
        fake.lines.put_nowait(None)
        await until(lambda: fake.asked_for_one == 1, "a list of one object")
        for number in range(2, 10):
            await fake.begun(number)
            await pass_time(clock, 40)
            fake.lines.put_nowait(None)
        await until(lambda: fake.asked_for_one == 2, "another, after five minutes")


async def test_a_server_that_ends_watches_at_once_is_not_hammered(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    fake = Watched(scripted, config_map("a"))
    for _ in range(500):
        fake.lines.put_nowait(None)
    async with following(asking):
        await pass_time(clock, 60)
        assert 3 <= len(fake.watches) <= 9


async def test_a_list_that_cannot_be_read_is_tried_again(scripted: Scripted, clock: ManualClock) -> None:
    scripted.say(200, b'{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": 3}]}')
    scripted.say(200, b'{"metadata": {}, "items": [{"')
    scripted.say(200, b'{"metadata": {"resourceVersion": "1"}, "items": [' + DEEP + b"]}")
    scripted.say(200, listed(config_map("a")))
    scripted.hang()
    async with connect(scripted.url, clock) as asking:
        made = Following(asking)
        running = asyncio.create_task(made.cache.run())
        while not made.cache.health.synced:
            await pass_time(clock, 1)
        assert made.listener.take() == ["Added a"]
        assert made.cache.health.errors == 3
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_server_too_slow_to_list_is_not_asked_again_at_once(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    scripted.hang()
    made = Following(asking)
    running = asyncio.create_task(made.cache.run())
    await until(lambda: len(scripted.seen) == 1, "the list")
    await pass_time(clock, 60)
    await until(lambda: made.cache.health.errors == 1, "the end of our patience")
    await clock.advance(0.7)
    assert len(scripted.seen) == 1
    await clock.advance(0.2)
    await until(lambda: len(scripted.seen) == 2, "another list")
    assert "has not answered within 60 s" in made.cache.health.last_error
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_it_starts_before_its_server_does(clock: ManualClock) -> None:
    wire = Wire()
    await wire.start()
    async with connect(wire.url, clock) as client:
        made = Following(client)
        running = asyncio.create_task(made.cache.run())
        await pass_time(clock, 10)
        health = made.cache.health
        assert (health.synced, health.last_contact) == (False, None)
        server = new_server(clock, ObjectStore())
        put(server, "a")
        await server.start(tls=False)
        wire.lead_to(server)
        while not made.cache.health.synced:
            await pass_time(clock, 1)
        assert key("a") in made.cache
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop()
    await wire.stop()


async def test_a_server_that_tells_of_changes_without_a_pause_leaves_others_their_turn() -> None:
    line = b'{"type":"MODIFIED","object":{"metadata":{"name":"p","namespace":"d","resourceVersion":"2"}}}\n'
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield line * 1000

    others = asyncio.ensure_future(beside())
    read = [batch async for batch in events(Doing("watch", "pods", ""), pieces(), 1 << 20)]
    others.cancel()
    assert sum(map(len, read)) == 10_000
    assert turns > 100
