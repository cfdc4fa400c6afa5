"""Who may ask the extender: tokens, certificates, and files that change while it runs."""

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from colocate.errors import UserError
from colocate.lab.api.certificates import Authority, Pair
from colocate.lab.api.store import ObjectStore
from colocate.scheduler.settings import CallerSettings, Server, ServerTls
from tests.scheduler.asking import Answered, Asking, SteeredJudge, asking, question, server


def replace(path: Path, text: str | bytes) -> None:
    """As a mounted Secret is replaced: by another file."""
    other = path.with_suffix(".new")
    other.write_bytes(text if isinstance(text, bytes) else text.encode())
    other.replace(path)


class TestTokens:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "token"
        path.write_text("first\n")
        return path

    @asynccontextmanager
    async def ask(self, file: Path) -> AsyncIterator[Asking]:
        async with asking(SteeredJudge(), server(callers=CallerSettings(token_file=file))) as ask:
            yield ask

    async def shown(self, ask: Asking, authorization: str) -> Answered:
        return await ask.post("prioritize", question("a"), headers={"Authorization": authorization})

    async def test_whoever_shows_it_is_let_in(self, file: Path) -> None:
        async with self.ask(file) as ask:
            assert (await self.shown(ask, "Bearer first")).status == 200
            assert (await self.shown(ask, "bearer  first")).status == 200
            in_the_url = base64.b64encode(b"scheduler:first").decode()
            assert (await self.shown(ask, f"Basic {in_the_url}")).status == 200

    @pytest.mark.parametrize(
        "authorization",
        ["", "Bearer", "Bearer firs", "Bearer first1", "Basic first", "Basic Zmlyc3Q=", "first"],
    )
    async def test_nobody_else_is(self, file: Path, authorization: str) -> None:
        async with self.ask(file) as ask:
            answered = await self.shown(ask, authorization)
            assert (answered.status, answered.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert answered.sentence.startswith("this caller sends no valid token")
            assert "first" not in answered.sentence
            for path in ("/healthz", "/readyz"):
                assert (await ask.get(path)).status == 200, "a kubelet has no token"

    @pytest.mark.parametrize("shown", [b"Bearer \xff\xfe", b"Basic \xff", "Basic ü".encode(), b"\xff"])
    async def test_nor_whoever_shows_what_is_not_text(self, file: Path, shown: bytes) -> None:
        async with self.ask(file) as ask, ask.raw() as (reader, writer):
            writer.write(b"POST /prioritize HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n")
            writer.write(b"Authorization: " + shown + b"\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")

    async def test_another_takes_its_place_while_it_runs(self, file: Path) -> None:
        async with self.ask(file) as ask:
            replace(file, "first\nsecond\n")
            assert [(await self.shown(ask, f"Bearer {one}")).status for one in ("first", "second")] == [
                200,
                200,
            ]
            replace(file, "second")
            assert [(await self.shown(ask, f"Bearer {one}")).status for one in ("first", "second")] == [
                401,
                200,
            ]
            for broken in ("", "\n\n"):
                replace(file, broken)
                assert (await self.shown(ask, "Bearer second")).status == 200, "the one before it counts"
                assert (await self.shown(ask, "Bearer ")).status == 401
            file.unlink()
            assert (await self.shown(ask, "Bearer second")).status == 200

    @pytest.mark.parametrize("text", [None, "", " \n", b"\xff"])
    async def test_a_file_without_one_is_the_users_error(self, tmp_path: Path, text: Any) -> None:
        file = tmp_path / "token"
        if text is not None:
            replace(file, text)
        with pytest.raises(UserError, match=r"server.callers.tokenFile: .*token"):
            async with self.ask(file):
                pass


class Certified:
    """A folder with the server's certificate, and an authority that signs those of callers."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.of(ObjectStore())
        self.certificate, self.key, self.ca = folder / "tls.crt", folder / "tls.key", folder / "ca.crt"
        self.ca.write_bytes(self.authority.certificate)
        self.write(self.authority.server("extender"))
        self._folder = folder

    def write(self, pair: Pair) -> None:
        replace(self.certificate, pair.certificate)
        replace(self.key, pair.key)

    def settings(self, **more: Any) -> Server:
        return server(tls=ServerTls(certificate=self.certificate, key=self.key, **more))

    def client(self, shown: Pair | None = None, authority: Authority | None = None) -> ssl.SSLContext:
        trusted = (authority or self.authority).certificate.decode()
        context = ssl.create_default_context(cadata=trusted)
        if shown is not None:
            file = self._folder / "client.pem"
            file.write_bytes(shown.certificate + shown.key)
            context.load_cert_chain(file)
        return context


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    return Certified(tmp_path)


def asked_again(
    context: ssl.SSLContext, port: int, session: ssl.SSLSession | None = None
) -> tuple[bytes, ssl.SSLSession | None]:
    """The first line of an answer, and the session to go on with."""
    body = question("a")
    head = b"POST /prioritize HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as caller,
    ):
        caller.sendall(head + body)
        return caller.recv(65536), caller.session


class TestCertificates:
    async def test_https_is_believed_by_its_authority(self, certified: Certified) -> None:
        async with asking(SteeredJudge(), certified.settings(), ssl=certified.client()) as ask:
            assert ask.listening.url.startswith("https://127.0.0.1:")
            assert await ask.prioritized("a") == {"a": 5}

    async def test_a_new_certificate_is_shown_without_a_restart(self, certified: Certified) -> None:
        other = Authority.of(ObjectStore())
        async with asking(SteeredJudge(), certified.settings(), ssl=certified.client()) as ask:
            assert await ask.prioritized("a") == {"a": 5}
            replace(certified.certificate, other.server("extender").certificate)
            async with self.another(ask, certified.client()) as again:
                assert await again.prioritized("a") == {"a": 5}, (
                    "its key is not there yet: the old pair is shown"
                )
            certified.write(other.server("extender"))
            async with self.another(ask, certified.client(authority=other)) as again:
                assert await again.prioritized("a") == {"a": 5}
            async with self.another(ask, certified.client()) as again:
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await again.prioritized("a")
            assert await ask.prioritized("a") == {"a": 5}, "connections that are open go on"

    async def test_callers_must_show_one_where_an_authority_is_named(self, certified: Certified) -> None:
        settings = certified.settings(client_authority=certified.ca)
        async with asking(SteeredJudge(), settings, ssl=certified.client()) as ask:
            answered = await ask.post("prioritize", question("a"))
            assert answered.status == 401
            assert answered.sentence.startswith("this caller sends no client certificate")
            assert (await ask.get("/healthz")).status == 200, "a kubelet has none"
            shown = certified.client(certified.authority.client("system:kube-scheduler"))
            async with self.another(ask, shown) as again:
                assert await again.prioritized("a") == {"a": 5}
            stranger = certified.client(Authority.of(ObjectStore()).client("system:kube-scheduler"))
            async with self.another(ask, stranger) as again:
                with pytest.raises(aiohttp.ClientError):
                    await again.prioritized("a")

    async def test_a_new_authority_is_believed_and_the_old_one_no_more(self, certified: Certified) -> None:
        settings = certified.settings(client_authority=certified.ca)
        old = certified.client(certified.authority.client("scheduler"))
        async with asking(SteeredJudge(), settings, ssl=old) as ask:
            assert await ask.prioritized("a") == {"a": 5}
            other = Authority.of(ObjectStore())
            replace(certified.ca, other.certificate)
            async with self.another(ask, certified.client(other.client("scheduler"))) as again:
                assert await again.prioritized("a") == {"a": 5}
            async with self.another(ask, certified.client(certified.authority.client("scheduler"))) as again:
                with pytest.raises(aiohttp.ClientError):
                    await again.prioritized("a")

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    async def test_who_was_believed_by_an_old_authority_resumes_no_session_under_a_new_one(
        self, certified: Certified, version: ssl.TLSVersion
    ) -> None:
        settings = certified.settings(client_authority=certified.ca)
        context = certified.client(certified.authority.client("scheduler"))
        context.minimum_version = context.maximum_version = version
        async with asking(SteeredJudge(), settings, ssl=context) as ask:
            status, session = await asyncio.to_thread(asked_again, context, ask.listening.port)
            assert status.startswith(b"HTTP/1.1 200")
            replace(certified.ca, Authority.of(ObjectStore()).certificate)
            for _ in range(2):
                with suppress(OSError):
                    status, _ = await asyncio.to_thread(asked_again, context, ask.listening.port, session)
                    assert not status.startswith(b"HTTP/1.1 200")

    async def test_names_may_be_asked_for(self, certified: Certified) -> None:
        settings = certified.settings(client_authority=certified.ca, client_names=("system:kube-scheduler",))
        kubelet = certified.client(certified.authority.client("system:node:n1", "system:nodes"))
        async with asking(SteeredJudge(), settings, ssl=kubelet) as ask:
            answered = await ask.post("prioritize", question("a"))
            assert (answered.status, "clientNames" in answered.sentence) == (403, True)
            scheduler = certified.client(certified.authority.client("system:kube-scheduler"))
            async with self.another(ask, scheduler) as again:
                assert await again.prioritized("a") == {"a": 5}

    async def test_a_token_and_a_certificate_must_both_be_shown(
        self, certified: Certified, tmp_path: Path
    ) -> None:
        (tmp_path / "token").write_text("t")
        settings = server(
            tls=ServerTls(
                certificate=certified.certificate, key=certified.key, client_authority=certified.ca
            ),
            callers=CallerSettings(token_file=tmp_path / "token"),
        )
        shown = certified.client(certified.authority.client("scheduler"))
        async with asking(SteeredJudge(), settings, ssl=shown) as ask:
            assert (await ask.post("prioritize", question("a"))).status == 401
            headers = {"Authorization": "Bearer t"}
            assert (await ask.post("prioritize", question("a"), headers=headers)).status == 200

    async def test_files_that_cannot_be_used_are_the_users_error(self, certified: Certified) -> None:
        certified.ca.write_text("nothing")
        with pytest.raises(UserError, match=r"server.tls.clientAuthority: .*ca.crt cannot be used"):
            async with asking(SteeredJudge(), certified.settings(client_authority=certified.ca)):
                pass
        certified.key.unlink()
        with pytest.raises(UserError, match=r"server.tls: .*cannot be used \(no such file"):
            async with asking(SteeredJudge(), certified.settings()):
                pass

    @asynccontextmanager
    async def another(self, ask: Asking, context: ssl.SSLContext) -> AsyncIterator[Asking]:
        """Another caller of the same extender."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            yield Asking(session, ask.listening)
