"""Reads a checkpoint file, and replaces it atomically.

The old file stays as a backup in a folder beside it: when many kubelets start, they delete every other file in the
device-plugins folder, but no folder. The backup is a hard link to the old file, so making it writes no data and
cannot fail halfway.
"""

import contextlib
import datetime
import itertools
import os
import stat
import sys
from pathlib import Path

import msgspec

from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.errors import UserError, system_reason
from colocate.host.files import sync_folder, write_atomically

LIMIT = 256 << 20
"""Largest file in bytes; a million devices need about half of it."""


class Snapshot(msgspec.Struct, frozen=True):
    """A file as it was when it was read."""

    path: Path
    """The file itself, if the user named a link to it."""
    content: bytes
    status: os.stat_result

    def check_unchanged(self) -> None:
        """Raise a UserError if the file was replaced or has other content now."""
        now = read(self.path)
        if not os.path.samestat(now.status, self.status) or now.content != self.content:
            raise UserError(
                f"{self.path}: the file has changed in the meantime, so nothing was written; make sure that "
                "the kubelet is stopped, and try again"
            )


def read(path: Path) -> Snapshot:
    """Read the file; UserError if its kind or size cannot be that of a checkpoint."""
    try:
        path = path.resolve(strict=True)
        # Do not wait for a writer if it is a FIFO.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return Snapshot(path, *_content(handle, path))
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: the file does not exist; give the checkpoint, or run this on the node"
        ) from error
    except PermissionError as error:
        raise UserError(f"{path}: this user may not read it; run this as root") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({system_reason(error)}); check the path") from error
    except RuntimeError as error:  # A loop of links, in Python 3.11 and 3.12.
        raise UserError(f"{path}: is a link to itself; give the file") from error


def _content(handle: int, path: Path) -> tuple[bytes, os.stat_result]:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise UserError(f"{path}: is {kind}; give the kubelet_internal_checkpoint, or - for standard input")
    _check_size(status.st_size, str(path))
    with os.fdopen(handle, "rb", closefd=False) as file:
        return file.read(status.st_size), status


def read_standard_input() -> bytes:
    try:
        content = sys.stdin.buffer.read(LIMIT + 1)
    except OSError as error:
        reason = system_reason(error)
        raise UserError(f"standard input: cannot be read ({reason}); give a file") from error
    _check_size(len(content), "standard input")
    return content


def _check_size(size: int, name: str) -> None:
    if size > LIMIT:
        raise UserError(
            f"{name}: has more than {LIMIT >> 20} MiB, too large for a checkpoint; check what file it is"
        )


def replace(old: Snapshot, content: bytes, clock: Clock) -> Path:
    """Replace the file that was read by `content`, with the same mode and owner; returns the backup's path.

    If something fails, the file is the old one or the new one. If it is the old one, no backup and no temporary file
    is left.
    """
    folder = old.path.with_name(f"{old.path.name}.backups")
    moment = datetime.datetime.fromtimestamp(clock.time(), datetime.UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    try:
        old.check_unchanged()
        if folder.is_symlink():
            raise UserError(
                f"{folder}: is a link, but a backup must be beside the file; remove the link and try again"
            )
        folder.mkdir(mode=0o700, exist_ok=True)
        backup = _second_name(old.path, folder, moment)
        sync_folder(folder)
        sync_folder(folder.parent)
        mode, owner = stat.S_IMODE(old.status.st_mode), (old.status.st_uid, old.status.st_gid)
        write_atomically(old.path, content, mode, owner, before=old.check_unchanged)
    except BaseException as error:
        is_new = _is_another(old)
        if not is_new:
            _remove_names(old, folder)
        if isinstance(error, OSError):
            state = f"the new one nevertheless; the old one is in {folder}" if is_new else "unchanged"
            raise UserError(
                f"{old.path}: could not be replaced ({system_reason(error)}) and is {state};"
                " repair that and try again"
            ) from error
        raise
    return backup


def _second_name(file: Path, folder: Path, moment: str) -> Path:
    """Link the file under an unused name; a backup is never overwritten."""
    for number in itertools.count(1):
        backup = folder / (moment if number == 1 else f"{moment}-{number}")
        reached("backup.make")
        try:
            backup.hardlink_to(file)
        except FileExistsError:
            continue
        reached("backup.made")
        return backup
    raise AssertionError("numbers do not end")


def _is_another(old: Snapshot) -> bool:
    """Whether the file is no longer the old one; True if that cannot be checked."""
    try:
        return not os.path.samestat(old.path.stat(), old.status)
    except OSError:
        return True


def _remove_names(old: Snapshot, folder: Path) -> None:
    """Remove the backups of a file that was not replaced, and their folder if it is empty."""
    # A backup that stays does no harm; report the earlier error instead.
    with contextlib.suppress(OSError):
        for path in () if folder.is_symlink() else folder.iterdir():
            if os.path.samestat(path.lstat(), old.status):
                path.unlink()
        folder.rmdir()
