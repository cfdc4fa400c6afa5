"""How much a server may answer: pages, lists, events and what is packed in them. Nothing is read without end."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web

from colocate.clock import ManualClock
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.errors import ServerError, TooLong, Unreachable
from colocate.cluster.resources import CONFIG_MAPS, PODS, UNFINISHED, unfinished_on
from colocate.cluster.watch_cache import WatchCache, WatchSettings
from colocate.lab.api.resources import PODS as STORED_PODS
from colocate.lab.api.server import ApiServer
from tests.support.waiting import until

from .serving import Scripted, connect

KIB = 1 << 10
BOUNDED = ClientSettings(longest_answer=512 * KIB, attempts=1)
LARGE = 100 * KIB
"""Characters in an annotation of a pod: a page of six is too long."""


class _Marks(msgspec.Struct, frozen=True):
    name: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Marks = _Marks()


def create_pods(server: ApiServer, number: int, large: int) -> None:
    for place in range(number):
        body = {
            "metadata": {"name": f"p{place:02}", "annotations": {"example.com/long": "x" * large}},
            "spec": {"containers": [{"name": "main", "image": "busybox"}], "nodeName": "n1"},
        }
        server.registry.create(STORED_PODS, "default", body)


async def finish(client: Client, name: str, phase: str) -> None:
    await client.patch(PODS, name, {"status": {"phase": phase}}, subresource="status")


@pytest.fixture
async def bounded(scripted: Scripted, clock: ManualClock) -> AsyncIterator[Client]:
    async with connect(scripted.url, clock, settings=BOUNDED) as client:
        yield client


async def test_a_page_that_is_too_long_is_asked_for_again_with_fewer_objects(
    server: ApiServer, clock: ManualClock
) -> None:
    create_pods(server, 20, LARGE)
    async with connect(server.url, clock, settings=BOUNDED) as client:
        found = await client.list(PODS.read_as(_Named))
    assert [each.metadata.name for each in found] == [f"p{place:02}" for place in range(20)]


@pytest.mark.parametrize("from_server_cache", [False, True])
async def test_a_cache_of_large_pods_is_filled_whatever_a_page_would_have(
    server: ApiServer, clock: ManualClock, from_server_cache: bool
) -> None:
    create_pods(server, 20, LARGE)
    async with connect(server.url, clock, settings=BOUNDED) as client:
        settings = WatchSettings(from_server_cache=from_server_cache)
        cache = WatchCache(client, PODS.read_as(_Named), unfinished_on("n1"), settings)
        work = asyncio.create_task(cache.run())
        await cache.synced()
        assert len(cache) == 20
        work.cancel()
        await asyncio.wait([work])


async def test_an_object_that_alone_is_too_long_is_told_in_a_sentence(
    server: ApiServer, clock: ManualClock
) -> None:
    create_pods(server, 1, LARGE)
    settings = ClientSettings(longest_answer=64 * KIB, attempts=1)
    async with connect(server.url, clock, settings=settings) as client:
        for asked in (client.list(PODS), client.get(PODS, "p00")):
            with pytest.raises(TooLong, match="the answer cannot be read: it is longer than 64 KiB"):
                await asked


async def test_a_server_that_ignores_the_limit_is_given_up_in_a_few_attempts(
    scripted: Scripted, bounded: Client
) -> None:
    scripted.say(200, b'{"metadata": {}, "items": [' + b" " * (512 * KIB) + b"]}")
    with pytest.raises(TooLong):
        await bounded.list(CONFIG_MAPS)
    assert [request.query["limit"] for request in scripted.seen] == ["500", "62", "7", "1"]


@pytest.mark.parametrize("items", [b"", b'{"metadata": {"name": "a"}}'])
async def test_a_list_without_end_ends(scripted: Scripted, clock: ManualClock, items: bytes) -> None:
    scripted.say(200, b'{"metadata": {"continue": "more"}, "items": [%s]}' % items)
    settings = ClientSettings(most_objects=100, attempts=1)
    async with connect(scripted.url, clock, settings=settings) as client:
        with pytest.raises(ServerError, match="the list has more than 100 objects"):
            await client.list(CONFIG_MAPS)
    assert len(scripted.seen) <= 101


async def test_a_list_of_too_many_bytes_ends(scripted: Scripted, clock: ManualClock) -> None:
    scripted.say(200, b'{"metadata": {"continue": "more"}, "items": []' + b" " * KIB + b"}")
    async with connect(scripted.url, clock, settings=ClientSettings(longest_list=9 * KIB)) as client:
        with pytest.raises(ServerError, match="or 9 KiB"):
            await client.list(CONFIG_MAPS)
    assert len(scripted.seen) == 9


async def test_what_is_packed_is_read(scripted: Scripted, bounded: Client) -> None:
    scripted.say(200, gzip.compress(b'{"a": "%s"}' % (b"b" * 1000)), Content_Encoding="gzip")
    assert await bounded.get(CONFIG_MAPS, "a") == {"a": "b" * 1000}
    assert scripted.seen[0].headers["Accept-Encoding"] == "gzip"


@pytest.mark.parametrize("code", [200, 500])
async def test_a_gzip_bomb_is_unpacked_no_further_than_any_answer_goes(
    scripted: Scripted, bounded: Client, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = 0

    class Counted:
        def __init__(self, wbits: int) -> None:
            self._real = real(wbits)

        def decompress(self, piece: bytes, most: int) -> bytes:
            nonlocal unpacked
            found = self._real.decompress(piece, most)
            unpacked += len(found)
            return found

        @property
        def eof(self) -> bool:
            return self._real.eof

    packing = zlib.compressobj(wbits=31)
    bomb = b"".join(packing.compress(bytes(1 << 20)) for _ in range(256)) + packing.flush()
    real = zlib.decompressobj
    monkeypatch.setattr("colocate.cluster.transport.zlib.decompressobj", Counted)
    scripted.say(code, bomb, Content_Encoding="gzip")
    with pytest.raises(ServerError, match="longer than 512 KiB" if code == 200 else "code 500"):
        await bounded.get(CONFIG_MAPS, "a")
    assert 0 < unpacked <= 512 * KIB + 1


@pytest.mark.parametrize(
    ("body", "encoding", "words"),
    [
        (b"no gzip at all", "gzip", "it cannot be decompressed"),
        (gzip.compress(b"{}" * 1000)[:-12], "gzip", "its end is missing"),
        (b"{}", "br", "compressed by 'br'"),
    ],
)
async def test_what_cannot_be_unpacked_is_told_in_a_sentence(
    scripted: Scripted, bounded: Client, body: bytes, encoding: str, words: str
) -> None:
    scripted.say(200, body, Content_Encoding=encoding)
    with pytest.raises(Unreachable, match=words):
        await bounded.get(CONFIG_MAPS, "a")


async def failing(cache: "WatchCache[_Named]", words: str) -> None:
    """Wait until a cache has met with such an error."""
    work = asyncio.create_task(cache.run())
    await until(lambda: words in cache.health.last_error, words)
    work.cancel()
    await asyncio.wait([work])


def watched(scripted: Scripted, *pieces: bytes, **headers: str) -> None:
    """An empty list, then a watch that says these pieces."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse(
            headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await asyncio.Event().wait()
        raise AssertionError

    scripted.answers.append(answer)


