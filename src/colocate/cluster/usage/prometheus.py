"""Asks Prometheus, or what speaks its HTTP API: Thanos, Mimir, VictoriaMetrics. Instant queries only.

Every answer is bounded in length and in time, and read in a thread, so that no answer holds up others. Nothing is
tried twice here: the next round asks again.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from colocate.clock import Clock
from colocate.cluster.connection import Connection, Login, Pem, checked, proxy_for
from colocate.cluster.errors import Doing
from colocate.cluster.secret import Secret
from colocate.cluster.transport import Request, Transport
from colocate.cluster.usage.answers import Vector, decode
from colocate.cluster.usage.settings import PrometheusSettings
from colocate.cluster.usage.signals import duration
from colocate.errors import UserError

_PODS = 4
"""How many times as long the answer about pods may be as that about nodes: ten pods a node, with fewer labels."""


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
    # Rebuilt without user and password, so that no message shows them.
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
    """The action that errors of a query of this name begin with."""
    return Doing("query", "prometheus", name=name)


class Prometheus:
    """Asks one Prometheus."""

    def __init__(
        self, settings: PrometheusSettings, clock: Clock, environ: Mapping[str, str] | None = None
    ) -> None:
        connection = connection_to(settings, environ)
        self.address = connection.server
        """Without credentials, for logs and errors."""
        self._settings = settings
        self._transport = Transport(connection, clock)

    async def close(self) -> None:
        await self._transport.close()

    async def query(self, name: str, promql: str, *, pods: bool = False) -> Vector:
        """The answer to a query about nodes or pods. Raises a ClusterError that begins with `name`."""
        settings = self._settings
        doing = asking_for(name)
        request = Request(
            doing,
            "GET",
            "/api/v1/query",
            # Have Prometheus give up when this process does.
            {"query": promql, "timeout": duration(settings.timeout)},
            at_most=settings.longest_answer * (_PODS if pods else 1),
            at_most_by="usage.prometheus.longestAnswer",
        )
        body = await self._transport.ask(request, settings.timeout)
        return await asyncio.to_thread(decode, doing, body)
