"""Sends requests to a server: one session, the current credential, a deadline, readable errors.

The server is the API server or Prometheus. The only retry here is after a refused credential, which is renewed: a
refused request has changed nothing.
"""

import asyncio
import socket
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler

from colocate import __version__
from colocate.aio import deadline
from colocate.clock import Clock
from colocate.cluster.connection import Connection
from colocate.cluster.credentials import Credentials, ShownCredentials
from colocate.cluster.errors import (
    ApiError,
    Doing,
    Unauthorized,
    Unreachable,
    Untrusted,
    from_answer,
    redirected,
    too_long,
    unreadable,
)
from colocate.cluster.tls import Tls
from colocate.cluster.trouble import in_words, of_certificate, of_our_certificate
from colocate.telemetry import CLUSTER_REQUEST_SECONDS, CLUSTER_REQUESTS

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
LONGEST_ANSWER = 16 << 20
"""Bytes. An object has at most 1.5 MiB in etcd by default; a page of a list has a few MiB."""
_BUFFER = 1 << 18
_REFUSAL = 1 << 16
"""Bytes of a refusal that are read: enough for its reason."""
_LINES = 1000
_LINE = 32
"""The least average length of a line, in bytes, beyond `_LINES` lines in what is received at once. JSON bodies have
no lines, a header has about thirty bytes, and a chunk of any real server has hundreds of bytes and two lines."""
_IN_VAIN = 1 << 20
"""Bytes that may arrive without any of the answer's body among them."""
# A server that vanished is noticed within a minute, before the next time-out of a watch.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4))


class Request(msgspec.Struct, frozen=True):
    """One request, without credentials."""

    doing: Doing
    method: str
    path: str
    parameters: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = JSON
    at_most: int | None = None
    """The longest answer to read, in bytes; the answer is then requested uncompressed, so that its length is
    true."""
    at_most_by: str = ""
    """The setting of that bound, for messages."""
    streamed: bool = False
    """Whether the answer is streamed, and therefore requested uncompressed."""

    @property
    def plain(self) -> bool:
        return self.streamed or self.at_most is not None


