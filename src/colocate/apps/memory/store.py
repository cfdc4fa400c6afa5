"""What the memory part keeps on disk: its state, the off switch, and pods that are about to be created elsewhere.

Every file is old or new, never half-written. Nothing is done to a pod before its state is stored here. One agent at a
time: two with the same state would undo each other's work.
"""

import fcntl
import os
from pathlib import Path

import msgspec

from colocate.cluster.resources import Object
from colocate.crashpoints import reached
from colocate.errors import UserError
from colocate.host.files import LeadsElsewhere, below, sync_folder, write_atomically
from colocate.memory.state import State, from_json, to_json
from colocate.model.path_word import is_path_word

_MOVE = "memory-recreate-"
_ASIDE = ".unreadable"


class Manifest(msgspec.Struct, frozen=True):
    """A pod that ends here and is to be created again elsewhere."""

    uid: str
    namespace: str
    name: str
    body: Object


class Moves(msgspec.Struct, frozen=True):
    """Pods that are under way to another node."""

    manifests: tuple[Manifest, ...] = ()
    lost: tuple[str, ...] = ()
    """A sentence for every file from which nobody can tell the pod any more."""


class Store:
    """One folder of files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = folder / "memory-state.json"
        self._off = folder / "memory-off"
        self._lock: int | None = None

    def prepare(self) -> None:
        """Make the folder and take it for this process alone; UserError where that cannot be."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"memory.stateFolder: cannot make {self._folder} ({_reason(error)}); choose a folder that outlives "
                "the agent"
            ) from error
        file = self._folder / "memory-lock"
        try:
            self._lock = _locked(file)
        except BlockingIOError:
            raise UserError(
                f"memory.stateFolder: another agent works with {self._folder}; stop it, or give this one a folder "
                "and a resource of its own"
            ) from None
        except OSError as error:
            raise UserError(
                f"memory.stateFolder: cannot lock {file} ({_reason(error)}); choose a folder on this node's own disk"
            ) from error

    def close(self) -> None:
        """Leave the folder to others; the end of the process does that, too."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> State:
        """The state as it was stored last, or a new one; UserError where it cannot be read."""
        try:
            return from_json(self._state.read_bytes())
        except FileNotFoundError:
            return State()
        except OSError as error:
            raise UserError(
                f"memory: {self._state} cannot be read ({_reason(error)}); let the agent's user read it"
            ) from error

    def save(self, state: State) -> None:
        """Store a state; OSError where that fails, and then the old one is still there."""
        write_atomically(self._state, to_json(state))

    @property
    def is_off(self) -> bool:
        return self._off.exists()

    def switch(self, off: bool) -> None:
        """Remember that colocation is switched off on this node, or on again."""
        if off:
            write_atomically(
                self._off, b"Memory colocation is switched off; 'colocate memory on' ends that.\n"
            )
        else:
            self._remove(self._off)

    def moves(self) -> Moves:
        """All that are written down. A file that makes no sense is set aside, and named as long as it lies there."""
        lost = [_lost(file) for file in sorted(self._folder.glob(f"{_MOVE}*.json{_ASIDE}"))]
        manifests = []
        for file in sorted(self._folder.glob(f"{_MOVE}*.json")):
            try:
                manifests.append(self._read(file))
            except FileNotFoundError:
                continue
            except OSError as error:
                lost.append(
                    f"which pod is to be created again by {file}: {_reason(error)}; let the agent read it"
                )
            except ValueError:
                lost.append(_lost(self._set_aside(file)))
        return Moves(tuple(manifests), tuple(lost))

    def _read(self, file: Path) -> Manifest:
        """ValueError where it is not as it was written."""
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
        if not is_path_word(manifest.uid):
            raise ValueError("it is about no pod")
        if file != self._manifest(manifest.uid):
            raise ValueError("it is about another pod")
        return manifest

    def _set_aside(self, file: Path) -> Path:
        """Where it lies then."""
        aside = file.with_name(f"{file.name}{_ASIDE}")
        try:
            file.rename(aside)
            reached("file.set_aside")
            sync_folder(self._folder)
        except OSError:
            return file  # It is named all the same, and the next turn tries again.
        return aside

    def remember(self, manifest: Manifest) -> None:
        write_atomically(self._manifest(manifest.uid), msgspec.json.encode(manifest))

    def forget(self, uid: str) -> None:
        self._remove(self._manifest(uid))

    def _manifest(self, uid: str) -> Path:
        """`LeadsElsewhere` where it is no uid that a pod can have."""
        if not is_path_word(uid):
            raise LeadsElsewhere(f"{uid[:100]!r} is no uid of a pod: it would lead out of {self._folder}")
        return below(self._folder, f"{_MOVE}{uid}.json")

    def _remove(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        reached("file.removed")
        sync_folder(self._folder)


def _lost(file: Path) -> str:
    uid = file.name.removeprefix(_MOVE).partition(".json")[0]
    return (
        f"which pod was to be created again on another node after pod {uid}: {file} makes no sense; create that pod "
        "where it is missing, and remove the file"
    )


def _locked(file: Path) -> int:
    """A handle that nobody else has while it is open; BlockingIOError where somebody has it."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
