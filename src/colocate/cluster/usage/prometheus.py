"""Asks Prometheus, or what speaks its HTTP API: Thanos, Mimir, VictoriaMetrics. Instant queries only.

Every answer is bounded in length and in time, and read in a thread: whatever it is, others get their answers
meanwhile. Nothing is repeated here: the next round asks again.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from colocate.clock import Clock
from colocate.cluster.connection import Connection, Login, Pem, checked, proxy_for
from colocate.cluster.errors import Doing
from colocate.cluster.secret import Secret
from colocate.cluster.transport import Request, Transport
from colocate.cluster.usage.answers import Vector, decode
from colocate.cluster.usage.signals import duration
from colocate.errors import UserError

_PODS = 4
"""Times as long as that of its nodes is the answer of a cluster's pods: ten on each, with fewer labels."""


class PrometheusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Prometheus is, how to log in, and how patient to be."""

    url: str
    """May have a path, where Prometheus is behind a prefix."""
    token_file: Path | None = None
    """A bearer token; read again when it changes, as is every file here."""
    username: str = ""
    password_file: Path | None = None
    certificate_authority: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    server_name: str = ""
    """The name in Prometheus' certificate, where it is not the host of the address."""
    insecure: bool = False
    """Check no certificate, and send credentials in the clear."""
    proxy: str = ""
    """Where none is named, the one that the environment names."""
    timeout: float = 10.0
    """Seconds for one query."""
    longest_answer: int = 8 << 20
    """Bytes: 15 000 nodes with all labels of an operator's are some 6 MB. Of pods it may be four times as long."""


def connection_to(settings: PrometheusSettings, environ: Mapping[str, str] | None = None) -> Connection:
    """The connection that the settings describe; a UserError in one sentence where they are not sound."""
    try:
        address = urlsplit(settings.url)
        port = f":{address.port}" if address.port else ""
    except ValueError as error:
        raise UserError(
            f"prometheus: url is not an address: {error}; write it as http://HOST:PORT"
        ) from error
    if address.query or address.fragment:
        raise UserError("prometheus: url has a ? or # in it; give only the address, as http://HOST:PORT/PATH")
    host = address.hostname or ""
    place = f"{f'[{host}]' if ':' in host else host}{port}"
    # Rebuilt without user and password, which would else be in every message.
    server = urlunsplit((address.scheme, place, address.path.rstrip("/"), "", ""))
    if settings.token_file and (settings.username or address.username):
        raise UserError("prometheus: tokenFile and username exclude each other; give one of them")
    if settings.password_file and not settings.username:
        raise UserError("prometheus: passwordFile needs a username; give it, too")
    environ = os.environ if environ is None else environ
    proxy = settings.proxy or proxy_for(server, environ)
    return checked(
        Connection(
            server=server,
            origin="prometheus",
            authority=_pem(None if settings.insecure else settings.certificate_authority),
            server_name=settings.server_name,
            insecure=settings.insecure,
            proxy=Secret(proxy) if proxy else None,
            login=Login(
                token_file=settings.token_file,
                username=settings.username or unquote(address.username or ""),
                password=Secret(unquote(address.password)) if address.password else None,
                password_file=settings.password_file,
                certificate=_pem(settings.client_certificate),
                key=_pem(settings.client_key),
            ),
        ),
        insecurely="write prometheus.insecure: true",
    )


def _pem(file: Path | None) -> Pem | None:
    return Pem(file=file) if file else None


def asking_for(name: str) -> Doing:
    """What is done when a query of this name is asked; its errors begin with it."""
    return Doing("query", "prometheus", name=name)


class Prometheus:
    """Asks one Prometheus."""

    def __init__(
        self, settings: PrometheusSettings, clock: Clock, environ: Mapping[str, str] | None = None
    ) -> None:
        connection = connection_to(settings, environ)
        self.address = connection.server
        """Without credentials: for people to read."""
        self._settings = settings
        self._transport = Transport(connection, clock)

    async def close(self) -> None:
        await self._transport.close()

    async def query(self, name: str, promql: str, *, pods: bool = False) -> Vector:
        """What a query answers now, of nodes or of pods. A ClusterError, in a sentence, where it does not; the name
        is for it."""
        settings = self._settings
        doing = asking_for(name)
        request = Request(
            doing,
            "GET",
            "/api/v1/query",
            # Prometheus, too, is to give up when nobody waits for it any more.
            {"query": promql, "timeout": duration(settings.timeout)},
            at_most=settings.longest_answer * (_PODS if pods else 1),
            at_most_by="usage.prometheus.longestAnswer",
        )
        body = await self._transport.ask(request, settings.timeout)
        return await asyncio.to_thread(decode, doing, body)
