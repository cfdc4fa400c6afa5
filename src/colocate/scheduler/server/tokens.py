"""Files of tokens that callers show: read, read again when they change, and made where there is none.

Only the owner of the file may read a token that is made here. It is never logged.
"""

import errno
import hmac
import os
import secrets
import stat
from pathlib import Path

from colocate import telemetry
from colocate.cluster.secret import Secret
from colocate.cluster.tls import file_stamp
from colocate.crashpoints import reached
from colocate.errors import UserError, system_reason
from colocate.scheduler import settings
from colocate.scheduler.kube.configuration import has_login, is_local
from colocate.telemetry import Event

_BYTES = 32


class TokenFile:
    """The tokens in a file, read again when it changes. While it cannot be read, those before it count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = file_stamp(path)
        self._tokens = tokens(path)

    def knows(self, token: Secret) -> bool:
        """Whether this is one of the tokens; the time that it takes does not depend on how much of it is right."""
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
                Event.EXTENDER_FILE_REFUSED, reason=str(error), effect="the old tokens stay valid"
            )
            return
        telemetry.logger().info(Event.EXTENDER_FILE_RELOADED, file=str(self._path))


def tokens(path: Path, named: str = "server.callers.tokenFile") -> tuple[Secret, ...]:
    """Those in a file, one a line; a UserError where there are none, by what has `named` the file."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = system_reason(error)
        raise UserError(f"{named}: {path} cannot be read ({reason}); put a token into it") from None
    found = tuple(Secret(line.strip()) for line in lines if line.strip())
    if not found:
        raise UserError(f"{named}: {path} is empty; put a token into it, one a line")
    return found


def own_token_file(url: str) -> Path | None:
    """The file that a scheduler on this machine has made for itself, where this user may read it and the address
    leads there and shows nothing else."""
    file = settings.DEFAULT_TOKEN_FILE
    return file if is_local(url) and not has_login(url) and os.access(file, os.R_OK) else None


def make_token(path: Path) -> None:
    """See that there is a token in a file that only its owner can read; a UserError where that cannot be.

    Of several processes that do so at once, all find the token of the first.
    """
    try:
        if not os.path.lexists(path):
            _make(path)
        found = path.lstat()
        folder = path.parent.stat()
    except OSError as error:
        reason = system_reason(error)
        raise UserError(
            f"server.callers.tokenFile: it is not set, and {path} cannot be created ({reason}); give a file with a "
            f"token, or write server.callers.anyone: true to let in anyone who can reach the address"
        ) from None
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
        raise UserError(
            f"server.callers.tokenFile: it is not set, and {path} is not a file that only its owner can read; "
            f"remove that file, and a new one is made, or give another"
        )

    # Where a folder is sticky, others may add files but not put theirs in the place of ours.
    open_to_all = folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX
    if open_to_all or folder.st_uid not in (0, os.geteuid()):
        raise UserError(
            f"server.callers.tokenFile: it is not set, and others can replace files in {path.parent}, where one "
            f"would be made; let only the owner write there, or give another file"
        )


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # It is never there without a token in it: a link appears whole, and only where nothing is yet.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{secrets.token_urlsafe(_BYTES)}\n")
            file.flush()
            os.fsync(file.fileno())
        reached("token.written")
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            return
        reached("token.made")
        telemetry.logger().info(Event.EXTENDER_TOKEN_MADE, file=str(path))
    finally:
        temporary.unlink(missing_ok=True)
