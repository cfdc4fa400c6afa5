"""Atomic writes, which leave the old or the new file whatever fails in between; locks; and paths that stay below a
folder."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from colocate.crashpoints import reached
from colocate.errors import ColocateError

_MOST_LINKS = 40
"""Symbolic links followed in one path, as in the kernel."""
_LONGEST_NAME = 255
"""Bytes of a file name, on every file system that matters here."""


class LeadsElsewhere(ColocateError):
    """A name would lead to a path outside its folder."""


def below(folder: Path, *names: str) -> Path:
    """Join names to a folder; `LeadsElsewhere` where the path would not lie below the folder.

    Every word from the cluster that becomes part of a path is joined here.
    """
    for name in names:
        if not _stays(name):
            raise LeadsElsewhere(f"{name[:100]!r} is not a name of a file or group below {folder}")
    return folder.joinpath(*names)


def resolved_below(root: Path, path: Path) -> Path:
    """Resolve an absolute path inside the image at `root`: links are followed as they would be in the image.

    A missing part is kept as it is; `LeadsElsewhere` where links form a loop.
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
    """Replace `path` by `data`. After the return, the data survives a power cut; after an error, the old file is
    unchanged.

    `owner` is a user and a group; default is this process's own. `before` is called after writing and before
    replacing: if it raises, the old file stays.
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
    """Make renames, links and new files in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def take_lock(file: Path) -> int:
    """A file descriptor with an exclusive lock; BlockingIOError where another process has the lock."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        # The file system is read-only; a file from an earlier run can still be locked through a read-only handle.
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle
