"""What one caller can cost the extender: bodies, bombs, dawdlers, and how it ends with requests under way."""

import asyncio
import gzip
import io
import json
import resource
import socket
import tracemalloc
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import REGISTRY

from colocate.clock import ManualClock
from colocate.model.values import Seconds
from colocate.scheduler.settings import Size
from tests.scheduler.asking import POD, SteeredJudge, asking, question, server
from tests.support.waiting import until

SMALL = Size(1 << 20)
HEAD = b"POST /prioritize HTTP/1.1\r\nHost: x\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(question("a")) + question("a")
_MIB = 1 << 20


@pytest.fixture
def judge() -> SteeredJudge:
    return SteeredJudge()


async def endless(megabytes: int) -> AsyncIterator[bytes]:
    for _ in range(megabytes):
        yield b" " * _MIB


async def test_a_body_that_says_it_is_too_large_is_not_read(judge: SteeredJudge) -> None:
    async with asking(judge, server(body=SMALL)) as ask:
        async with ask.raw() as (reader, writer):
            writer.write(HEAD + b"Content-Length: 1000000000\r\n\r\n")
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 413 " in answer
            assert b"Connection: close" in answer
            sentence = (await reader.readline()).decode()
        assert sentence == (
            "the body has 1000000000 bytes, more than the 1048576 allowed (server.limits.body); "
            "with nodeCacheCapable: true kube-scheduler sends names instead of whole nodes\n"
        )
        assert await ask.prioritized("a") == {"a": 5}


async def test_a_gigabyte_that_does_not_say_so_is_cut_early(judge: SteeredJudge) -> None:
    async with asking(judge, server(body=SMALL)) as ask:
        sent = 0

        async def chunks() -> AsyncIterator[bytes]:
            nonlocal sent
            async for chunk in endless(1024):
                sent += len(chunk)
                yield chunk

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            answered = await ask.post("prioritize", chunks())
            assert answered.status == 413
        except aiohttp.ClientConnectionError:
            pass  # It was still sending when the extender hung up.
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 64 * 1024, "kilobytes"
        assert await ask.prioritized("a") == {"a": 5}


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
async def test_more_nodes_than_there_can_be_are_not_judged(judge: SteeredJudge, verb: str) -> None:
    judge.most = 3
    whole = {"Pod": POD, "NodeNames": None, "Nodes": {"items": [{"metadata": {"name": "a"}}] * 4}}
    async with asking(judge) as ask:
        for body in (question(*"abcd"), json.dumps(whole).encode()):
            answered = await ask.post(verb, body)
            assert answered.status == 413
            assert answered.sentence == (
                "the body asks about 4 nodes, but at most 3 are judged at once; ask about the nodes of this cluster"
            )
        assert not judge.asked
        assert (await ask.post(verb, question(*"abc"))).status == 200


@pytest.mark.parametrize("said", ["gzip", "x-gzip", "GZIP"])
async def test_a_body_may_be_gzip(judge: SteeredJudge, said: str) -> None:
    async with asking(judge) as ask:
        packed = gzip.compress(question("a", "b"))
        answered = await ask.post("prioritize", packed, headers={"Content-Encoding": said})
        assert [one["Host"] for one in answered.json] == ["a", "b"]


async def test_a_bomb_does_not_unfold(judge: SteeredJudge) -> None:
    packed = gzip.compress(b" " * (256 * _MIB), 9)
    assert len(packed) < SMALL, "it looks harmless"
    async with asking(judge, server(body=SMALL)) as ask:
        tracemalloc.start()
        answered = await ask.post("prioritize", packed, headers={"Content-Encoding": "gzip"})
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (answered.status, answered.sentence.partition(" than ")[0]) == (413, "the body has more bytes")
        assert peak < 16 * _MIB
        assert await ask.prioritized("a") == {"a": 5}


