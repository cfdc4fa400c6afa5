"""The folder of a lab or a demo: locked while it runs, so that the next start can clean up after a killed one.

A killed process leaves the folder and the control group of its pods. The folder's lock shows whether its process is
alive. Folders of other users, and names that we would not choose, are left alone: any user can write to /tmp.
"""

import asyncio
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from colocate.errors import Unavailable
from colocate.host import cgroups

_LOCK = "lock"
_GROUP = re.compile(r"colocate-(lab|demo)-[0-9]{1,10}", re.ASCII)


def group_of(kind: str) -> str:
    """The control group for the pods of this process; `kind` is lab or demo."""
    return f"colocate-{kind}-{os.getpid()}"


@asynccontextmanager
async def own_folder(kind: str) -> AsyncIterator[Path]:
    """A new folder, removed at the end; leftovers of killed processes of this kind are removed first."""
    prefix = f"colocate-{kind}-"
    await _clear(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    new = folder / f".{_LOCK}"
    lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, group_of(kind).encode())
        new.rename(folder / _LOCK)  # The lock is held before others can see the file.
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        os.close(lock)


async def _clear(prefix: str) -> None:
    for folder, group in _abandoned(prefix):
        if group:
            try:
                tree = cgroups.find_tree()
                await cgroups.kill(tree, Path(group))
                cgroups.remove(tree, Path(group))
            except (OSError, Unavailable):
                continue  # It cannot be removed now; the next start tries again.
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _abandoned(prefix: str) -> Iterator[tuple[Path, str]]:
    """Folders whose process is gone, each with its control group; empty where its lock names none."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{prefix}*")):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # It is being made or removed just now, or is not ours.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            named = os.read(lock, 64).decode(errors="replace")
            yield folder, named if _GROUP.fullmatch(named) else ""
        except BlockingIOError:
            continue  # Its process is running.
        finally:
            os.close(lock)