async def test_an_event_without_end_is_heard_no_further_than_any_goes(
    scripted: Scripted, bounded: Client
) -> None:
    watched(scripted, b'{"type": "ADDED", "object": "', *[b"x" * 64 * KIB] * 20)
    await failing(WatchCache(bounded, CONFIG_MAPS.read_as(_Named)), "an event of more than 512 KiB")


async def test_a_watch_that_comes_packed_is_not_heard(scripted: Scripted, bounded: Client) -> None:
    watched(scripted, gzip.compress(b"x"), Content_Encoding="gzip")
    await failing(WatchCache(bounded, CONFIG_MAPS.read_as(_Named)), "it is compressed (gzip)")
    watches = [request for request in scripted.seen if "watch" in request.query]
    assert {request.headers["Accept-Encoding"] for request in watches} == {"identity"}


async def test_a_watch_that_adds_objects_without_end_is_not_followed(
    scripted: Scripted, clock: ManualClock
) -> None:
    lines = [
        b'{"type": "ADDED", "object": {"metadata": {"name": "a%d", "resourceVersion": "%d"}}}\n' % (i, i + 2)
        for i in range(60)
    ]
    watched(scripted, *lines)
    async with connect(scripted.url, clock, settings=ClientSettings(most_objects=50)) as client:
        cache = WatchCache(client, CONFIG_MAPS.read_as(_Named))
        await failing(cache, "there are more than 50 objects")
        assert len(cache) == 50


async def test_a_name_longer_than_any_is_no_object(scripted: Scripted, bounded: Client) -> None:
    scripted.say(200, b'{"metadata": {}, "items": [{"metadata": {"name": "%s"}}]}' % (b"a" * 254))
    await failing(WatchCache(bounded, CONFIG_MAPS.read_as(_Named)), "the answer cannot be read")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_of_pods_that_end_a_cache_of_unfinished_ones_tells_as_if_they_were_deleted(
    server: ApiServer, client: Client, phase: str
) -> None:
    create_pods(server, 3, 1)
    await finish(client, "p00", phase)
    cache = WatchCache(client, PODS.read_as(_Named), UNFINISHED)
    told: list[str] = []
    cache.add_handler(lambda change: told.append(f"{type(change).__name__} {change.key.name}"))
    work = asyncio.create_task(cache.run())
    await cache.synced()
    assert told == ["Added p01", "Added p02"]
    await finish(client, "p01", phase)
    await until(lambda: len(told) == 3, "the end to be told")
    assert told[2:] == ["Deleted p01"]
    assert [each.metadata.name for each in cache] == ["p02"]
    assert not cache.health.last_error
    work.cancel()
    await asyncio.wait([work])
