"""Whoever sends what is no HTTP to a port of ours: it is turned away, counted, and never told to the log."""

import asyncio
import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from prometheus_client import REGISTRY
from tests.scheduler.asking import SteeredJudge, asking
from tests.support.logs import logged
from tests.support.waiting import until

from colocate import telemetry
from colocate.http import connection, metrics_server
from colocate.http.listener import bound_sockets

SHOWN = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer secret"
GARBAGE = {
    "a token with a control character": SHOWN + b"\x01\r\n\r\n",
    "a token without end": SHOWN + b"x" * 9000,
    "a password in an address": b"GET http://user:secret@a:bad/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "no host": b"GET /metrics?secret HTTP/1.1\r\n\r\n",
    "an escape sequence": b"GET /secret\x1b[31m HTTP/1.1\r\nHost: a\r\n\r\n",
}


@asynccontextmanager
async def port(server: str) -> AsyncIterator[int]:
    if server == "extender":
        async with asking(SteeredJudge()) as ask:
            yield ask.listening.port
        return
    listener = await metrics_server.listen("127.0.0.1", 0)
    try:
        yield listener.port
    finally:
        await listener.end()


def counted(server: str) -> float:
    telemetry.register_metrics()
    labels = {"server": server, "reason": "not http"}
    return REGISTRY.get_sample_value("colocate_http_connections_closed_total", labels) or 0.0


@pytest.mark.parametrize("server", ["extender", "metrics"])
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_from_anybody_fills_no_log_and_tells_no_token(server: str, garbage: bytes) -> None:
    before = counted(server)
    with logged() as logs:
        async with port(server) as where:
            reader, writer = await asyncio.open_connection("127.0.0.1", where)
            writer.write(garbage)
            answer = await reader.read()
            writer.close()
    assert answer.startswith(b"HTTP/1.0 400 ")
    assert b"secret" not in answer
    assert [line for line in logs if line["log_level"] not in ("debug", "info", "warning")] == []
    assert "secret" not in str(logs)
    assert counted(server) == before + 1


LONG = {
    "no request at all": b"x" * (1 << 20),
    "a header without end": b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: " + b"y" * (1 << 20),
    "headers without end": b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200_000,
    "no chunks": SHOWN + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + b"z" * (1 << 20),
    "an upgrade to nothing": SHOWN
    + b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    + b"x" * (1 << 20),
}


@pytest.mark.parametrize("server", ["extender", "metrics"])
@pytest.mark.parametrize("garbage", LONG.values(), ids=LONG)
async def test_a_stranger_who_sends_garbage_again_and_again_leaves_none_of_it_in_memory(
    server: str, garbage: bytes
) -> None:
    async def come() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", where)
        with suppress(ConnectionError):
            writer.write(garbage)
            await reader.read()
        writer.transport.abort()

    async with port(server) as where:
        await come()
        gc.collect()
        # What is freed when the collector comes by is not freed in time: each connection would hold a megabyte.
        gc.disable()
        tracemalloc.start(1)
        try:
            for _ in range(10):
                await come()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert kept < 2 * len(garbage)


@pytest.mark.parametrize("server", ["extender", "metrics"])
async def test_a_stranger_whose_body_comes_in_chunks_of_a_byte_is_not_listened_to(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred such bodies would keep the process busy, and kube-scheduler waiting, for half a minute."""
    monkeypatch.setattr(connection, "_LINGER", 3600.0)
    async with port(server) as where, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", where)
        writer.write(b"POST /nowhere HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
        writer.close()


def busy() -> int:
    """Connections to a server here on which an answer waits to be read."""
    return sum(
        isinstance(one, connection.HttpConnection) and one.asking and one.unread for one in gc.get_objects()
    )


async def narrow_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets whose connections hold little of an answer that is not read."""
    made = await bound_sockets(host, port)
    for one in made:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return made


async def test_callers_that_ask_and_do_not_read_leave_a_place_to_whoever_scrapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_server, "bound_sockets", narrow_sockets)
    most = metrics_server.LIMITS.places.per_address
    async with port("metrics") as where, AsyncExitStack() as greedy:
        for _ in range(most):
            one = greedy.enter_context(socket.create_connection(("127.0.0.1", where)))
            one.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
        await until(lambda: busy() == most, "every place to be taken by somebody who does not read")
        reader, writer = await asyncio.open_connection("127.0.0.1", where)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
