"""Stores the state of the memory part, the off switch, and notes of pods that will be created again elsewhere.

Files are written atomically. A failure is an OSError for the caller, which goes on without the file; a start that is
impossible is a UserError. Only one agent may use the folder: two would undo each other's work.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from colocate.cluster.resources import Object
from colocate.crashpoints import reached
from colocate.errors import UserError, system_reason
from colocate.host.files import LeadsElsewhere, below, sync_folder, take_lock, write_atomically
from colocate.memory import MemoryState, state_from_json, state_to_json
from colocate.model.path_word import is_path_word

_MOVE = "memory-recreate-"
_UNREADABLE = ".unreadable"
_EXPIRED = ".expired"
_MOST_EXPIRED = 20
"""Expired notes that are kept for operators; older ones are removed."""


class PodNote(msgspec.Struct, frozen=True):
    """A pod that leaves this node and will be created again on another."""

    uid: str
    namespace: str
    name: str
    body: Object
    noted: float = 0.0
    """When it was written, in seconds since the epoch; where 0, the file's time counts."""
    namespace_uid: str = ""
    """Uid of the namespace at that time; empty in notes of earlier releases."""
    accepted: bool = False
    """Whether the API server accepted the eviction: then it ended the pod, not its owner."""
    deletion: str = ""
    """The pod's deletionTimestamp that the eviction set; empty where unknown."""


class PodNotes(msgspec.Struct, frozen=True):
    """All notes."""

    manifests: tuple[PodNote, ...] = ()
    lost: tuple[str, ...] = ()
    """A sentence for every file that cannot be read."""


class MemoryStore:
    """The agent's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = folder / "memory-state.json"
        self._off = folder / "memory-off"
        self._lock: int | None = None

    def prepare(self) -> None:
        """Create the folder and lock it for this process; UserError where that fails."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"memory.stateFolder: cannot make {self._folder} ({system_reason(error)}); "
                "choose a folder that outlives the agent"
            ) from error
        file = self._folder / "memory-lock"
        try:
            self._lock = take_lock(file)
        except BlockingIOError:
            raise UserError(
                f"memory.stateFolder: another agent works with {self._folder}; stop it, or give this one a folder "
                "and a resource of its own"
            ) from None
        except OSError as error:
            raise UserError(
                f"memory.stateFolder: cannot lock {file} ({system_reason(error)}); "
                "choose a folder on this node's own disk"
            ) from error
        with suppress(OSError):
            # Temporary files of an agent that was killed; the lock keeps other writers out.
            self._remove_all(self._folder.glob(".memory-*"))

    def close(self) -> None:
        """Release the lock; the end of the process does so, too."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> MemoryState:
        """The stored state, or a new one; UserError where it cannot be read."""
        try:
            return state_from_json(self._state.read_bytes())
        except FileNotFoundError:
            return MemoryState()
        except OSError as error:
            raise UserError(
                f"memory: {self._state} cannot be read ({system_reason(error)}); let the agent's user read it"
            ) from error

    def why_not(self, error: OSError) -> str:
        """Why nothing can be stored, as a clause for operators."""
        return f"{self._folder}: {system_reason(error)}"

    def save(self, state: MemoryState) -> None:
        """Store a state; OSError where that fails, and the old one stays."""
        write_atomically(self._state, state_to_json(state))

    @property
    def is_off(self) -> bool:
        """Whether colocation is switched off; UserError where that cannot be read."""
        try:
            self._off.stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(
                f"memory: {self._off} cannot be looked at ({system_reason(error)}); "
                "let the agent's user read its folder"
            ) from error
        return True

    def switch(self, off: bool) -> None:
        """Store that colocation is switched off or on; OSError where that fails."""
        if off:
            write_atomically(
                self._off, b"Memory colocation is switched off; 'colocate memory on' ends that.\n"
            )
        else:
            self._remove(self._off)

    def moves(self) -> PodNotes:
        """All notes. A file that cannot be understood is renamed, and reported as long as it exists."""
        try:
            files = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return PodNotes()
        except OSError as error:
            return PodNotes(
                lost=(
                    "pods that should be created again are unknown: "
                    f"{self._folder} cannot be read ({system_reason(error)})",
                )
            )
        notes = [file for file in files if file.name.startswith(_MOVE)]
        lost = [_lost(file) for file in notes if file.name.endswith(f".json{_UNREADABLE}")]
        lost += [_given_up(file) for file in notes if file.name.endswith(f".json{_EXPIRED}")]
        manifests = []
        for file in (file for file in notes if file.name.endswith(".json")):
            try:
                manifests.append(self._read(file))
            except FileNotFoundError:
                continue
            except OSError as error:
                lost.append(
                    f"a pod that should be created again is unknown: {file}: {system_reason(error)}; "
                    "let the agent read it"
                )
            except ValueError:
                lost.append(_lost(self._unreadable(file)))
        return PodNotes(tuple(manifests), tuple(lost))

    def _read(self, file: Path) -> PodNote:
        """Read a note; ValueError where it is damaged."""
        manifest = msgspec.json.decode(file.read_bytes(), type=PodNote)
        if not is_path_word(manifest.uid):
            raise ValueError("it is about no pod")
        if file != self._manifest(manifest.uid):
            raise ValueError("it is about another pod")
        return manifest if manifest.noted else msgspec.structs.replace(manifest, noted=file.stat().st_mtime)

    def _unreadable(self, file: Path) -> Path:
        """Rename a damaged file; its path then."""
        try:
            return self._set_aside(file, _UNREADABLE)
        except OSError:
            return file  # It is reported under its old name, and the next turn tries again.

    def _set_aside(self, file: Path, why: str) -> Path:
        aside = file.with_name(f"{file.name}{why}")
        file.rename(aside)
        reached("file.set_aside")
        sync_folder(self._folder)
        return aside

    def remember(self, manifest: PodNote) -> None:
        """Store a note; OSError where that fails, and an older note of that pod stays."""
        write_atomically(self._manifest(manifest.uid), msgspec.json.encode(manifest))

    def forget(self, uid: str) -> None:
        """Remove a note, if it exists; OSError where that fails."""
        self._remove(self._manifest(uid))

    def expire(self, uid: str) -> None:
        """Rename a note that is too old to create its pod: it has the only copy of the pod."""
        self._set_aside(self._manifest(uid), _EXPIRED)
        aside = sorted(self._folder.glob(f"{_MOVE}*.json{_EXPIRED}"), key=lambda file: file.stat().st_mtime)
        self._remove_all(aside[:-_MOST_EXPIRED])

    def _manifest(self, uid: str) -> Path:
        """The file of a note; `LeadsElsewhere` where no pod can have this uid."""
        if not is_path_word(uid):
            raise LeadsElsewhere(f"{uid[:100]!r} is not a uid of a pod: it would lead out of {self._folder}")
        return below(self._folder, f"{_MOVE}{uid}.json")

    def _remove(self, file: Path) -> None:
        self._remove_all([file])
        sync_folder(self._folder)

    def _remove_all(self, files: Iterable[Path]) -> None:
        for file in files:
            file.unlink(missing_ok=True)
            reached("file.removed")


def _lost(file: Path) -> str:
    uid = file.name.removeprefix(_MOVE).partition(".json")[0]
    return (
        f"pod {uid} should be created again on another node, but {file} is damaged; create the pod where it is "
        "missing, and remove the file"
    )


def _given_up(file: Path) -> str:
    uid = file.name.removeprefix(_MOVE).partition(".json")[0]
    return (
        f"pod {uid} was not created again on another node in time; if it is still wanted, create it from the body "
        f"in {file}, and remove the file"
    )
