"""What the client makes of servers that fail: what it repeats, what it does not, and what it says."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import hypothesis.strategies as st
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given

from colocate.clock import Clock, ManualClock
from colocate.cluster import json_patch
from colocate.cluster.certificate_dates import not_after
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Connection, Login, Pem
from colocate.cluster.errors import (
    ClusterError,
    Doing,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    Status,
    TooManyRequests,
    Unreachable,
    Untrusted,
    from_answer,
)
from colocate.cluster.resources import CONFIG_MAPS, PODS
from colocate.cluster.secret import Secret
from colocate.errors import Unavailable, UserError
from colocate.lab.api import certificates
from colocate.lab.api.certificates import Authority
from colocate.lab.api.server import ApiServer
from colocate.lab.api.store import Store

from .serving import Scripted, connect, free_port, new_server


@pytest.fixture
async def asking(scripted: Scripted, clock: ManualClock) -> AsyncIterator[Client]:
    async with connect(scripted.url, clock) as client:
        yield client


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


async def test_a_write_is_repeated_where_nobody_listened(clock: ManualClock) -> None:
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


@pytest.mark.parametrize("body", [b'{"metadata": {"na', b"", b"[]", b'{"metadata": 7}'])
async def test_an_answer_that_cannot_be_read_is_the_servers_fault(
    scripted: Scripted, asking: Client, body: bytes
) -> None:
    scripted.say(200, body)
    with pytest.raises(ServerError, match="the answer cannot be read"):
        await asking.list(CONFIG_MAPS)


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


async def test_whom_to_act_as_is_said(scripted: Scripted, clock: ManualClock) -> None:
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
    error = Forbidden(Doing("create", "pods", "old"), Status("the namespace is being terminated"))
    assert str(error).endswith("is being terminated")


# Certificates. Both sides take the dates from the machine, hence no clock of ours.


@pytest.fixture
async def with_tls(clock: ManualClock) -> AsyncIterator[ApiServer]:
    server = new_server(clock)
    await server.start()
    yield server
    await server.stop()


def over_tls(server: ApiServer, login: Login | None = None, authority: bytes | None = None) -> Connection:
    pem = Pem(data=Secret((authority or server.authority.certificate).decode()))
    return Connection(
        server.url, "the test", authority=pem, login=login or Login(token=Secret("admin-token"))
    )


def once(connection: Connection) -> Client:
    return Client(connection, settings=ClientSettings(attempts=1))


async def test_a_server_of_another_authority_is_not_trusted(with_tls: ApiServer) -> None:
    stranger = Authority.of(Store()).certificate
    # Tried once, however often reads are repeated: it will not get better.
    async with Client(over_tls(with_tls, authority=stranger)) as client:
        with pytest.raises(Untrusted) as raised:
            await client.list(PODS)
    text = str(raised.value)
    assert f"the certificate of {with_tls.url} is not trusted (" in text
    assert text.endswith("check certificate-authority and server in the test")
    assert not raised.value.sent


async def test_insecure_trusts_any(with_tls: ApiServer) -> None:
    connection = Connection(with_tls.url, "the test", insecure=True, login=Login(token=Secret("admin-token")))
    async with once(connection) as client:
        assert await client.list(PODS) == []


async def test_a_certificate_for_another_name_is_not_trusted(with_tls: ApiServer) -> None:
    from msgspec.structs import replace

    connection = replace(over_tls(with_tls), server_name="elsewhere.example")
    async with once(connection) as client:
        with pytest.raises(Untrusted, match=r"elsewhere\.example"):
            await client.list(PODS)
    async with once(replace(connection, server_name="localhost")) as client:
        assert await client.list(PODS) == []


async def test_plain_http_on_a_tls_port_is_no_answer(with_tls: ApiServer) -> None:
    async with once(Connection(with_tls.url.replace("https", "http"), "the test")) as client:
        with pytest.raises(ClusterError):
            await client.list(PODS)


async def test_tls_to_a_plain_port_is_said_in_words(scripted: Scripted) -> None:
    scripted.say()
    async with once(Connection(scripted.url.replace("http", "https"), "the test")) as client:
        with pytest.raises(Untrusted, match="no connection to https"):
            await client.list(PODS)


class Past:
    """A machine whose clock is eleven years behind, to sign what has expired since."""

    @staticmethod
    def now(zone: object) -> datetime:
        return datetime.now(UTC) - timedelta(days=365 * 11)


async def test_an_expired_certificate_of_the_server_is_named(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    Authority.of(store)
    server = new_server(clock, store)
    monkeypatch.setattr(certificates, "datetime", Past)
    await server.start()
    try:
        async with once(over_tls(server)) as client:
            with pytest.raises(Untrusted, match="certificate has expired"):
                await client.list(PODS)
    finally:
        await server.stop()


async def test_an_expired_certificate_of_the_client_is_named(
    with_tls: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "datetime", Past)
    pair = with_tls.authority.client("old")
    login = Login(
        certificate=Pem(data=Secret(pair.certificate.decode())), key=Pem(data=Secret(pair.key.decode()))
    )
    async with once(over_tls(with_tls, login)) as client:
        with pytest.raises(Untrusted) as raised:
            await client.list(PODS)
    assert "our client certificate has expired on 20" in str(raised.value)
    assert str(raised.value).endswith("renew the one in the test")


async def test_certificates_that_are_renewed_in_their_files_are_used(
    with_tls: ApiServer, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("ca", "crt", "key")}
    stranger = Authority.of(Store())

    def write(authority: Authority) -> None:
        pair = authority.client("someone", "system:masters")
        for name, data in (("ca", authority.certificate), ("crt", pair.certificate), ("key", pair.key)):
            fresh = tmp_path / "fresh"
            fresh.write_bytes(data)
            fresh.replace(files[name])

    write(stranger)
    login = Login(certificate=Pem(file=files["crt"]), key=Pem(file=files["key"]))
    connection = Connection(with_tls.url, "the test", authority=Pem(file=files["ca"]), login=login)
    async with once(connection) as client:
        with pytest.raises(Untrusted):
            await client.list(PODS)
        write(with_tls.authority)
        assert await client.list(PODS) == []
        files["key"].write_text("half a ke")
        assert await client.list(PODS) == []


def _encrypted(key: bytes) -> bytes:
    loaded = serialization.load_pem_private_key(key, None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


@pytest.mark.parametrize("fault", ["ca", "missing", "mismatch", "encrypted"])
async def test_certificates_that_cannot_be_used_are_a_users_fault(
    with_tls: ApiServer, tmp_path: Path, fault: str
) -> None:
    one, other = with_tls.authority.client("one"), with_tls.authority.client("other")
    key = {"mismatch": other.key, "encrypted": _encrypted(one.key)}.get(fault, one.key)
    ca = b"no certificate" if fault == "ca" else with_tls.authority.certificate
    (tmp_path / "ca").write_bytes(ca)
    (tmp_path / "crt").write_bytes(one.certificate)
    if fault != "missing":
        (tmp_path / "key").write_bytes(key)
    login = Login(certificate=Pem(file=tmp_path / "crt"), key=Pem(file=tmp_path / "key"))
    connection = Connection(with_tls.url, "the test", authority=Pem(file=tmp_path / "ca"), login=login)
    words = {
        "ca": "holds no certificate in PEM; copy it again",
        "missing": "client-key .* cannot be read: no such file",
        "mismatch": "and its key cannot be used",
        "encrypted": "they must be PEM, unencrypted, and belong together",
    }
    async with once(connection) as client:
        with pytest.raises(UserError, match=words[fault]):
            await client.list(PODS)


def test_the_samples_are_expired() -> None:
    assert x509.load_pem_x509_certificate(
        Authority.of(Store()).certificate
    ).not_valid_after_utc > datetime.now(UTC)
    assert Past.now(None) + timedelta(days=3650) < datetime.now(UTC)


def test_the_end_of_a_certificate_is_read() -> None:
    pem = Authority.of(Store()).certificate
    expected = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    assert not_after(pem.decode()) == expected
    assert not_after(f"key\n{pem.decode()}\nmore") == expected


@given(st.binary(max_size=60) | st.just(b"") | st.integers(0, 400).map(lambda n: b"%d" % n))
def test_what_is_no_certificate_has_no_end(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    assert not_after(f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----") is None
    assert not_after(text) is None


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
