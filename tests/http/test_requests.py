"""What is read as a request, and what could be read in two ways: that is refused, whole."""

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import repeat

import pytest
from tests.scheduler.asking import SteeredJudge, asking, question

from colocate.http.requests import MOST_HEAD, MOST_HEADERS, Chunks, HttpRequest, NotHttp, head_length

LINE = b"POST /prioritize HTTP/1.1\r\n"
HOST = LINE + b"Host: a\r\n"

SMUGGLED = {
    "a length and chunks": HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "chunks and a length": HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "two lengths": HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "one length twice": HOST + b"Content-Length: 5\r\nContent-Length: 5\r\n",
    "a list of lengths": HOST + b"Content-Length: 5, 5\r\n",
    "a length with a sign": HOST + b"Content-Length: +5\r\n",
    "a length in hexadecimal": HOST + b"Content-Length: 0x5\r\n",
    "a length without end": HOST + b"Content-Length: " + b"9" * 30 + b"\r\n",
    "an empty length": HOST + b"Content-Length:\r\n",
    "another coding": HOST + b"Transfer-Encoding: gzip, chunked\r\n",
    "a coding that is none": HOST + b"Transfer-Encoding: xchunked\r\n",
    "two codings": HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n",
    "a folded header": HOST + b"X: a\r\n b\r\n",
    "a header folded by a tab": HOST + b"X: a\r\n\tContent-Length: 5\r\n",
    "a NUL": HOST + b"X: a\0b\r\n",
    "a bare CR": HOST + b"X: a\rContent-Length: 5\r\n",
    "a bare LF": HOST + b"X: a\nContent-Length: 5\r\n",
    "a space before a colon": HOST + b"Content-Length : 5\r\n",
    "no name": HOST + b": 5\r\n",
    "two hosts": HOST + b"Host: b\r\n",
    "no host": LINE,
    "no version": b"GET /\r\nHost: a\r\n",
    "another version": b"GET / HTTP/2.0\r\nHost: a\r\n",
    "another protocol": b"GET / RTSP/1.0\r\nHost: a\r\n",
    "a method that is none": b"FOO / HTTP/1.1\r\nHost: a\r\n",
    "a target that is not ASCII": b"GET /\xff HTTP/1.1\r\nHost: a\r\n",
    "too many headers": HOST + b"a: b\r\n" * MOST_HEADERS,
    "a long header": HOST + b"X: " + b"y" * 8200 + b"\r\n",
}


@pytest.mark.parametrize("head", SMUGGLED.values(), ids=SMUGGLED)
def test_what_could_be_read_in_two_ways_is_no_request(head: bytes) -> None:
    with pytest.raises(NotHttp):
        HttpRequest(head + b"\r\n")


@pytest.mark.parametrize("head", SMUGGLED.values(), ids=SMUGGLED)
async def test_nothing_that_follows_it_is_answered(head: bytes) -> None:
    judge = SteeredJudge()
    async with asking(judge) as ask, ask.raw() as (reader, writer), asyncio.timeout(30):
        body = question("a")
        writer.write(head + b"\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.0 400 ")
    assert answer.count(b"HTTP/1.") == 1
    assert not judge.asked


def test_a_plain_one_is_read() -> None:
    read = HttpRequest(b"GET /top?a=b HTTP/1.1\r\nHOST: a\r\nX: \xff\r\nX: 2\r\n\r\n")
    assert (read.method, read.path, read.query, read.length, read.keep_alive) == (
        "GET",
        "/top",
        "a=b",
        0,
        True,
    )
    assert read.header(b"x") == "\udcff"
    assert read.header(b"y") == ""
    assert HttpRequest(b"GET http://a:80/top?c HTTP/1.1\r\nHost: a\r\n\r\n").path == "/top"
    assert not HttpRequest(b"GET / HTTP/1.0\r\n\r\n").keep_alive
    assert not HttpRequest(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n").keep_alive
    assert HttpRequest(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01", b"x" * 9000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * MOST_HEAD]
)
def test_what_cannot_become_a_head_is_not_waited_for(data: bytes) -> None:
    with pytest.raises(NotHttp):
        head_length(data)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    yield from (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_chunks_are_read_however_they_are_cut(size: int) -> None:
    chunks = Chunks()
    sent = b"5;x=y\r\nhello\r\n00A\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
    read = b"".join(part for piece in pieces(sent, size) for part in chunks.feed(piece))
    assert (read, chunks.whole, chunks.surplus) == (b"hello0123456789", True, False)


@pytest.mark.parametrize(
    "sent",
    [
        b"g\r\n", b"-1\r\n", b"0x1\r\na\r\n", b"1 \r\na\r\n", b" 1\r\na\r\n", b"1\na\n", b"1\r\nab\r\n", b"\r\n",
        b"f" * 17 + b"\r\n",
    ],
)  # fmt: skip
def test_sizes_of_chunks_that_are_none_are_refused(sent: bytes) -> None:
    with pytest.raises(NotHttp):
        Chunks().feed(sent)


@pytest.mark.parametrize("sent", [b"1\r\nx\r\n", b"1;" + b"y" * 100 + b"\r\nx\r\n"], ids=["tiny", "extended"])
def test_chunks_that_are_little_but_overhead_are_refused(sent: bytes) -> None:
    chunks = Chunks()
    with pytest.raises(NotHttp, match="too small"):
        deque(map(chunks.feed, repeat(sent, 100_000)), maxlen=0)


def test_trailers_without_end_are_refused() -> None:
    chunks = Chunks()
    chunks.feed(b"0\r\n")
    with pytest.raises(NotHttp, match="too much"):
        deque(map(chunks.feed, repeat(b"a: b\r\n", 100_000)), maxlen=0)


async def test_what_follows_chunks_is_not_read_as_another_request() -> None:
    judge = SteeredJudge()
    async with asking(judge) as ask, ask.raw() as (reader, writer), asyncio.timeout(30):
        body = question("a")
        chunked = HOST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        writer.write(chunked + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close" in answer
    assert len(judge.asked) == 1
