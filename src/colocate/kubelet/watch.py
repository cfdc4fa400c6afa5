"""Notices when a socket appears, is replaced or vanishes, within milliseconds (inotify).

A socket is identified by its inode and change time: a new file under the old name is a new server, even if the file
system reuses the inode. Slow polling covers the cases that inotify misses: a folder that does not exist yet, or a
file system without notifications.
"""

import asyncio
import errno
from pathlib import Path

from asyncinotify import Inotify, Mask

from colocate import telemetry
from colocate.aio import Watched
from colocate.clock import Clock
from colocate.errors import system_reason
from colocate.telemetry import Event

Identity = tuple[int, int]

_MASK = (
    Mask.CREATE
    | Mask.MOVED_TO
    | Mask.MOVED_FROM
    | Mask.DELETE
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
    | Mask.ATTRIB
)
_FOLDER_GONE = Mask.IGNORED | Mask.DELETE_SELF | Mask.MOVE_SELF
_SLOW_LOOK = 1.0


def identity(path: Path) -> Identity | None:
    """The identity of the file at `path`; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_ctime_ns)


def why_absent(path: Path) -> str:
    """Why `identity` is None: there is no file, or this process may not look."""
    try:
        path.stat()
    except OSError as error:
        return system_reason(error)
    return "it exists now"


class FolderWatch:
    """Wakes its waiters whenever a file in the folder is created, removed or replaced."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        self.events = Watched()

    async def run(self) -> None:
        """Watch until cancelled, even if the folder itself is removed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._look_slowly())

    async def differs(self, path: Path, known: Identity | None) -> None:
        """Return once the file at `path` is not `known` (None: no file)."""
        while True:
            seen = self.events.count
            if identity(path) != known:
                return
            await self.events.beyond(seen)

    async def one_goes(self, pattern: str, but: Path) -> None:
        """Return once a file that matches the pattern, other than `but`, was there and is gone."""
        known: set[Path] = set()
        while True:
            seen = self.events.count
            present = {path for path in self.folder.glob(pattern) if path != but}
            if known - present:
                return
            known = present
            await self.events.beyond(seen)

    async def _look_slowly(self) -> None:
        while True:
            await self._clock.sleep(_SLOW_LOOK)
            self.events.changed()

    async def _listen(self) -> None:
        while True:
            try:
                with Inotify() as inotify:
                    inotify.add_watch(self.folder, _MASK)
                    self.events.changed()
                    async for event in inotify:
                        self.events.changed()
                        if event.mask & _FOLDER_GONE:
                            break
            except OSError as error:
                # Polling continues. A folder that does not exist yet is not worth a log line.
                if error.errno != errno.ENOENT:
                    reason = f"no inotify on {self.folder}: {system_reason(error)}"
                    telemetry.logger().warning(Event.WATCH_IS_SLOW, reason=reason)
            await self._clock.sleep(_SLOW_LOOK)
