"""Crowds of strangers on the extender's port: kube-scheduler and the kubelet's probes get through all the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from colocate.model.values import Seconds
from colocate.scheduler.settings import CallerSettings, ServerTls
from tests.scheduler.asking import Asking, SteeredJudge, asking, question, server
from tests.scheduler.test_server_access import Certified
from tests.support.crowds import Crowd, allow_files, crowd
from tests.support.waiting import until

TOKEN = {"Authorization": "Bearer secret"}
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
STRANGERS = 100
"""Of one address, by default."""


@pytest.fixture(autouse=True)
def many_files() -> None:
    allow_files(5000)


@asynccontextmanager
async def attacked(folder: Path, **limits: Any) -> AsyncIterator[tuple[Asking, Crowd]]:
    """An extender that asks for a token, kube-scheduler with a connection that it keeps, and an attacker."""
    file = folder / "token"
    file.write_text("secret\n")
    # Time alone would cut them off, too: not here.
    settings = server(callers=CallerSettings(token_file=file), header_timeout=Seconds(300), **limits)
    async with asking(SteeredJudge(), settings) as ask, crowd(ask.listening.port) as strangers:
        await served(ask, ask.session)
        yield ask, strangers


async def served(ask: Asking, session: aiohttp.ClientSession) -> None:
    url = f"{ask.listening.url}/prioritize"
    async with session.post(url, data=question("a"), headers=TOKEN) as answer:
        assert answer.status == 200


async def nobody_is_locked_out(ask: Asking, *, tls: Any = True) -> None:
    """kube-scheduler on a new connection, the kubelet's probes on theirs; several, one after the other."""
    for _ in range(5):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as another:
            await served(ask, another)
        for path in ("/healthz", "/readyz"):
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as kubelet,
                kubelet.get(f"{ask.listening.url}{path}") as answer,
            ):
                assert answer.status == 200


@pytest.mark.parametrize("count", [1010, 2000])
async def test_connections_kept_on_healthz_lock_out_neither_kube_scheduler_nor_probes(
    tmp_path: Path, count: int
) -> None:
    async with attacked(tmp_path) as (ask, strangers):
        await strangers.come(count, HEALTH)
        await nobody_is_locked_out(ask)
        await until(lambda: strangers.left() == 0, "the end of connections whose probe was answered")


@pytest.mark.parametrize("sending", [b"", b"GET /healthz HT", b"POST /prioritize HTTP/1.1\r\nX: "])
async def test_two_thousand_sockets_that_never_finish_a_request_are_cut_down_to_the_caps(
    tmp_path: Path, sending: bytes
) -> None:
    async with attacked(tmp_path) as (ask, strangers):
        await strangers.come(2000, sending)
        await nobody_is_locked_out(ask)
        await until(lambda: strangers.left() <= STRANGERS, "the caps to be kept")


async def test_a_local_user_gains_nothing_by_other_addresses_of_this_machine(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (ask, strangers):
        for last in range(2, 22):
            await strangers.come(50, source=f"127.0.0.{last}")
        await nobody_is_locked_out(ask)
        await until(lambda: strangers.left() <= STRANGERS, "all of them to count as one address")


async def test_bodies_without_end_of_callers_without_a_token_take_no_place_of_others(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (ask, strangers):
        endless = b"POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n{"
        await strangers.come(500, endless)
        await nobody_is_locked_out(ask)
        await until(lambda: strangers.left() <= STRANGERS, "those that were answered to make room")


async def test_the_connection_that_kube_scheduler_keeps_is_not_closed_for_a_crowd(tmp_path: Path) -> None:
    async with attacked(tmp_path, connections=40, per_address=5) as (ask, strangers), ask.raw() as kept:
        reader, writer = kept
        body = question("a")
        asked = b"POST /prioritize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Length: %d\r\n\r\n"
        for _ in range(3):
            writer.write(asked % len(body) + body)
            assert b" 200 " in await reader.readline()
            await reader.readuntil(b"}]")
            await strangers.come(200)
            await strangers.come(50, HEALTH)


async def test_whoever_shows_no_token_has_one_request_a_connection(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (ask, _):
        for path in (b"/healthz", b"/nowhere", b"/top"):
            async with ask.raw() as (reader, writer):
                writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
                answer = await reader.read()
                assert answer.count(b"HTTP/1.1 ") == 1
                assert b"Connection: close" in answer


async def test_handshakes_that_never_come_take_no_place_of_others(tmp_path: Path) -> None:
    """Before its handshake a connection is nobody's: it counts all the same."""
    certified = Certified(tmp_path)
    (tmp_path / "token").write_text("secret")
    settings = server(
        tls=ServerTls(certificate=certified.certificate, key=certified.key),
        callers=CallerSettings(token_file=tmp_path / "token"),
        header_timeout=Seconds(300),
    )
    shown = certified.client()
    async with (
        asking(SteeredJudge(), settings, ssl=shown) as ask,
        crowd(ask.listening.port) as strangers,
    ):
        before = open_files()
        await strangers.come(1010)
        await strangers.come(300, b"\x16\x03\x01\x02\x00")
        await nobody_is_locked_out(ask, tls=shown)
        await until(lambda: strangers.left() <= STRANGERS, "the caps to be kept")
        ours = open_files() - before - len(strangers.sockets)
        assert ours <= STRANGERS + 20, "sockets that were closed are closed here, too"


async def test_where_anyone_is_let_in_a_crowd_from_one_address_has_its_cap(tmp_path: Path) -> None:
    settings = server(connections=400)
    async with asking(SteeredJudge(), settings) as ask, crowd(ask.listening.port) as strangers:
        await strangers.come(500)
        assert await ask.prioritized("a") == {"a": 5}
        assert (await ask.get("/healthz")).status == 200
        await until(lambda: strangers.left() <= STRANGERS, "the caps to be kept")


async def test_a_thousand_callers_with_a_token_at_once_are_all_answered(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (ask, _):

        async def one() -> None:
            async with aiohttp.ClientSession() as session:
                await served(ask, session)

        await asyncio.gather(*(one() for _ in range(1000)))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
