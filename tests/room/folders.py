"""The folders that a command in the room finds empty: mounted over this machine's as root, else only named to it.

As root the room has a mount namespace of its own. There /etc, /run and /var/lib lie under overlays in memory, so that
no mount point is ever made outside, and all that is written there is seen. The rest is on disk: it may be large.
"""

import ctypes
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

COVERED = tuple(
    Path(name) for name in ("/etc/colocate", "/run/colocate", "/var/lib/colocate", "/var/lib/kubelet")
)
"""Colocate's folders on a node, and the kubelet's."""
CHECKOUT = Path(__file__).parents[2]
VARIABLE = "CLEAN_ROOM"
"""Names the room to what runs in it; a COLOCATE_ variable would be taken for a setting."""

_TEMPORARY = Path("/tmp")
_SHARED_MEMORY = Path("/dev/shm")
_OVERLAY = "clean-room"
"""The source of the overlays, by which a room within a room knows them: overlays cannot be stacked at will."""
_NEW_NAMESPACE = 0x00020000  # CLONE_NEWNS
_BIND = 0x1000
_PRIVATE = 0x44000  # MS_REC | MS_PRIVATE
_XDG = {
    "XDG_CONFIG_HOME": ".config",
    "XDG_CACHE_HOME": ".cache",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}

libc = ctypes.CDLL(None, use_errno=True)


class Folders:
    """Where a command in the room has its home and its temporary files, all below a scratch folder."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.home = scratch / "home"
        self.temporary = scratch / "t"
        self._runtime = scratch / "run"
        self.watched = {self.home: "$HOME", self.temporary: "$TMPDIR", self._runtime: "$XDG_RUNTIME_DIR"}
        """Folders in which all that is found was left by the command, and how each is called."""
        self.below: dict[Path, Path] = {}
        """By an overlay's own folder, the one that it lies over."""
        self.home.mkdir(0o700)
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        self._runtime.mkdir(0o700)

    def cover(self) -> None:
        """Lay empty folders over this machine's, for this process and its children alone."""
        if libc.unshare(_NEW_NAMESPACE):
            raise _error("a mount namespace")
        _mount("none", Path("/"), flags=_PRIVATE)
        upper = self.scratch / "upper"
        upper.mkdir()
        _mount("none", upper, "tmpfs", options="mode=755")
        for parent in sorted({path.parent for path in COVERED}):
            self._overlay(parent, upper / parent.name)
        for number, path in enumerate(COVERED):
            empty = self.scratch / f"covered-{number}"
            empty.mkdir(0o755)
            path.mkdir(exist_ok=True)
            _mount(str(empty), path, flags=_BIND)
            self.watched[path] = str(path)
        if _SHARED_MEMORY.is_dir():
            _mount("none", _SHARED_MEMORY, "tmpfs", options="mode=1777")
            self.watched[_SHARED_MEMORY] = str(_SHARED_MEMORY)
        if not any(path.is_relative_to(_TEMPORARY) for path in (CHECKOUT, self.scratch)):
            # Under its usual name it is short enough for any socket, and found by what does not ask.
            _mount(str(self.temporary), _TEMPORARY, flags=_BIND)
            self.temporary = _TEMPORARY

    def _overlay(self, parent: Path, folder: Path) -> None:
        """An overlay over a folder, and on it again what is mounted there."""
        mounted = mounts()
        if (str(parent), _OVERLAY) in mounted:
            return
        kept: dict[str, int] = {}
        for point, _ in mounted:
            if point.startswith(f"{parent}/"):
                with suppress(OSError):  # of a user's own file systems, which root may not see
                    kept[point] = os.open(point, os.O_PATH)
        for name in ("upper", "work"):
            (folder / name).mkdir(parents=True)
        self.below[folder / "upper"] = Path(f"/proc/self/fd/{os.open(parent, os.O_PATH)}")
        options = f"lowerdir={parent},upperdir={folder / 'upper'},workdir={folder / 'work'}"
        _mount(_OVERLAY, parent, "overlay", options=options)
        for point, handle in kept.items():
            _mount(f"/proc/self/fd/{handle}", Path(point), flags=_BIND)
            os.close(handle)
        self.watched[folder / "upper"] = str(parent)

    def environment(self, outside: Mapping[str, str]) -> dict[str, str]:
        """The variables of a command in the room: none that leads out of it, or that is a setting of Colocate's."""
        kept = {
            name: value
            for name, value in outside.items()
            if not name.startswith(("KUBE", "XDG_"))
            and (not name.startswith("COLOCATE_") or name.startswith("COLOCATE_TEST_"))
        }
        return {
            **package_index(outside),
            **kept,
            **{name: str(self.home / folder) for name, folder in _XDG.items()},
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "XDG_RUNTIME_DIR": str(self._runtime),
            VARIABLE: str(self.scratch),
        }


def mounts() -> list[tuple[str, str]]:
    """What is mounted, in order: where, and from what."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        found.append((point, after.split()[1]))
    return found


def package_index(outside: Mapping[str, str]) -> dict[str, str]:
    """Where pip finds packages: a matter of this machine, though it may be said in the home."""
    home = Path(outside.get("HOME", "/"))
    config = Path(outside.get("XDG_CONFIG_HOME") or home / ".config")
    files = [file for file in (config / "pip" / "pip.conf", home / ".pip" / "pip.conf") if file.is_file()]
    return {"PIP_CONFIG_FILE": str(files[0])} if files else {}


def _mount(source: str, target: Path, kind: str = "", *, flags: int = 0, options: str = "") -> None:
    words = (source.encode(), str(target).encode(), kind.encode() or None)
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None):
        raise _error(f"{kind or source} on {target}")


def _error(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), what)