@pytest.mark.parametrize(
    ("body", "coding", "status", "sentence"),
    [
        (b"{}", "gzip", 400, "the body is not gzip, although its Content-Encoding says so"),
        (gzip.compress(question("a"))[:-9], "gzip", 400, "the body ends in the middle of its gzip data"),
        (gzip.compress(b"{}") + b"more", "gzip", 400, "the body goes on after the end of its gzip data"),
        (b"{}", "br", 415, "the body is encoded as 'br'; send it plain, or as gzip"),
    ],
    ids=["plain", "cut", "more", "other"],
)  # fmt: skip
async def test_what_cannot_be_unfolded_is_said(
    judge: SteeredJudge, body: bytes, coding: str, status: int, sentence: str
) -> None:
    async with asking(judge) as ask:
        answered = await ask.post("prioritize", body, headers={"Content-Encoding": coding})
        assert answered.status == status
        assert answered.sentence.startswith(sentence)
        assert await ask.prioritized("a") == {"a": 5}


async def test_all_bodies_together_are_bounded(judge: SteeredJudge) -> None:
    async with asking(judge, server(body=SMALL, bodies=SMALL)) as ask, ask.raw() as (reader, writer):
        writer.write(HEAD + b"Content-Length: 1000000\r\n\r\n" + b" " * 999_000)
        await writer.drain()
        answered = None
        for _ in range(1000):
            answered = await ask.post("prioritize", b" " * 100_000)
            if answered.status == 503:
                break
        assert answered
        assert (answered.status, answered.headers["Retry-After"]) == (503, "1")
        assert "requests in progress already hold 1048576 bytes" in answered.sentence
        writer.write(b" " * 1000)
        assert b" 400 " in await reader.readline(), "blanks are no question; but it was let in first"
        assert await ask.prioritized("a") == {"a": 5}


async def test_whoever_dawdles_over_headers_is_cut_off(judge: SteeredJudge) -> None:
    async with asking(judge, server(header_timeout=Seconds(0.2))) as ask:
        async with ask.raw() as (reader, writer):
            writer.write(b"POST /prioritize HTTP/1.1\r\nX-A")
            assert await reader.read() == b""
        async with ask.raw() as (reader, _):
            assert await reader.read() == b"", "nor does one that says nothing at all stay"
        async with ask.raw() as (reader, writer):
            writer.write(WHOLE)
            assert b" 200 " in await reader.readline()
            await reader.readuntil(b"}]")
            writer.write(b"GET /heal")
            assert await reader.read() == b"", "and not on its second request either"
        assert await ask.prioritized("a") == {"a": 5}


async def test_headers_may_be_waited_for_longer_between_requests(judge: SteeredJudge) -> None:
    settings = server(header_timeout=Seconds(0.2), idle_timeout=Seconds(60))
    async with asking(judge, settings) as ask, ask.raw() as (reader, writer):
        for _ in range(2):
            writer.write(WHOLE)
            await reader.readuntil(b"}]")
            async with ask.raw() as (other, _):
                assert await other.read() == b"", "by now the time for headers is over"


async def test_whoever_dawdles_over_a_body_is_told_and_cut_off(judge: SteeredJudge) -> None:
    async with asking(judge, server(body_timeout=Seconds(0.2))) as ask, ask.raw() as (reader, writer):
        writer.write(HEAD + b"Content-Length: 1000\r\n\r\n{")
        answer = await reader.read()
        assert b" 408 " in answer
        assert answer.endswith(b"only 1 bytes of the body arrived within 0.2 s\n")


