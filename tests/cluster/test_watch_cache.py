"""The watch cache: what it knows, what it tells, and how it finds its way back."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest

from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.resources import PODS, on_node
from colocate.cluster.watch_cache import WatchCache, WatchSettings
from colocate.lab.api.server import ApiServer
from colocate.lab.api.watch import BOOKMARK_SECONDS
from tests.lab_api.samples import pod
from tests.support.waiting import until

from .following import MAPS, Following, drop, following, held, key, pass_time, put
from .serving import TOKEN, Wire, connect, new_server


async def test_it_begins_with_what_is_there_and_follows(client: Client, server: ApiServer) -> None:
    put(server, "a", "1")
    put(server, "b", "1")
    async with following(client) as it:
        assert it.listener.take() == ["Added a", "Added b"]
        put(server, "a", "2")
        drop(server, "b")
        put(server, "c", "1")
        await it.told("Modified a", "Deleted b", "Added c")
        assert dict(it.cache.items()) == held(server)
        assert key("a") in it.cache
        assert len(it.cache) == len(list(it.cache)) == 2
        assert it.cache.get(key("b")) is None
        assert it.by_value.keys("2") == [key("a")]
        assert it.cache.health.relists == 0


async def test_a_long_list_is_read_in_pages(client: Client, server: ApiServer) -> None:
    for number in range(23):
        put(server, f"m{number:02}")
    async with following(client, WatchSettings(page=5)) as it:
        assert len(it.listener.take()) == 23


async def test_what_the_caller_does_not_read_is_no_change(client: Client, server: ApiServer) -> None:
    put(server, "a", "1")
    async with following(client) as it:
        it.listener.take()
        await client.patch(MAPS, "a", {"metadata": {"labels": {"x": "y"}}})
        put(server, "b")
        await it.told("Added b")


async def test_an_index_finds_the_pods_of_a_node(client: Client) -> None:
    class Spec(msgspec.Struct, frozen=True, rename="camel"):
        node_name: str = ""

    class Pod(msgspec.Struct, frozen=True):
        spec: Spec

    await client.create(PODS, pod("p"))
    await client.create(PODS, pod("q"))
    await client.create(PODS, pod("r"))
    cache = WatchCache(client, PODS.read_as(Pod))
    by_node = cache.add_index(lambda one: one.spec.node_name or None)
    running = asyncio.create_task(cache.run())
    await cache.synced()
    assert by_node.values() == []
    await client.bind("p", "n1")
    await client.bind("q", "n1")
    while len(by_node.get("n1")) < 2:
        await cache.changed.beyond(cache.changed.count)
    assert by_node.keys("n1") == [key("p"), key("q")]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_selection_on_the_server_follows_what_enters_and_leaves_it(client: Client) -> None:
    await client.create(PODS, pod("p"))
    cache = WatchCache(client, PODS, on_node("n1"), WatchSettings(from_server_cache=True))
    running = asyncio.create_task(cache.run())
    await cache.synced()
    assert len(cache) == 0
    await client.bind("p", "n1")
    while not len(cache):
        await cache.changed.beyond(cache.changed.count)
    assert cache.items()[0][0] == key("p")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_expired_version_is_followed_by_a_list_that_finds_what_was_missed(
    client: Client, server: ApiServer, clock: ManualClock
) -> None:
    for name in "abcd":
        put(server, name, "1")
    async with following(client) as it:
        it.listener.take()
        # All in one step of the loop: the watch is told nothing but that its history is gone.
        put(server, "a", "2")
        drop(server, "b")
        drop(server, "c")
        put(server, "c", "1")
        put(server, "e", "1")
        server.store.expire()
        while not it.listener.told:
            await pass_time(clock, 1)
        await until(lambda: len(it.listener.told) == 5, "the changes")
        assert it.listener.take() == ["Modified a", "Deleted c", "Added c", "Added e", "Deleted b"]
        assert it.listener.objects == held(server) == dict(it.cache.items())
        assert it.cache.health.relists == 1


async def test_bookmarks_keep_the_version_fresh(
    client: Client, server: ApiServer, clock: ManualClock
) -> None:
    put(server, "a")
    async with following(client) as it:
        for number in range(3):
            await client.create(PODS, pod(f"other-{number}"))
        await pass_time(clock, BOOKMARK_SECONDS + 1)
        newest = str(server.store.revision)
        await until(lambda: it.cache._version == newest, "a bookmark")
        # History up to the bookmark is dropped; a watch that ends still continues from there.
        server.store.changes("configmaps").expire(server.store.revision)
        await pass_time(clock, 301)
        put(server, "b")
        await until(lambda: key("b") in it.cache, "b")
        assert it.cache.health.relists == 0


async def test_a_watch_ends_after_its_time_and_goes_on(
    client: Client, server: ApiServer, clock: ManualClock
) -> None:
    async with following(client) as it:
        for name in "abc":
            await pass_time(clock, 310)
            put(server, name)
            await until(partial(it.cache.__contains__, key(name)), name)
        health = it.cache.health
        assert (health.relists, health.errors, health.last_error) == (0, 0, "")


@pytest.fixture
async def wire(server: ApiServer) -> AsyncIterator[Wire]:
    made = Wire()
    made.lead_to(server)
    await made.start()
    yield made
    await made.stop()


async def test_a_dropped_connection_goes_on_from_the_last_version(
    wire: Wire, server: ApiServer, clock: ManualClock
) -> None:
    put(server, "a")
    async with connect(wire.url, clock) as client, following(client) as it:
        for name in "bcd":
            wire.cut()
            put(server, name)
            while key(name) not in it.cache:
                await pass_time(clock, 1)
        assert it.listener.take() == ["Added a", "Added b", "Added c", "Added d"]
        assert it.cache.health.relists == 0
        assert it.cache.health.errors >= 1


async def test_a_server_that_is_away_is_waited_for_with_growing_pauses(
    wire: Wire, server: ApiServer, clock: ManualClock
) -> None:
    async with connect(wire.url, clock) as client, following(client) as it:
        target, wire.target = wire.target, 0
        wire.cut()
        last = it.cache.health.last_contact
        await pass_time(clock, 120)
        health = it.cache.health
        assert health.synced
        assert health.last_contact == last
        # 0.8, 1.6, 3.2, … up to 30 seconds.
        assert 5 <= health.errors <= 9
        assert "cannot list configmaps in namespace default: " in health.last_error
        put(server, "a")
        wire.target = target
        await pass_time(clock, 61)
        await until(lambda: key("a") in it.cache, "a")
        assert it.cache.health.last_error == ""


@pytest.mark.parametrize("more", [0, 200])
async def test_a_server_that_has_lost_its_state_is_listed_again(clock: ManualClock, more: int) -> None:
    """Also where its versions have overtaken those of its former life by the time that we are back."""
    wire = Wire()
    await wire.start()
    before, after = new_server(clock), new_server(clock, seed=2)
    await before.start(tls=False)
    for number in range(50):
        put(before, "busy", str(number))
    put(before, "a", "1")
    wire.lead_to(before)
    async with connect(wire.url, clock) as client, following(client) as it:
        it.listener.take()
        await before.stop()
        put(after, "a", "1")
        put(after, "b", "1")
        for number in range(more):
            put(after, "c", str(number))
        assert (after.store.revision > before.store.revision) == bool(more)
        await after.start(tls=False)
        wire.lead_to(after)
        while not it.cache.health.relists:
            await pass_time(clock, 1)
        assert dict(it.cache.items()) == held(after) == it.listener.objects
        assert it.listener.take()[:2] == ["Deleted a", "Added a"]
    await after.stop()
    await wire.stop()


async def test_an_empty_server_whose_versions_begin_again_is_not_waited_for_in_vain(
    clock: ManualClock,
) -> None:
    wire = Wire()
    await wire.start()
    before, after = new_server(clock), new_server(clock, seed=2)
    for _ in range(20):
        put(before, "a")
        drop(before, "a")
    await before.start(tls=False)
    wire.lead_to(before)
    async with connect(wire.url, clock) as client, following(client) as it:
        await before.stop()
        await after.start(tls=False)
        wire.lead_to(after)
        await pass_time(clock, 30)
        await until(lambda: it.cache.health.last_error == "", "a watch")
        put(after, "a")
        await it.told("Added a")
    await after.stop()
    await wire.stop()


async def test_a_server_that_was_restored_to_an_earlier_state_is_listed_again(clock: ManualClock) -> None:
    """Versions and uids are those that we know; what they stand for is not."""

    def life(last: str) -> ApiServer:
        server = new_server(clock, seed=3)
        put(server, "a", "1")
        put(server, "a", last)
        return server

    before, after = life("lost"), life("restored")
    assert before.store.revision == after.store.revision
    wire = Wire()
    await wire.start()
    await before.start(tls=False)
    wire.lead_to(before)
    async with connect(wire.url, clock) as client, following(client) as it:
        await before.stop()
        await after.start(tls=False)
        wire.lead_to(after)
        while not it.cache.health.relists:
            await pass_time(clock, 1)
        assert dict(it.cache.items()) == held(after)
    await after.stop()
    await wire.stop()


async def test_a_server_that_refuses_for_a_while_is_survived(
    wire: Wire, server: ApiServer, clock: ManualClock
) -> None:
    from .serving import ADMIN

    async with connect(wire.url, clock) as client, following(client) as it:
        server.authenticator.remove_token(TOKEN)
        wire.cut()
        put(server, "a")
        await pass_time(clock, 5)
        await until(lambda: "401" in it.cache.health.last_error, "a refusal")
        server.authenticator.add_token(TOKEN, ADMIN)
        await pass_time(clock, 30)
        await until(lambda: key("a") in it.cache, "a")
        assert it.cache.health.last_error == ""


async def test_a_handler_that_fails_does_not_blind_the_others(client: Client, server: ApiServer) -> None:
    put(server, "a")
    made = Following(client)

    def fail(change: Any) -> None:
        raise RuntimeError("a fault of this handler")

    made.cache._handlers.insert(0, fail)
    running = asyncio.create_task(made.cache.run())
    await made.cache.synced()
    put(server, "b")
    await made.told("Added a", "Added b")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
