"""Files that are either old or new, never half-written, whatever dies in between; locks; and names that stay."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from colocate.crashpoints import reached
from colocate.errors import ColocateError

_MOST_LINKS = 40
"""That a path leads through, as in the kernel."""
_LONGEST_NAME = 255
"""Bytes, on every file system that matters here."""


class LeadsElsewhere(ColocateError):
    """A name would make a path that is not where it is meant to be."""


def below(folder: Path, *names: str) -> Path:
    """The path of these names, one below the other; `LeadsElsewhere` where it would not lie below the folder.

    Every word from the cluster that becomes a part of a path is joined here.
    """
    for name in names:
        if not _stays(name):
            raise LeadsElsewhere(f"{name[:100]!r} is not a name of a file or group below {folder}")
    return folder.joinpath(*names)


def resolved_below(root: Path, path: Path) -> Path:
    """Where an absolute path of an image leads that lies in `root`: its links are followed as they would be in there.

    What is not there yet is taken as it is called; `LeadsElsewhere` where links lead round in a circle.
    """
    root = root.resolve()
    found, links = root, 0
    rest = [*reversed(path.parts)]
    while rest:
        name = rest.pop()
        if name == "..":
            found = found if found == root else found.parent
        elif name.startswith("/"):
            found = root
        elif (found / name).is_symlink():
            links += 1
            if links > _MOST_LINKS:
                raise LeadsElsewhere(f"{path}: its links lead round in a circle")
            rest += reversed((found / name).readlink().parts)
        else:
            found /= name
    return found


def _stays(name: str) -> bool:
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        return False
    try:
        return len(name.encode()) <= _LONGEST_NAME
    except UnicodeEncodeError:
        return False


def write_atomically(
    path: Path,
    data: bytes,
    mode: int = 0o600,
    owner: tuple[int, int] | None = None,
    before: Callable[[], None] | None = None,
) -> None:
    """Replace `path` by `data`; on return the data survives a power cut, on an error the old file stays.

    `owner` is a user and a group, this process's own unless given. `before` is called when all is written and
    only the replacing is left: what it raises leaves the old file.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            if owner is not None:
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        reached("file.written")
        if before is not None:
            before()
        temporary.replace(path)
        reached("file.replaced")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: what was renamed, linked or made there."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take_lock(file: Path) -> int:
    """A handle that nobody else has while it is open; BlockingIOError where somebody has it."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        # Of an earlier life: who only reads is alone with it all the same.
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle
