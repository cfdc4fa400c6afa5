"""Which certificates of a server the client trusts, and which of its own it can use.

Both sides take the dates from the machine, hence no clock of ours.
"""

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import hypothesis.strategies as st
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given

from colocate.clock import ManualClock
from colocate.cluster.certificate_dates import not_after
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Connection, Login, Pem
from colocate.cluster.errors import ClusterError, Untrusted
from colocate.cluster.resources import PODS
from colocate.cluster.secret import Secret
from colocate.errors import UserError
from colocate.lab.api import certificates
from colocate.lab.api.certificates import Authority
from colocate.lab.api.server import ApiServer
from colocate.lab.api.store import ObjectStore

from .serving import Scripted, new_server


def over_tls(server: ApiServer, login: Login | None = None, authority: bytes | None = None) -> Connection:
    pem = Pem(data=Secret((authority or server.authority.certificate).decode()))
    return Connection(
        server.url, "the test", authority=pem, login=login or Login(token=Secret("admin-token"))
    )


def once(connection: Connection) -> Client:
    return Client(connection, settings=ClientSettings(attempts=1))


async def test_a_server_of_another_authority_is_not_trusted(with_tls: ApiServer) -> None:
    stranger = Authority.of(ObjectStore()).certificate
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
        with pytest.raises(Untrusted, match=r"no connection to https\S+: [a-z ]+$"):
            await client.list(PODS)


class Past:
    """A machine whose clock is eleven years behind, to sign what has expired since."""

    @staticmethod
    def now(zone: object) -> datetime:
        return datetime.now(UTC) - timedelta(days=365 * 11)


async def test_an_expired_certificate_of_the_server_is_named(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore()
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
    assert "our client certificate expired on 20" in str(raised.value)
    assert str(raised.value).endswith("renew the one in the test")


@contextmanager
def demanding(authority: Authority, version: ssl.TLSVersion) -> Iterator[str]:
    """The address of a server that demands a client certificate and, as most do and asyncio does not, says why it
    hangs up."""
    context = authority.server_context()
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, version

    def serve() -> None:
        with suppress(OSError):
            while True:
                meet(listening.accept()[0])

    def meet(caller: socket.socket) -> None:
        with context.wrap_socket(caller, server_side=True, do_handshake_on_connect=False) as secured:
            secured.settimeout(5)
            with suppress(ssl.SSLError):
                secured.do_handshake()
            # Not closed at once: what the caller has sent would have it reset, and the reason lost.
            secured.shutdown(socket.SHUT_WR)
            while secured.recv(1 << 16):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


async def refusal(url: str, authority: Authority, login: Login) -> str:
    connection = Connection(
        url, "the test", authority=Pem(data=Secret(authority.certificate.decode())), login=login
    )
    async with once(connection) as client:
        with pytest.raises(Untrusted) as raised:
            await client.list(PODS)
    return str(raised.value)


async def test_a_server_that_demands_a_certificate_where_there_is_none_is_told_so() -> None:
    authority = Authority.of(ObjectStore())
    with demanding(authority, ssl.TLSVersion.TLSv1_3) as url:
        said = await refusal(url, authority, Login())
    assert said == (
        f"cannot list pods: {url} asks for a client certificate (certificate required), but the test has none; add "
        f"one, with its key"
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
async def test_a_certificate_that_the_server_does_not_accept_is_to_be_renewed(
    version: ssl.TLSVersion,
) -> None:
    authority, stranger = Authority.of(ObjectStore()), Authority.of(ObjectStore()).client("someone")
    login = Login(
        certificate=Pem(data=Secret(stranger.certificate.decode())),
        key=Pem(data=Secret(stranger.key.decode())),
    )
    with demanding(authority, version) as url:
        said = await refusal(url, authority, login)
    assert said == (
        f"cannot list pods: {url} does not accept our client certificate (unknown ca); renew the one in the test"
    )


async def test_certificates_that_are_renewed_in_their_files_are_used(
    with_tls: ApiServer, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("ca", "crt", "key")}
    stranger = Authority.of(ObjectStore())

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
        "ca": "has no certificate in PEM; copy it again",
        "missing": "client-key .* cannot be read: no such file",
        "mismatch": "and its key cannot be used",
        "encrypted": "they must be PEM, unencrypted, and belong together",
    }
    async with once(connection) as client:
        with pytest.raises(UserError, match=words[fault]):
            await client.list(PODS)


def test_the_samples_are_expired() -> None:
    assert x509.load_pem_x509_certificate(
        Authority.of(ObjectStore()).certificate
    ).not_valid_after_utc > datetime.now(UTC)
    assert Past.now(None) + timedelta(days=3650) < datetime.now(UTC)


def test_the_end_of_a_certificate_is_read() -> None:
    pem = Authority.of(ObjectStore()).certificate
    expected = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    assert not_after(pem.decode()) == expected
    assert not_after(f"key\n{pem.decode()}\nmore") == expected


@given(st.binary(max_size=60) | st.just(b"") | st.integers(0, 400).map(lambda n: b"%d" % n))
def test_what_is_no_certificate_has_no_end(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    assert not_after(f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----") is None
    assert not_after(text) is None