async def test_whoever_does_not_read_is_cut_off(judge: SteeredJudge) -> None:
    """Only the extender's memory is at stake: its answer waits in full until someone reads it."""

    def slow() -> float:
        labels = {"verb": "prioritize", "outcome": "slow"}
        return REGISTRY.get_sample_value("colocate_extender_requests_total", labels) or 0.0

    before = slow()
    # Many names, since a long one is no name: the kernel must not have room for the whole answer.
    judge.most = 100_000
    body = question(*(f"{number:0250}" for number in range(judge.most)))
    async with asking(judge, server(answer_timeout=Seconds(0.2))) as ask, ask.raw() as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: bool(judge.asked), "the question")
        await until(lambda: slow() > before, "the end of the connection")
        assert await ask.prioritized("a") == {"a": 5}


async def test_a_caller_that_hangs_up_is_no_fault(judge: SteeredJudge) -> None:
    async with asking(judge) as ask:
        async with ask.raw() as (_, writer):
            writer.write(HEAD + b"Content-Length: 1000\r\n\r\n{")
            await writer.drain()
        assert await ask.prioritized("a") == {"a": 5}


async def test_a_caller_that_asks_first_is_told_to_go_on(judge: SteeredJudge) -> None:
    async with asking(judge, server(body=SMALL)) as ask, ask.raw() as (reader, writer):
        body = question("a")
        writer.write(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert b" 200 " in await reader.readline()


class TestStopping:
    async def test_what_is_under_way_is_seen_through(self, judge: SteeredJudge) -> None:
        async with asyncio.TaskGroup() as tasks, asking(judge) as ask:
            reader, writer = await asyncio.open_connection("127.0.0.1", ask.listening.port)
            body = question("a")
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body[:100])
            await writer.drain()
            idle, other = await asyncio.open_connection("127.0.0.1", ask.listening.port)
            await ask.get("/healthz")

            async def finish() -> bytes:
                assert await idle.read() == b"", "idle connections end when the stop begins"
                other.close()
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", ask.listening.port)
                writer.write(body[100:])
                return await reader.read()

            finishing = tasks.create_task(finish())
        answer = finishing.result()
        assert b" 200 OK" in answer
        assert b"Connection: close" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2]) == [{"Host": "a", "Score": 5}]
        writer.close()

    async def test_but_not_for_longer_than_the_grace(self, judge: SteeredJudge) -> None:
        clock = ManualClock()
        settings = server(grace=Seconds(10))
        async with asyncio.TaskGroup() as tasks:
            async with asking(judge, settings, clock) as ask:
                reader, writer = await asyncio.open_connection("127.0.0.1", ask.listening.port)
                writer.write(HEAD + b"Content-Length: 1000\r\n\r\n{")
                await writer.drain()
                await ask.get("/healthz")

                async def pass_time() -> None:
                    await clock.until_someone_sleeps()
                    await clock.advance(11)

                tasks.create_task(pass_time())
            assert await reader.read() == b""
            writer.close()


async def test_millions_of_empty_containers_are_413_and_the_next_question_is_answered(
    judge: SteeredJudge,
) -> None:
    empty = b"{}," * 2_000_000 + b"{}"
    hostile = b'{"Pod":{"spec":{"containers":[' + empty + b']}},"Nodes":null,"NodeNames":["a"]}'
    async with asking(judge) as ask:
        for verb in ("filter", "prioritize", "preempt"):
            answered = await ask.post(verb, io.BytesIO(hostile))
            assert answered.status == 413, answered.sentence
        assert not judge.asked
        assert await ask.prioritized("a") == {"a": 5}


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
async def test_a_question_that_holds_too_much_is_refused_before_its_end(
    judge: SteeredJudge, verb: str
) -> None:
    """Its sender may take as long as it likes over the rest."""
    empty = b"{}," * 1_500_000
    begun = b'{"Pod":{"spec":{"containers":[' + empty + empty
    async with asking(judge) as ask, ask.raw() as (reader, writer):
        writer.write(
            f"POST /{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {57 * _MIB}\r\n\r\n".encode() + begun
        )
        async with asyncio.timeout(30):
            assert b" 413 " in await reader.readline()
        assert not judge.asked
        assert await ask.prioritized("a") == {"a": 5}
