"""What the client makes of servers that fail: what it repeats, what it does not, and what it says."""

import asyncio

import pytest
from aiohttp import web

from colocate.clock import Clock, ManualClock
from colocate.cluster import json_patch
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Connection, Login
from colocate.cluster.errors import (
    ApiStatus,
    ClusterError,
    Doing,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
    from_answer,
)
from colocate.cluster.resources import CONFIG_MAPS, PODS
from colocate.cluster.secret import Secret
from colocate.errors import Unavailable
from tests.support.nesting import DEEP

from .serving import Scripted, connect, free_port, new_server


async def through_pauses(clock: ManualClock, work: "asyncio.Task[object]") -> None:
    """Let time pass until the work is done."""
    while not work.done():
        await clock.until_someone_sleeps()
        await clock.advance(0.25)
        await asyncio.sleep(0.001)


async def test_a_read_is_repeated_until_it_works(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    scripted.say(500)
    scripted.cut()
    scripted.say(429, Retry_After="2")
    scripted.say(200, b'{"a": 1}')
    work = asyncio.create_task(asking.get(CONFIG_MAPS, "a"))
    await through_pauses(clock, work)
    assert work.result() == {"a": 1}
    # aiohttp itself repeats a read on a connection that was kept and has been closed meanwhile.
    assert len(scripted.seen) in (4, 5)
    assert clock.monotonic() >= 0.5 + 2


async def test_reads_are_not_repeated_for_ever(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    scripted.say(503, b"<html>over\nloaded</html>")
    work = asyncio.create_task(asking.get(CONFIG_MAPS, "a"))
    await through_pauses(clock, work)
    error = work.exception()
    assert isinstance(error, ServerError)
    assert str(error) == ("cannot get configmaps a in namespace default: code 503: <html>over loaded</html>")
    assert len(scripted.seen) == 4


@pytest.mark.parametrize("fault", ["500", "cut"])
async def test_a_write_that_may_have_been_done_is_not_repeated(
    scripted: Scripted, asking: Client, fault: str
) -> None:
    scripted.cut() if fault == "cut" else scripted.say(500)
    with pytest.raises((ServerError, Unreachable)):
        await asking.create(CONFIG_MAPS, {"metadata": {"name": "a"}})
    with pytest.raises((ServerError, Unreachable)):
        await asking.patch(CONFIG_MAPS, "a", json_patch.replace(("a",), 1, 2))
    assert scripted.methods == ["POST", "PATCH"]


async def test_a_write_that_was_turned_away_is_repeated(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    scripted.say(429, Retry_After="1")
    scripted.say(201)
    work = asyncio.create_task(asking.create(CONFIG_MAPS, {"metadata": {"name": "a"}}))
    await through_pauses(clock, work)
    assert work.result() == {}
    assert scripted.methods == ["POST", "POST"]
    assert scripted.bodies[0] == scripted.bodies[1]


async def test_a_write_is_repeated_where_no_server_listened(clock: ManualClock) -> None:
    port = free_port()
    scripted = Scripted()
    scripted.say(201)
    async with connect(f"http://127.0.0.1:{port}", clock) as client:
        work = asyncio.create_task(client.create(CONFIG_MAPS, {"metadata": {"name": "a"}}))
        await through_pauses(clock, work)
        error = work.exception()
    assert isinstance(error, Unreachable)
    assert isinstance(error, Unavailable)
    assert not error.sent
    assert str(error).startswith(
        f"cannot create configmaps in namespace default: no connection to http://127.0.0.1:{port}: "
    )
    assert clock.monotonic() >= 0.5 + 1 + 2


@pytest.mark.parametrize(
    "body",
    [b'{"metadata": {"na', b"", b"[]", b'{"metadata": 7}', b'{"metadata": {}, "items": [' + DEEP + b"]}"],
    ids=["half", "nothing", "no list", "no metadata", "deep"],
)
async def test_an_answer_that_cannot_be_read_is_the_servers_fault(
    scripted: Scripted, asking: Client, body: bytes
) -> None:
    scripted.say(200, body)
    with pytest.raises(ServerError, match="the answer cannot be read"):
        await asking.list(CONFIG_MAPS)


async def test_an_answer_nested_beyond_all_measure_is_the_servers_fault(
    scripted: Scripted, asking: Client
) -> None:
    scripted.say(200, b'{"data": ' + DEEP + b"}")
    scripted.say(403, b'{"message": ' + DEEP + b"}")
    with pytest.raises(ServerError, match="the answer cannot be read"):
        await asking.get(CONFIG_MAPS, "a")
    with pytest.raises(Forbidden):
        await asking.get(CONFIG_MAPS, "a")


async def test_half_an_answer_is_no_answer(scripted: Scripted, asking: Client, clock: ManualClock) -> None:
    scripted.cut(b'{"metadata": {"na')
    work = asyncio.create_task(asking.list(CONFIG_MAPS))
    await through_pauses(clock, work)
    assert isinstance(work.exception(), Unreachable)
    assert len(scripted.seen) == 4


async def test_a_server_that_does_not_answer_is_given_up(scripted: Scripted, clock: ManualClock) -> None:
    scripted.hang()
    async with connect(scripted.url, clock, settings=ClientSettings(attempts=1, timeout=7)) as client:
        work = asyncio.create_task(client.get(PODS, "p"))
        await scripted.asked.wait()
        await clock.advance(6.9)
        assert not work.done()
        await clock.advance(0.2)
        with pytest.raises(Unreachable, match="has not answered within 7 s"):
            await work


async def test_a_redirect_is_not_followed_with_the_credential(scripted: Scripted, asking: Client) -> None:
    scripted.say(302, b"", Location="http://127.0.0.1:1/elsewhere")
    with pytest.raises(Invalid, match="code 302"):
        await asking.get(PODS, "p")
    assert len(scripted.seen) == 1


async def test_names_reach_the_server_as_they_are(scripted: Scripted, asking: Client) -> None:
    scripted.say()
    await asking.get(PODS, "a/b %2F?c#d", "n s")
    request = scripted.seen[0]
    assert request.raw_path == "/api/v1/namespaces/n%20s/pods/a%2Fb%20%252F%3Fc%23d"


async def test_the_impersonated_user_is_sent(scripted: Scripted, clock: ManualClock) -> None:
    scripted.say()
    login = Login(username="u", password=Secret("p"), act_as="someone", act_as_groups=("a", "b"))
    async with Client(Connection(scripted.url, "the test", login=login), clock) as client:
        await client.get(PODS, "p")
    headers = scripted.seen[0].headers
    assert headers["Authorization"] == "Basic dTpw"
    assert headers["Impersonate-User"] == "someone"
    assert headers.getall("Impersonate-Group") == ["a", "b"]
    assert headers["User-Agent"].startswith("colocate/")


async def test_a_proxy_is_asked_and_its_password_not_shown(scripted: Scripted, clock: ManualClock) -> None:
    scripted.say(200, b'{"a": 1}')
    proxy = Secret(scripted.url.replace("//", "//u:s3cr3t@"))
    there = Connection("http://api.example:80", "the test", proxy=proxy)
    async with Client(there, clock, ClientSettings(attempts=1)) as client:
        assert await client.get(PODS, "p") == {"a": 1}
    assert scripted.seen[0].host == "api.example"
    scripted.answers.clear()
    scripted.say(407)
    secure = Connection("https://api.example", "the test", proxy=proxy)
    async with Client(secure, clock, ClientSettings(attempts=1)) as client:
        with pytest.raises(Unreachable) as raised:
            await client.get(PODS, "p")
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, Invalid), (403, Forbidden), (404, NotFound), (410, Gone), (413, Invalid), (500, ServerError)],
)
def test_every_code_is_an_error_that_names_what_was_done(code: int, kind: type[ClusterError]) -> None:
    error = from_answer(Doing("list", "pods"), code, None, b'{"message": "why"}', json_patch=False)
    assert type(error) is kind
    assert str(error) == "cannot list pods: why"
    assert error.code == code


