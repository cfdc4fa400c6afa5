"""Questions that are here as a whole, which are answered where they arrive: no caller can tell, but by the time."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Coroutine
from typing import Any

import pytest
from prometheus_client import REGISTRY

from colocate.http.connection import HttpConnection
from colocate.http.exchange import HttpAnswer
from colocate.model.values import Seconds
from colocate.scheduler.server import extender
from colocate.scheduler.server.refusal import RequestRefused
from colocate.scheduler.settings import Size
from tests.scheduler.asking import SteeredJudge, asking, question, server
from tests.support.waiting import until

HEAD = b"POST /prioritize HTTP/1.1\r\nHost: x\r\n"


def whole(body: bytes, *headers: bytes) -> bytes:
    said = b"".join(header + b"\r\n" for header in (*headers, b"Content-Length: %d" % len(body)))
    return HEAD + said + b"\r\n" + body


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of the next answer."""
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return int(head.split()[1]), await reader.readexactly(length)


@pytest.fixture
def judge() -> SteeredJudge:
    return SteeredJudge(a=7)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the connections of a server had done by tasks of their own."""
    begun: list[str] = []
    work = HttpConnection.work

    def noted(self: HttpConnection, coming: Awaitable[HttpAnswer]) -> Coroutine[Any, Any, None]:
        begun.append(str(coming))
        return work(self, coming)

    monkeypatch.setattr(HttpConnection, "work", noted)
    return begun


async def test_one_that_comes_in_one_piece_needs_no_task(judge: SteeredJudge, tasks: list[str]) -> None:
    async with asking(judge) as ask, ask.raw() as (reader, writer):
        for _ in range(5):
            writer.write(whole(question("a", "b")))
            assert await answered(reader) == (200, b'[{"Host":"a","Score":7},{"Host":"b","Score":5}]')
    assert tasks == []


async def test_one_that_comes_in_two_as_from_go_needs_none_either(
    judge: SteeredJudge, tasks: list[str]
) -> None:
    async with asking(judge) as ask, ask.raw() as (reader, writer):
        body = whole(question("a"))
        for first in (10, len(body) - len(question("a")) - 2, len(body) - 10):
            writer.write(body[:first])
            await ask.get("/healthz")
            writer.write(body[first:])
            assert await answered(reader) == (200, b'[{"Host":"a","Score":7}]')
    assert tasks == []


async def test_one_that_comes_byte_by_byte_has_its_time(judge: SteeredJudge) -> None:
    async with asking(judge) as ask, ask.raw() as (reader, writer):
        for byte in whole(question("a")):
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        assert await answered(reader) == (200, b'[{"Host":"a","Score":7}]')


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((b"Expect: nonsense",), 200),
        ((b"Content-Encoding: br",), 415),
        ((b"Connection: close",), 200),
        ((b"Upgrade: websocket", b"Connection: Upgrade"), 200),
    ],
)
async def test_one_that_says_more_is_answered(
    judge: SteeredJudge, tasks: list[str], headers: tuple[bytes, ...], status: int
) -> None:
    async with asking(judge) as ask, ask.raw() as (reader, writer):
        writer.write(whole(question("a"), *headers))
        assert (await answered(reader))[0] == status
    assert tasks == []


async def test_many_at_once_are_answered_in_their_order(judge: SteeredJudge) -> None:
    async with asking(judge) as ask, ask.raw() as (reader, writer):
        names = [f"n{number}" for number in range(20)]
        writer.write(b"".join(whole(question(name)) for name in names))
        for name in names:
            status, body = await answered(reader)
            assert (status, json.loads(body)) == (200, [{"Host": name, "Score": 5}])


async def test_one_that_is_refused_is_told_why_and_counted_once(judge: SteeredJudge) -> None:
    def counted(outcome: str) -> float:
        labels = {"verb": "prioritize", "outcome": outcome}
        return REGISTRY.get_sample_value("colocate_extender_requests_total", labels) or 0.0

    before = counted("ok"), counted("unreadable"), counted("too large")
    async with asking(judge, server(body=Size(1000))) as ask:
        for body, status in ((b"[]", 400), (question(*("n" * 250 for _ in range(4))), 413)):
            async with ask.raw() as (reader, writer):
                writer.write(whole(body))
                assert (await answered(reader))[0] == status
                assert await reader.read() == b"", "it is the end of its connection"
    assert (counted("ok"), counted("unreadable"), counted("too large")) == (
        before[0],
        before[1] + 1,
        before[2] + 1,
    )


async def test_bodies_under_way_leave_no_room_for_it(judge: SteeredJudge) -> None:
    async with asking(judge, server(bodies=Size(4000))) as ask, ask.raw() as (_, other):
        # In chunks, and never finished.
        other.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\nf00\r\n" + b" " * 0xF00 + b"\r\n")
        await ask.get("/healthz")
        async with ask.raw() as (reader, writer):
            writer.write(whole(question("a")))
            assert (await answered(reader))[0] == 503


async def test_its_connection_is_closed_once_nothing_is_asked_for_long(judge: SteeredJudge) -> None:
    async with asking(judge, server(idle_timeout=Seconds(0.2))) as ask, ask.raw() as (reader, writer):
        for _ in range(2):
            writer.write(whole(question("a")))
            assert (await answered(reader))[0] == 200
        async with asyncio.timeout(30):
            assert await reader.read() == b""


async def test_a_line_break_after_a_request_neither_ends_nor_keeps_a_connection(judge: SteeredJudge) -> None:
    async with asking(judge, server(idle_timeout=Seconds(0.5))) as ask, ask.raw() as (reader, writer):
        for _ in range(2):
            writer.write(whole(question("a")) + b"\r\n")
            assert (await answered(reader))[0] == 200
        async with asyncio.timeout(30):
            assert await reader.read() == b""


def test_a_query_of_too_many_fields_is_refused_and_no_fault() -> None:
    with pytest.raises(RequestRefused, match="more than 100 fields"):
        extender._first_values("a=1&" * 101)


async def test_whoever_does_not_read_its_answer_is_cut_off(judge: SteeredJudge) -> None:
    def cut_off() -> float:
        labels = {"server": "extender", "reason": "slow reader"}
        return REGISTRY.get_sample_value("colocate_http_connections_closed_total", labels) or 0.0

    before = cut_off()
    async with asking(judge, server(answer_timeout=Seconds(0.2))) as ask, ask.raw() as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        # One after the other: what is not read must fill the kernel's buffers first.
        for _ in range(200):
            asked = len(judge.asked)
            writer.write(whole(question(*(f"{number:0250}" for number in range(900)))))
            await until(lambda seen=asked: len(judge.asked) > seen or cut_off() > before, "the question")  # type: ignore[misc]
            if cut_off() > before:
                break
        await until(lambda: cut_off() > before, "the end of the connection")
        assert await ask.prioritized("a") == {"a": 7}


@pytest.mark.parametrize("chunked", [False, True])
async def test_the_rest_of_one_that_began_to_come_with_the_one_before_is_read(
    judge: SteeredJudge, *, chunked: bool
) -> None:
    asked = whole(question("a"))
    if chunked:
        body = question("a")
        asked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with asking(judge) as ask, ask.raw() as (reader, writer), asyncio.timeout(10):
        writer.write(whole(question("a")) + asked[:-10])
        assert (await answered(reader))[0] == 200
        writer.write(asked[-10:])
        assert (await answered(reader))[0] == 200
