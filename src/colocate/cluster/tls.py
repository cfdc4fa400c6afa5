"""The TLS context of a connection: trusted authorities and our client certificate, rebuilt when files change."""

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
        """The current TLS context; None where the server speaks plain HTTP."""
        if not self._connection.server.startswith("https://"):
            return None
        stamp = self._stamp()
        if self._made is None or self._made[0] != stamp or not _same_pair(self._made[1], shown):
            try:
                self._made = (stamp, shown, _context(self._connection, shown))
            except UserError:
                # The files are probably being replaced: certificate first, key a moment later.
                if self._made is None:
                    raise
        return self._made[2]

    @property
    def shows_certificate(self) -> bool:
        """Whether we have a client certificate to show."""
        login = self._connection.login
        of_plugin = self._made is not None and bool(self._made[1].certificate)
        return of_plugin or (login.certificate is not None and login.key is not None)

    def client_certificate_end(self) -> float | None:
        """When our client certificate expires; None where we have none, or it is unknown."""
        shown = self._made[1].certificate if self._made else ""
        if not shown and (pem := self._connection.login.certificate) is not None:
            shown = pem.read("client-certificate")
        return not_after(shown) if shown else None

    def _stamp(self) -> Stamp:
        connection = self._connection
        pems = (connection.authority, connection.login.certificate, connection.login.key)
        return tuple(file_stamp(pem.file) for pem in pems if pem is not None and pem.file is not None)


def file_stamp(path: Path) -> tuple[str, int, int]:
    """A value that changes whenever the file is replaced or written to."""
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
    # Python 3.13 refuses authorities without an extension that the authorities of many clusters lack.
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
    # The ssl module reads keys only from files; this file is in memory, and never on a disk.
    descriptor = os.memfd_create("client-key", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{certificate}\n{key.reveal()}")
        file.flush()
        try:
            # With an empty password, an encrypted key is an error and not a prompt.
            context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
        except (ssl.SSLError, OSError) as error:
            why = getattr(error, "reason", None) or str(error)
            raise UserError(
                f"{what} and its key cannot be used ({str(why).lower().replace('_', ' ')}); "
                f"they must be PEM, unencrypted, and belong together"
            ) from None
