"""Asks a running scheduler, for `colocate scheduler explain` and similar commands."""

import ssl
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from colocate.cluster.secret import Secret
from colocate.cluster.trouble import in_words, of_certificate, of_our_certificate
from colocate.errors import ColocateError, UserError, unreadable
from colocate.scheduler import settings
from colocate.scheduler.kube.configuration import without_login

T = TypeVar("T")
_PATIENCE = aiohttp.ClientTimeout(total=60, connect=10)


class NotAnswered(ColocateError):
    """The scheduler said no, or nothing; the sentence says why."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach one."""

    url: str = "http://127.0.0.1:8890"
    """`unix:/path` for a socket on this machine."""
    token_file: Path | None = None
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""

    @property
    def shown(self) -> str:
        """The address, as it may be shown."""
        return without_login(self.url)


async def ask(where: Where, path: str, **query: str) -> bytes:
    """The body of an answer; NotAnswered where there is none, a UserError where the question cannot be answered."""
    socket = where.url.removeprefix("unix:") if where.url.startswith("unix:") else ""
    if not socket and not where.url.startswith(("http://", "https://")):
        raise UserError(f"--url: {where.shown!r} is not an address; write http://HOST:PORT or unix:/PATH")
    connector = aiohttp.UnixConnector(socket) if socket else aiohttp.TCPConnector(ssl=_context(where) or True)
    url = "http://scheduler" if socket else where.url.rstrip("/")
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=_PATIENCE) as session,
            session.get(
                f"{url}{path}",
                params=query,
                headers=_headers(where),
                server_hostname=where.server_name or None,
            ) as response,
        ):
            body = await response.read()
            if response.status == 401:
                # Its own words are for kube-scheduler.
                raise NotAnswered(_to_show(where, token="WWW-Authenticate" in response.headers))
            if response.status != 200:
                said = body.decode(errors="replace").strip()[:500]
                wrong = UserError if response.status == 400 else NotAnswered
                raise wrong(said or f"the scheduler answers with status {response.status}")
            return body
    except TimeoutError:
        raise NotAnswered(
            f"the scheduler at {where.shown} does not answer in time; look at its log"
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise NotAnswered(_trouble(where, error)) from None


def _trouble(where: Where, error: aiohttp.ClientError | OSError) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return (
            f"the certificate of the scheduler at {where.shown} is not trusted ({of_certificate(error)}); give "
            f"its authority with --ca-file, or the name in the certificate with --server-name"
        )
    refused = bool(of_our_certificate(error))
    if refused and where.certificate is None:
        return _to_show(where)
    encrypted = where.url.startswith("https://")
    if encrypted and where.certificate and (refused or not isinstance(error, aiohttp.ClientConnectorError)):
        # A server that does not accept our certificate mostly hangs up without a reason.
        return (
            f"the scheduler at {where.shown} closed the connection ({in_words(error)}): it may not accept the "
            f"certificate {where.certificate}; give another with --cert-file, and its key with --key-file"
        )
    return (
        f"cannot reach the scheduler at {where.shown} ({in_words(error)}); give its address with --url, or, where "
        f"the command has it, a snapshot with --snapshot"
    )


def _to_show(where: Where, *, token: bool = False) -> str:
    """What a scheduler misses, and the flag that names it."""
    if not token:
        return (
            f"the scheduler at {where.shown} asks for a client certificate; give one that its "
            f"server.tls.clientAuthority has signed with --cert-file, and its key with --key-file"
        )
    file = where.token_file
    if file is None:
        return (
            f"the scheduler at {where.shown} asks for a token; give a file with one with --token-file (on its "
            f"machine {settings.DEFAULT_TOKEN_FILE}, unless its server.callers.tokenFile names another)"
        )
    return f"the scheduler at {where.shown} does not accept the token in {file}; give another file with --token-file"


def decoded(body: bytes, kind: type[T]) -> T:
    """An answer as what it should be."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise NotAnswered(f"the answer is not from a scheduler of this version: {error}") from None


def _headers(where: Where) -> dict[str, str]:
    if where.token_file is None:
        return {}
    try:
        token = Secret(where.token_file.read_text().split()[0])
    except IndexError:
        raise UserError(f"--token-file: {where.token_file} is empty; put a token into it") from None
    except (OSError, UnicodeDecodeError) as error:
        why = unreadable(error)
        raise UserError(f"--token-file: cannot read {where.token_file} ({why}); check the path") from None
    return {"Authorization": f"Bearer {token.reveal()}"}


def _context(where: Where) -> ssl.SSLContext | None:
    if not where.url.startswith("https://"):
        return None
    for flag, file in (
        ("--ca-file", where.authority),
        ("--cert-file", where.certificate),
        ("--key-file", where.key),
    ):
        try:
            if file is not None:
                file.read_bytes()
        except OSError as error:
            raise UserError(f"{flag}: cannot read {file} ({in_words(error)}); give another file") from None
    try:
        context = ssl.create_default_context(cafile=str(where.authority) if where.authority else None)
        if where.certificate is not None:
            context.load_cert_chain(where.certificate, where.key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"--ca-file, --cert-file, --key-file: cannot use these files ({in_words(error)}); they must be PEM, and "
            f"the key must belong to the certificate"
        ) from None
    return context
