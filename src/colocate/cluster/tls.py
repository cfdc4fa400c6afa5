"""Whom we trust and what certificate we show: TLS settings made from a connection, anew when files change."""

import os
import ssl
from pathlib import Path

from colocate.cluster.certificate_dates import not_after
from colocate.cluster.connection import Connection, Pem
from colocate.cluster.credentials import ShownCredentials
from colocate.cluster.secret import Secret
from colocate.errors import UserError

Stamp = tuple[tuple[str, int, int], ...]


class Tls:
    """Keeps the TLS context of one connection current: certificates are renewed while processes run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._made: tuple[Stamp, ShownCredentials, ssl.SSLContext] | None = None

    def context(self, shown: ShownCredentials) -> ssl.SSLContext | None:
        """What to connect with now; None where the server speaks plain HTTP."""
        if not self._connection.server.startswith("https://"):
            return None
        stamp = self._stamp()
        if self._made is None or self._made[0] != stamp or not _same_pair(self._made[1], shown):
            try:
                self._made = (stamp, shown, _context(self._connection, shown))
            except UserError:
                # Files that are just being replaced: certificate first, key a moment later.
                if self._made is None:
                    raise
        return self._made[2]

    @property
    def shows_certificate(self) -> bool:
        """Whether we show a certificate to whoever asks for one."""
        login = self._connection.login
        of_plugin = self._made is not None and bool(self._made[1].certificate)
        return of_plugin or (login.certificate is not None and login.key is not None)

    def client_certificate_end(self) -> float | None:
        """Until when the certificate that we show is good; None where we show none, or cannot tell."""
        shown = self._made[1].certificate if self._made else ""
        if not shown and (pem := self._connection.login.certificate) is not None:
            shown = pem.read("client-certificate")
        return not_after(shown) if shown else None

    def _stamp(self) -> Stamp:
        connection = self._connection
        pems = (connection.authority, connection.login.certificate, connection.login.key)
        return tuple(file_stamp(pem.file) for pem in pems if pem is not None and pem.file is not None)


def file_stamp(path: Path) -> tuple[str, int, int]:
    """Another value whenever the file is another, or has been written to."""
    try:
        found = path.stat()
    except OSError:
        return (str(path), 0, 0)
    return (str(path), found.st_ino, found.st_mtime_ns)


def _same_pair(one: ShownCredentials, other: ShownCredentials) -> bool:
    return one.certificate == other.certificate and one.key == other.key


def _context(connection: Connection, shown: ShownCredentials) -> ssl.SSLContext:
    origin = connection.origin
    authority = (
        connection.authority.read(f"{origin}: certificate-authority") if connection.authority else None
    )
    try:
        context = ssl.create_default_context(cadata=authority)
    except ssl.SSLError as error:
        where = connection.authority.file if connection.authority else None
        raise UserError(
            f"{origin}: certificate-authority{f' {where}' if where else ''} has no certificate in PEM; copy it "
            "again from the cluster"
        ) from error
    # Python 3.13 began to refuse authorities that lack an extension which many clusters' own ones lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if connection.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if shown.certificate and shown.key:
        _show(context, f"{origin}: the exec plugin's certificate", shown.certificate, shown.key)
    elif connection.login.certificate and connection.login.key:
        certificate, key = connection.login.certificate, connection.login.key
        what = f"{origin}: client-certificate"
        _show(context, what, certificate.read(what), _key(key, origin))
    return context


def _key(key: Pem, origin: str) -> Secret:
    return Secret(key.read(f"{origin}: client-key"))


def _show(context: ssl.SSLContext, what: str, certificate: str, key: Secret) -> None:
    # The ssl module reads a key from a file only; this one is in memory, and no disk ever sees it.
    descriptor = os.memfd_create("client-key", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{certificate}\n{key.reveal()}")
        file.flush()
        try:
            # No password is known: with an empty one an encrypted key is an error, not a question.
            context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
        except (ssl.SSLError, OSError) as error:
            why = getattr(error, "reason", None) or str(error)
            raise UserError(
                f"{what} and its key cannot be used ({str(why).lower().replace('_', ' ')}); "
                f"they must be PEM, unencrypted, and belong together"
            ) from None
