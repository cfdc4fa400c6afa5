"""Who may ask: checks the token and the certificate that a caller shows. What is configured must all hold."""

import base64
import hmac
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from colocate import telemetry
from colocate.apps.scheduler.refused import Outcome, Refused
from colocate.apps.scheduler.settings import Server
from colocate.cluster.secret import Secret
from colocate.cluster.tls import file_stamp
from colocate.errors import UserError
from colocate.telemetry import Event


class Callers:
    """The callers that are let in."""

    def __init__(self, settings: Server) -> None:
        self._tokens = TokenFile(settings.callers.token_file) if settings.callers.token_file else None
        self._by_certificate = settings.tls.client_authority is not None
        self._names = frozenset(settings.tls.client_names)

    def check(self, request: web.BaseRequest) -> None:
        """Refused where this caller is not one of them."""
        if self._by_certificate:
            self._check_certificate(request)
        if self._tokens is not None:
            shown = _token(request.headers.get("Authorization", ""))
            if not self._tokens.knows(shown):
                raise Refused(
                    401,
                    Outcome.UNAUTHORIZED,
                    "this caller shows no token that is known here; send 'Authorization: Bearer TOKEN', or put "
                    "the token into the URL as its password",
                    WWW_Authenticate="Bearer",
                )

    def check_curious(self, request: web.BaseRequest) -> None:
        """Refused where this caller may not see what is known here.

        Where callers need show nothing, only those on this machine may: pods' names are not for everyone.
        """
        self.check(request)
        if not self._by_certificate and self._tokens is None and not _is_local(request):
            raise Refused(
                403,
                Outcome.UNAUTHORIZED,
                "this is told on this machine alone while server.callers and server.tls let in anyone; ask from "
                "here (kubectl exec, kubectl port-forward), or configure server.callers.tokenFile",
            )

    def _check_certificate(self, request: web.BaseRequest) -> None:
        transport = request.transport
        shown = transport.get_extra_info("peercert") if transport is not None else None
        if not shown:
            raise Refused(
                401,
                Outcome.UNAUTHORIZED,
                "this caller shows no client certificate; name one as certFile and keyFile in its tlsConfig",
            )
        if self._names and self._names.isdisjoint(_names(shown)):
            raise Refused(
                403,
                Outcome.UNAUTHORIZED,
                "this caller's certificate is for none of the names in server.tls.clientNames",
            )


class TokenFile:
    """The tokens in a file, read again when it changes. While it cannot be read, those before it count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = file_stamp(path)
        self._tokens = tokens(path)

    def knows(self, token: Secret) -> bool:
        """Whether it is one of them; how long that takes says nothing of how near it came."""
        self._refresh()
        # A header's bytes that are no text are kept as surrogates.
        shown = token.reveal().encode(errors="surrogateescape")
        # All are compared, so that their order does not show either.
        matches = [hmac.compare_digest(shown, known.reveal().encode()) for known in self._tokens]
        return any(matches)

    def _refresh(self) -> None:
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tokens = tokens(self._path)
        except UserError as error:
            telemetry.logger().warning(
                Event.EXTENDER_FILE_REFUSED, reason=str(error), effect="the tokens before it count"
            )
            return
        telemetry.logger().info(Event.EXTENDER_FILE_RELOADED, file=str(self._path))


def tokens(path: Path) -> tuple[Secret, ...]:
    """Those in a file, one a line; a UserError where there are none."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UserError(
            f"server.callers.tokenFile: {path} cannot be read ({reason.lower()}); put a token into it"
        ) from None
    found = tuple(Secret(line.strip()) for line in lines if line.strip())
    if not found:
        raise UserError(f"server.callers.tokenFile: {path} is empty; put a token into it, one a line")
    return found


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


def _is_local(request: web.BaseRequest) -> bool:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    if not isinstance(peer, tuple):
        # A unix socket is on this machine.
        return request.transport is not None
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _names(certificate: dict[str, Any]) -> Iterator[str]:
    for part in certificate.get("subject", ()):
        yield from (value for key, value in part if key == "commonName")
    yield from (value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