class Transport:
    """Sends requests over one connection."""

    def __init__(self, connection: Connection, clock: Clock, credentials: Credentials | None = None) -> None:
        self._connection = connection
        self._clock = clock
        self._credentials = credentials or Credentials(connection.login, clock)
        self._tls = Tls(connection)
        self._session: aiohttp.ClientSession | None = None
        self.clock_offset: float | None = None
        """Seconds by which the server's clock is ahead of ours; None where unknown."""

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, request: Request, seconds: float, longest: int = LONGEST_ANSWER) -> bytes:
        """The body of a successful answer within `seconds`; anything else is an error. `longest` is the most bytes
        to read, decompressed, where the request sets no bound."""
        async with self._within(request, seconds):
            response = await self._send(request)
            try:
                return await self._read(request, response, longest)
            except (aiohttp.ClientError, OSError) as error:
                raise self._trouble(request.doing, error) from error
            finally:
                response.release()

    async def _read(self, request: Request, response: aiohttp.ClientResponse, longest: int) -> bytes:
        _check_plain(request, response)
        at_most = longest if request.at_most is None else request.at_most
        body = await _beginning(response, at_most + 1, packed=not request.plain)
        if len(body) > at_most:
            raise too_long(request.doing, at_most, request.at_most_by)
        return body

    @asynccontextmanager
    async def stream(self, request: Request, seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream a successful answer. `seconds` is for its beginning; the caller limits the rest."""
        async with self._within(request, seconds):
            response = await self._send(request)
        try:
            _check_plain(request, response)
            async with aclosing(self._pieces(request, response)) as pieces:
                yield pieces
        finally:
            # Closed and not released: the connection is in the middle of an answer.
            response.close()

    async def _pieces(
        self, request: Request, response: aiohttp.ClientResponse
    ) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise self._trouble(request.doing, error) from error

    @asynccontextmanager
    async def _within(self, request: Request, seconds: float) -> AsyncIterator[None]:
        try:
            async with deadline(self._clock, seconds):
                yield
        except TimeoutError:
            raise Unreachable(
                f"cannot {request.doing}: {self._connection.server} has not answered within {seconds:g} s"
            ) from None

    async def _send(self, request: Request) -> aiohttp.ClientResponse:
        shown = await self._credentials.current()
        try:
            return await self._counted(request, shown)
        except Unauthorized:
            if not await self._credentials.renewed(shown):
                raise
        return await self._counted(request, await self._credentials.current())

    async def _counted(self, request: Request, shown: ShownCredentials) -> aiohttp.ClientResponse:
        doing = request.doing
        begun = self._clock.monotonic()
        outcome = "cancelled"
        try:
            response = await self._once(request, shown)
            outcome = "ok"
            return response
        except (aiohttp.ClientError, OSError) as error:
            outcome = "unreachable"
            raise self._trouble(doing, error) from error
        except ApiError as error:
            outcome = str(error.code)
            raise
        finally:
            CLUSTER_REQUESTS.labels(doing.verb, doing.resource, outcome).inc()
            CLUSTER_REQUEST_SECONDS.labels(doing.verb, doing.resource).observe(
                self._clock.monotonic() - begun
            )

    async def _once(self, request: Request, shown: ShownCredentials) -> aiohttp.ClientResponse:
        connection = self._connection
        context = self._tls.context(shown)
        response = await self._open().request(
            request.method,
            f"{connection.server}{request.path}",
            params=request.parameters,
            data=request.body,
            headers=self._headers(request, shown),
            ssl=True if context is None else context,
            server_hostname=connection.server_name or None,
            proxy=connection.proxy.reveal() if connection.proxy else None,
            # Redirects are not followed: the credential must go only to its own server.
            allow_redirects=False,
            # aiohttp would decompress without a bound.
            auto_decompress=False,
        )
        self._compare_clocks(response.headers.get("Date", ""))
        if response.status < 300:
            return response
        async with response:
            body = await _beginning(response, _REFUSAL, packed=not request.plain)
        if response.status < 400:
            raise redirected(request.doing, response.status, response.headers.get("Location", ""))
        raise from_answer(
            request.doing,
            response.status,
            response.headers.get("Retry-After"),
            body,
            json_patch=request.content_type == JSON_PATCH,
        )

    def _compare_clocks(self, date: str) -> None:
        with suppress(ValueError, OverflowError):
            # The header has whole seconds only.
            self.clock_offset = parsedate_to_datetime(date).timestamp() + 0.5 - self._clock.time()

    def _headers(self, request: Request, shown: ShownCredentials) -> list[tuple[str, str]]:
        login = self._connection.login
        headers = [("Accept", JSON)]
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        headers.append(("Accept-Encoding", "identity" if request.plain else "gzip"))
        if shown.authorization:
            headers.append(("Authorization", shown.authorization.reveal()))
        if login.act_as:
            headers.append(("Impersonate-User", login.act_as))
            headers += [("Impersonate-Group", group) for group in login.act_as_groups]
        return headers

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(socket_factory=_socket)
            # There is no public way to see the bytes before its parser.
            connector._factory = partial(_Answers, loop=asyncio.get_running_loop())  # type: ignore[assignment]
            self._session = aiohttp.ClientSession(
                connector=connector,
                # Deadlines use our clock.
                timeout=aiohttp.ClientTimeout(),
                read_bufsize=_BUFFER,
                headers={"User-Agent": f"colocate/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _trouble(self, doing: Doing, error: aiohttp.ClientError | OSError) -> Unreachable:
        """The error for a failed connection, in words."""
        connection = self._connection
        if said := of_our_certificate(error):
            return Untrusted(f"cannot {doing}: {connection.server} {self._refused_for(said)}", sent=False)
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return Untrusted(
                    f"cannot {doing}: the certificate of {connection.server} is not trusted "
                    f"({of_certificate(error)}); check certificate-authority and server in {connection.origin}",
                    sent=False,
                )
            case aiohttp.ClientConnectorError():
                kind: type[Unreachable] = Untrusted if isinstance(error, ssl.SSLError) else Unreachable
                words = f"cannot {doing}: no connection to {connection.server}: {in_words(error)}"
                return kind(words, sent=False)
        end = self._tls.client_certificate_end()
        if end is not None and end < self._clock.time():
            # Servers that check it in the handshake usually close without a message.
            day = datetime.fromtimestamp(end, UTC).date()
            return Untrusted(
                f"cannot {doing}: {connection.server} closed the connection, and our client certificate "
                f"expired on {day}; renew the one in {connection.origin}"
            )
        return Unreachable(f"cannot {doing}: the connection to {connection.server} broke: {in_words(error)}")

    def _refused_for(self, alert: str) -> str:
        origin = self._connection.origin
        if self._tls.shows_certificate:
            return f"does not accept our client certificate ({alert}); renew the one in {origin}"
        return f"asks for a client certificate ({alert}), but {origin} has none; add one, with its key"


class _Answers(ResponseHandler):
    """Checks what a server sends before aiohttp parses it. Tiny chunks and endless interim answers cost far more to
    read than to send: a few megabytes of them block the event loop beyond any deadline. Bytes that are not part of
    an answer's body are bounded, too."""

    _in_vain = 0
    """Bytes since the body last grew."""

    def data_received(self, data: bytes) -> None:
        if data.count(b"\r\n") > _LINES + len(data) // _LINE:
            self._hang_up("the server sent too many tiny chunks or short lines")
            return
        body = self._payload
        length = body.total_bytes if body is not None else 0
        super().data_received(data)
        grows = body is None or body is not self._payload or body.total_bytes > length
        self._in_vain = 0 if grows else self._in_vain + len(data)
        if self._in_vain > _IN_VAIN:
            self._hang_up("the server keeps sending, but nothing of its answer")

    def _hang_up(self, why: str) -> None:
        if self.transport is None:
            return
        error = aiohttp.ClientPayloadError(why)
        self.set_exception(error)
        if self._payload is not None:
            self._payload.set_exception(error)
        self.transport.abort()


def _check_plain(request: Request, response: aiohttp.ClientResponse) -> None:
    encoding = response.headers.get("Content-Encoding", "")
    if request.plain and encoding:
        raise unreadable(request.doing, f"it is compressed ({encoding}), although that was not asked for")


async def _beginning(response: aiohttp.ClientResponse, length: int, *, packed: bool) -> bytes:
    """The first `length` bytes of the body; a compressed body is decompressed no further than that."""
    encoding = response.headers.get("Content-Encoding", "").lower() if packed else ""
    if encoding not in ("", "identity", "gzip"):
        raise aiohttp.ClientPayloadError(f"it is compressed by {encoding!r}, which was not asked for")
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == "gzip" else None
    pieces: list[bytes] = []
    room = length
    async for piece in response.content.iter_any():
        try:
            pieces.append(unpacking.decompress(piece, room) if unpacking else piece[:room])
        except zlib.error as error:
            raise aiohttp.ClientPayloadError(f"it cannot be decompressed: {error}") from None
        room -= len(pieces[-1])
        if room <= 0:
            return b"".join(pieces)
    if unpacking is not None and not unpacking.eof:
        raise aiohttp.ClientPayloadError("it is compressed, and its end is missing")
    return b"".join(pieces)


def _socket(info: tuple[int, int, int, str, object]) -> socket.socket:
    family, kind, protocol, *_ = info
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
