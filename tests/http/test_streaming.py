"""Answers that are made part by part: no faster than their caller reads, and no longer than it is there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.support.logs import logged
from tests.support.waiting import until

from colocate.http.connection import HttpConnection
from colocate.http.connections import ConnectionLimits, Connections
from colocate.http.exchange import Exchange, HttpAnswer, Sent
from colocate.http.listener import Listener, bound_sockets
from colocate.http.places import PlaceLimits
from colocate.http.requests import HttpRequest

ASKED = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
PART = b"x" * (64 << 10)


class Streamed(Exchange):
    """One whose parts a test makes."""

    def __init__(self, request: HttpRequest, parts: AsyncIterator[bytes], ends: list[Sent]) -> None:
        super().__init__(request)
        self._parts = parts
        self._ends = ends

    def begin(self) -> HttpAnswer:
        return HttpAnswer(self._parts)

    def ended(self, sent: Sent) -> None:
        self._ends.append(sent)


@asynccontextmanager
async def streaming(
    parts: Callable[[], AsyncIterator[bytes]], ends: list[Sent], answer_timeout: float = 30.0
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    def handler(request: HttpRequest, connection: HttpConnection) -> Exchange:
        return Streamed(request, parts(), ends)

    limits = ConnectionLimits(places=PlaceLimits(connections=5), answer_timeout=answer_timeout)
    connections = Connections("test", handler, limits)
    listener = Listener(await bound_sockets("127.0.0.1", 0), connections)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname(), limit=1 << 10)
    try:
        async with asyncio.timeout(60):
            yield reader, writer
    finally:
        writer.transport.abort()
        listener.close()
        await listener.closed()
        await connections.shutdown(0.5)


async def test_parts_are_chunks_and_the_connection_goes_on() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one", b"", b"three"):
            yield part

    ends: list[Sent] = []
    async with streaming(parts, ends) as (reader, writer):
        for _ in range(2):
            writer.write(ASKED)
            assert b"Transfer-Encoding: chunked\r\n" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\none\r\n5\r\nthree\r\n0\r\n\r\n"
        writer.write(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"Transfer-Encoding: chunked\r\n" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\nonethree"), "which knows no chunks"
    assert ends == [Sent.WHOLE] * 4


async def test_no_more_is_made_than_the_caller_reads() -> None:
    made = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(1000):
            made += 1
            yield PART

    ends: list[Sent] = []
    async with streaming(parts, ends) as (reader, writer):
        writer.write(ASKED)
        seen = -1
        while made > seen:
            seen = made
            for _ in range(100):
                await asyncio.sleep(0)
        assert made < 500, "the kernel's buffers are full"
        while not (await reader.read(1 << 20)).endswith(b"\r\n0\r\n\r\n"):
            pass
        await until(lambda: bool(ends), "its end")
    assert (made, ends) == (1000, [Sent.WHOLE])


async def endless(closed: list[bool]) -> AsyncIterator[bytes]:
    try:
        while True:
            yield PART
    finally:
        closed.append(True)


async def test_a_caller_that_does_not_read_is_cut_off_and_the_parts_end() -> None:
    ends: list[Sent] = []
    closed: list[bool] = []
    async with streaming(lambda: endless(closed), ends, answer_timeout=0.2) as (_, writer):
        writer.write(ASKED)
        await until(lambda: bool(ends), "the end of the stream")
    assert (ends, closed) == ([Sent.SLOW], [True])


async def test_a_caller_that_hangs_up_ends_the_parts_though_none_is_due() -> None:
    ends: list[Sent] = []
    closed: list[bool] = []

    async def parts() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async with streaming(parts, ends) as (reader, writer):
        writer.write(ASKED)
        await reader.readuntil(b"first")
        writer.close()
        await until(lambda: bool(ends), "the end of the stream")
    assert (ends, closed) == ([Sent.GONE], [True])


async def test_a_fault_between_parts_is_logged_and_seen_by_the_caller() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        raise ZeroDivisionError

    ends: list[Sent] = []
    with logged() as logs:
        async with streaming(parts, ends) as (reader, writer):
            writer.write(ASKED)
            await reader.readuntil(b"first")
            try:
                assert not (await reader.read()).endswith(b"0\r\n\r\n")
            except ConnectionResetError:
                pass
    assert ends == [Sent.GONE]
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["http.fault"]
