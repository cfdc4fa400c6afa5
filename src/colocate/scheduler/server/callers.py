"""Who may ask: checks the token and the certificate that a caller shows. What is configured must all hold."""

import base64
from collections.abc import Iterator
from typing import Any

from colocate.cluster.secret import Secret
from colocate.http.connection import HttpConnection
from colocate.http.places import LOCAL, Rank
from colocate.http.requests import HttpRequest
from colocate.scheduler.server.refusal import RequestOutcome, RequestRefused
from colocate.scheduler.server.tokens import TokenFile, make_token
from colocate.scheduler.settings import Server


class Callers:
    """The callers that are let in."""

    def __init__(self, settings: Server) -> None:
        file = settings.token_file
        if file is not None and settings.callers.token_file is None:
            make_token(file)
        self._tokens = TokenFile(file) if file is not None else None
        self._by_certificate = settings.tls.client_authority is not None
        self._names = frozenset(settings.tls.client_names)

    @property
    def demanding(self) -> bool:
        """Whether callers must show anything."""
        return self._by_certificate or self._tokens is not None

    def check(self, request: HttpRequest, connection: HttpConnection) -> None:
        """Raise RequestRefused where a caller that shows these is not let in."""
        if self._by_certificate:
            self._check_certificate(connection)
        if self._tokens is not None:
            shown = _token(request.header(b"authorization"))
            if not self._tokens.knows(shown):
                raise RequestRefused(
                    401,
                    RequestOutcome.UNAUTHORIZED,
                    "this caller sends no valid token; send 'Authorization: Bearer TOKEN', or put the token into "
                    "the URL as its password",
                    WWW_Authenticate="Bearer",
                )

    def let_in(self, connection: HttpConnection) -> None:
        """Give a connection whose caller was checked a place of known callers, if there is any."""
        if self.demanding:
            connection.raise_to(Rank.KNOWN)

    def let_stay(self, connection: HttpConnection) -> bool:
        """Whether it waits for another request: not after a probe, nor without having shown what callers must
        show."""
        rank = connection.rank
        return rank is Rank.KNOWN or (rank is Rank.STRANGER and not self.demanding)

    def check_curious(self, request: HttpRequest, connection: HttpConnection) -> None:
        """Raise RequestRefused where this caller may not see what is known here.

        Where callers need show nothing, only those on this machine may: pods' names are not for everyone.
        """
        self.check(request, connection)
        if not self.demanding and connection.address != LOCAL:
            raise RequestRefused(
                403,
                RequestOutcome.UNAUTHORIZED,
                "only callers on this machine get this answer while server.callers and server.tls let in anyone; ask "
                "from here (kubectl exec, kubectl port-forward), or configure server.callers.tokenFile instead of "
                "server.callers.anyone",
            )

    def _check_certificate(self, connection: HttpConnection) -> None:
        transport = connection.transport
        shown = transport.get_extra_info("peercert") if transport is not None else None
        if not shown:
            raise RequestRefused(
                401,
                RequestOutcome.UNAUTHORIZED,
                "this caller sends no client certificate; set certFile and keyFile in its tlsConfig",
            )
        if self._names and self._names.isdisjoint(_names(shown)):
            raise RequestRefused(
                403,
                RequestOutcome.UNAUTHORIZED,
                "this caller's certificate has none of the names in server.tls.clientNames",
            )


def _token(authorization: str) -> Secret:
    scheme, _, shown = authorization.partition(" ")
    shown = shown.strip()
    if scheme.lower() == "bearer":
        return Secret(shown)
    if scheme.lower() == "basic":
        try:
            return Secret(base64.b64decode(shown, validate=True).decode().partition(":")[2])
        except ValueError:
            # It is not base64, or what it holds is not text.
            pass
    return Secret("")


def _names(certificate: dict[str, Any]) -> Iterator[str]:
    for part in certificate.get("subject", ()):
        yield from (value for key, value in part if key == "commonName")
    yield from (value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
