"""A caller that a scheduler refuses is told which flag helps."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from colocate.clock import SystemClock
from colocate.errors import UserError
from colocate.lab.api.certificates import Authority
from colocate.lab.api.store import ObjectStore
from colocate.scheduler.client import NotAnswered, Where, ask
from colocate.scheduler.server.extender import serving
from colocate.scheduler.settings import DEFAULT_TOKEN_FILE, CallerSettings, Server, ServerTls
from tests.scheduler.asking import SteeredJudge, server


class Files:
    """Certificates of one authority, and one of another."""

    def __init__(self, folder: Path) -> None:
        authority, stranger = Authority.of(ObjectStore()), Authority.of(ObjectStore())
        self.ca, self.token = folder / "ca.crt", folder / "token"
        self.ca.write_bytes(authority.certificate)
        self.token.write_text("open-sesame\n")
        self.served, self.shown, self.strange = folder / "served", folder / "shown", folder / "strange"
        for file, pair in (
            (self.served, authority.server("extender")),
            (self.shown, authority.client("me")),
            (self.strange, stranger.client("me")),
        ):
            file.write_bytes(pair.certificate + pair.key)

    def settings(self, authority: Path | None = None, token: Path | None = None) -> Server:
        tls = ServerTls(certificate=self.served, key=self.served, client_authority=authority)
        return server(tls=tls, callers=CallerSettings(token_file=token))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@asynccontextmanager
async def telling(settings: Server) -> AsyncIterator[str]:
    async def top(query: Mapping[str, str]) -> bytes:
        return b"[]"

    async with serving(settings, SteeredJudge(), SystemClock(), {"/top": top}) as listening:
        yield listening.url


async def refusal(where: Where) -> str:
    with pytest.raises(NotAnswered) as raised:
        await ask(where, "/top")
    return str(raised.value)


async def test_whoever_has_all_that_it_takes_is_answered(files: Files) -> None:
    async with telling(files.settings(files.ca, files.token)) as url:
        where = Where(
            url=url, token_file=files.token, authority=files.ca, certificate=files.shown, key=files.shown
        )
        assert await ask(where, "/top") == b"[]"


async def test_a_certificate_that_is_not_trusted_needs_who_signed_it(files: Files) -> None:
    async with telling(files.settings(token=files.token)) as url:
        for where in (
            Where(url=url),
            Where(url=url, authority=files.ca, server_name="elsewhere.example"),
        ):
            said = await refusal(where)
            assert said.startswith(f"the certificate of the scheduler at {url} is not trusted (")
            assert said.endswith(
                "; give its authority with --ca-file, or the name in the certificate with --server-name"
            )


async def test_a_client_certificate_is_named_by_a_flag(files: Files) -> None:
    async with telling(files.settings(files.ca)) as url:
        said = await refusal(Where(url=url, authority=files.ca))
        assert said == (
            f"the scheduler at {url} asks for a client certificate; give one that its server.tls.clientAuthority has "
            f"signed with --cert-file, and its key with --key-file"
        )
        strange = await refusal(
            Where(url=url, authority=files.ca, certificate=files.strange, key=files.strange)
        )
        assert strange.startswith(f"the scheduler at {url} closed the connection (")
        assert strange.endswith(
            f"it may not accept the certificate {files.strange}; give another with --cert-file, and its "
            f"key with --key-file"
        )


async def test_a_token_is_named_by_a_flag(files: Files, tmp_path: Path) -> None:
    async with telling(files.settings(token=files.token)) as url:
        assert await refusal(Where(url=url, authority=files.ca)) == (
            f"the scheduler at {url} asks for a token; give a file with one with --token-file (on its "
            f"machine {DEFAULT_TOKEN_FILE}, unless its server.callers.tokenFile names another)"
        )
        wrong = tmp_path / "wrong"
        wrong.write_text("sesame")
        assert await refusal(Where(url=url, authority=files.ca, token_file=wrong)) == (
            f"the scheduler at {url} does not accept the token in {wrong}; give another file with --token-file"
        )


async def test_where_nobody_listens_the_address_is_in_question() -> None:
    assert "; give its address with --url" in await refusal(Where(url="http://127.0.0.1:9"))


async def test_files_that_cannot_be_used_are_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--ca-file: cannot read .*none .no such file"):
        await ask(Where(url="https://127.0.0.1:9", authority=tmp_path / "none"), "/top")
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match="--ca-file, --cert-file, --key-file: cannot use these files"):
        await ask(Where(url="https://127.0.0.1:9", certificate=tmp_path / "empty"), "/top")
