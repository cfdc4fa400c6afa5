"""What a command has left behind outside its own folders: files, control groups, mounts, processes.

Each is seen before and after. What is still ending is given a while, and so is what a neighbour on this machine makes
and removes.
"""

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from tests.room.folders import CHECKOUT, Folders, mounts

PATIENCE = 20.0

ALLOWED = {
    "$TMPDIR/pytest-of-*": "pytest keeps the folders of its last three runs, to look into a failure",
    "$HOME/.cache": "the folder of the next",
    "$HOME/.cache/pip*": "pip's downloads, of a test that installs this package as a user would",
    "/run/containerd": "the folder of the next",
    "/run/containerd/s": "where containerd's shims have their sockets, whatever containerd is told; it must be empty",
    "/run/mount": "the folder of the next",
    "/run/mount/utab*": "where mount and umount note what they did",
    "/run/systemd/systemd-units-load": "systemd-analyze notes when it has read units",
}
"""What may be left, and why. What is in a folder of these is not, unless another says so."""

_CGROUPS = Path("/sys/fs/cgroup")
_SYSTEMS = {"system.slice", "user.slice", "init.scope", "machine.slice", "docker"}
"""Control groups of this machine's own services."""
_KUBELETS = ("kubepods", "kubepods.slice")


class Before:
    """What was there before a command was run in the room."""

    def __init__(self, folders: Folders, janitor: int) -> None:
        self._folders = folders
        self._janitor = janitor
        self._files = set(self._found())
        self._groups = set(_groups())
        self._mounts = Counter(mounts())
        self._changed = set(_changed())

    def left(self, patience: float = PATIENCE) -> list[str]:
        """A line for each thing that is left when the command has ended and what it started had time to end."""
        end = time.monotonic() + patience
        lines = list(self._left())
        while lines and time.monotonic() < end:
            reap(self._janitor)
            time.sleep(0.1)
            still = set(self._left())
            lines = [line for line in lines if line in still]
        return lines

    def _left(self) -> Iterator[str]:
        yield from (f"process {pid}: {_command(pid)}" for pid in descendants() if pid != self._janitor)
        yield from (f"mount {point}" for point, _ in Counter(mounts()) - self._mounts)
        for group in outermost(set(_groups()) - self._groups):
            if not _foreign(group):
                yield f"control group {group}"
        new = set(self._found()) - self._files
        yield from (f"file {path}" for path in outermost(path for path in new if not _allowed(path)))
        changed = set(_changed()) - self._changed
        yield from (f"file {line[3:]} in the checkout" for line in sorted(changed, key=lambda line: line[3:]))

    def _found(self) -> Iterator[Path]:
        """Files and folders, as they are called in the room."""
        for top, called in self._folders.watched.items():
            below = self._folders.below.get(top)
            for folder, folders, files in os.walk(top):
                within = Path(folder).relative_to(top)
                yield from (Path(called, within, name) for name in files)
                # An overlay has a folder for each in which something was changed, if only for a moment.
                new = (name for name in folders if not below or not (below / within / name).is_dir())
                yield from (Path(called, within, name) for name in new)


def _allowed(path: Path) -> bool:
    return any(fnmatch(str(path), pattern) for pattern in ALLOWED)


def descendants() -> list[int]:
    """Living processes that this one started, or that one of those did: this one is their reaper."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(folder.name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return sorted(found)


def reap(but: int) -> None:
    """Take leave of children that have ended, except one."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == os.getpid() and int(folder.name) != but:
                os.waitpid(int(folder.name), os.WNOHANG)


def outermost(paths: Iterable[Path]) -> list[Path]:
    """Those that are in no other of them."""
    every = set(paths)
    return sorted(path for path in every if every.isdisjoint(path.parents))


def _groups() -> Iterator[Path]:
    for folder, names, _ in os.walk(_CGROUPS):
        names[:] = [name for name in names if name not in _SYSTEMS]
        yield from (Path(folder, name) for name in names)


def _foreign(group: Path) -> bool:
    """Whether a process that is none of ours is in it, or will be."""
    ours = set(descendants())
    if group.name in _KUBELETS and any(pid not in ours for pid in _named("kubelet")):
        return True
    for file in [group / "cgroup.procs", *group.rglob("cgroup.procs")]:
        with suppress(OSError):
            if any(int(pid) not in ours for pid in file.read_text().split()):
                return True
    return False


def _named(name: str) -> Iterator[int]:
    for file in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            if file.read_text() == f"{name}\n":
                yield int(file.parent.name)


def _changed() -> list[str]:
    """A line of git for each file in the checkout that is new or changed, but for those that it ignores."""
    command = ["git", "-c", f"safe.directory={CHECKOUT}", "status", "--porcelain"]
    try:
        return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True).stdout.splitlines()
    except FileNotFoundError:
        return []


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return "gone"
