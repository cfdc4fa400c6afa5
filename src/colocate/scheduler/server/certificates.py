"""The certificate that the server shows and the authority that it believes, read again when the files change."""

import ssl
from pathlib import Path

from colocate import telemetry
from colocate.cluster.tls import Stamp, file_stamp
from colocate.errors import UserError
from colocate.scheduler.settings import ServerTls
from colocate.telemetry import Event


class Certificates:
    """Keeps a server's TLS current: every handshake is made with what the files hold now.

    Files that cannot be used (one of a pair is replaced a moment before the other) leave all as it is.
    """

    def __init__(self, certificate: Path, key: Path, authority: Path | None) -> None:
        self._certificate = certificate
        self._key = key
        self._authority = authority
        self._stamp = self._now()
        self._context = self._load()

    @classmethod
    def of(cls, tls: ServerTls) -> "Certificates | None":
        """None where the server speaks plain HTTP; a UserError where the files cannot be used."""
        if tls.certificate is None or tls.key is None:
            return None
        return cls(tls.certificate, tls.key, tls.client_authority)

    def current(self) -> ssl.SSLContext:
        """For the next handshake. A new one knows no session of those before it: who resumes one shows nothing."""
        stamp = self._now()
        if stamp != self._stamp:
            self._stamp = stamp
            self._reload()
        return self._context

    def _reload(self) -> None:
        try:
            self._context = self._load()
        except UserError as error:
            telemetry.logger().warning(
                Event.EXTENDER_FILE_REFUSED, reason=str(error), effect="the old certificates stay in use"
            )
            return
        telemetry.logger().info(Event.EXTENDER_FILE_RELOADED, file=str(self._certificate))

    def _now(self) -> Stamp:
        files = (self._certificate, self._key, self._authority)
        return tuple(file_stamp(path) for path in files if path is not None)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A session that is resumed is believed by what was shown when it began. Callers keep their connections.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        try:
            # No password is known: with an empty one an encrypted key is an error, not a question.
            context.load_cert_chain(self._certificate, self._key, password="")
        except (ssl.SSLError, OSError) as error:
            raise UserError(
                f"server.tls: {self._certificate} and {self._key} cannot be used ({_why(error)}); "
                f"they must be PEM, unencrypted, and belong together"
            ) from None
        if self._authority is None:
            return context
        try:
            context.load_verify_locations(cafile=self._authority)
        except (ssl.SSLError, OSError) as error:
            raise UserError(
                f"server.tls.clientAuthority: {self._authority} cannot be used ({_why(error)}); "
                f"it must hold a certificate in PEM"
            ) from None
        # Python 3.13 began to refuse authorities that lack an extension which many clusters' own ones lack.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        # Optional: a kubelet that asks for our health has no certificate to show.
        context.verify_mode = ssl.CERT_OPTIONAL
        return context


def _why(error: ssl.SSLError | OSError) -> str:
    why = getattr(error, "reason", None) or error.strerror or str(error)
    return str(why).lower().replace("_", " ")