@pytest.mark.parametrize(
    ("header", "details", "pause"),
    [("3", None, 3.0), (None, 5, 5.0), (None, None, None), ("soon", None, None), ("inf", None, None)],
)
def test_how_long_to_wait_is_read_from_header_or_details(
    header: str | None, details: float | None, pause: float | None
) -> None:
    body = b"{}" if details is None else b'{"details": {"retryAfterSeconds": %d}}' % int(details)
    error = from_answer(Doing("get", "pods"), 429, header, body, json_patch=False)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == pause


def test_what_is_forbidden_to_everybody_names_no_right() -> None:
    error = Forbidden(Doing("create", "pods", "old"), ApiStatus("the namespace is being terminated"))
    assert str(error).endswith("is being terminated")


async def test_a_connection_that_was_kept_is_not_trusted_to_be_open(clock: Clock) -> None:
    """A server restarts between two reads: the second goes over a new connection, unnoticed."""
    server = new_server(clock)
    await server.start(tls=False)
    port = int(server.url.rpartition(":")[2])
    async with connect(server.url, clock, settings=ClientSettings(attempts=1)) as client:
        await client.list(PODS)
        await server.stop()
        again = new_server(clock, server.store)
        await again.start(port=port, tls=False)
        try:
            assert await client.list(PODS) == []
        finally:
            await again.stop()


async def test_the_rest_of_the_request_is_not_left_hanging(scripted: Scripted, asking: Client) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    scripted.answers.append(slow)
    work = asyncio.create_task(asking.get(PODS, "p"))
    await scripted.asked.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
