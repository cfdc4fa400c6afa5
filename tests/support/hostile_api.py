"""API servers that nobody would want: each answers in a way of its own that an agent has to survive, and to leave."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import yaml

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


async def _question(reader: asyncio.StreamReader) -> str:
    """The first line of a request."""
    head = await reader.readuntil(b"\r\n\r\n")
    return head.split(b"\r\n", 1)[0].decode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes every question and answers none."""
    await asyncio.Event().wait()


async def _trickling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers a byte at a time, without an end."""
    await _question(reader)
    writer.write(_HEAD)
    while True:
        writer.write(_chunk(b" "))
        await writer.drain()
        await asyncio.sleep(0.05)


async def _slow_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never comes to the end of its headers."""
    await _question(reader)
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: 1\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A list that goes on and on, as fast as it is read."""
    await _question(reader)
    writer.write(_HEAD + _chunk(b'{"metadata":{"resourceVersion":"1"},"items":['))
    item = (
        b'{"metadata":{"name":"p","namespace":"d","uid":"u","annotations":{"a":"' + b"x" * 60_000 + b'"}}},'
    )
    while True:
        writer.write(_chunk(item))
        await writer.drain()
        await asyncio.sleep(0.001)


def _event(number: int) -> bytes:
    marks = {"name": f"p{number}", "namespace": "d", "uid": f"u{number}", "resourceVersion": "2"}
    return json.dumps({"type": "MODIFIED", "object": {"metadata": marks}}).encode() + b"\n"


_EVENTS = _chunk(b"".join(map(_event, range(1000))))


async def _events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Good lists, and watches that tell of changes without a pause. Writes are never answered."""
    while True:
        asked = await _question(reader)
        if not asked.startswith("GET"):
            await asyncio.Event().wait()
        writer.write(_HEAD)
        if "watch=true" not in asked:
            writer.write(_chunk(b'{"metadata":{"resourceVersion":"1"},"items":[]}') + b"0\r\n\r\n")
            await writer.drain()
            continue
        while True:
            writer.write(_EVENTS)
            await writer.drain()
            await asyncio.sleep(0.001)  # Whoever else is in this process has to get on, too.


async def _hanging_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes every connection after the question."""
    await _question(reader)


async def _no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes the beginning of a TLS handshake, and answers with a byte now and then that is none."""
    await reader.read(1)
    while True:
        writer.write(b"\x16")
        await writer.drain()
        await asyncio.sleep(0.05)


async def _busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says to everything that it is too busy, for an hour."""
    while True:
        await _question(reader)
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()


HOSTILE: Mapping[str, Answer] = {
    "silent": _silent,
    "trickling": _trickling,
    "slow head": _slow_head,
    "endless": _endless,
    "events without end": _events,
    "hanging up": _hanging_up,
    "no TLS": _no_tls,
    "busy": _busy,
}


@asynccontextmanager
async def hostile_api(answer: Answer, kubeconfig: Path) -> AsyncIterator[asyncio.Event]:
    """Such a server, which a kubeconfig names; what is given is set once somebody has connected."""
    met = asyncio.Event()
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        met.set()
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError):
                await answer(reader, writer)
        finally:
            talks.discard(task)
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    scheme = "https" if answer is _no_tls else "http"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"{scheme}://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    try:
        yield met
    finally:
        server.close()
        for task in list(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
