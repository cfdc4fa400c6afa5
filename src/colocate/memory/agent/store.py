"""What the memory part keeps on disk: its state, the off switch, and notes of pods to be created again elsewhere.

Every file is old or new, never half-written. What fails is an OSError for the caller, who goes on without the file; a
start that is impossible is a UserError. One agent at a time: two with the same state would undo each other's work.
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
"""Expired notes that are kept for people; beyond, the oldest go."""


class PodNote(msgspec.Struct, frozen=True):
    """The note of a pod that ends here and is to be created again elsewhere."""

    uid: str
    namespace: str
    name: str
    body: Object
    noted: float = 0.0
    """When, in seconds since the epoch; read as 0, it is the time of the file."""
    namespace_uid: str = ""
    """Of the namespace at that time; empty in notes of releases that did not ask."""
    accepted: bool = False
    """Whether the API server is known to have taken the eviction: what ended the pod was then not its owner."""
    deletion: str = ""
    """The pod's deletionTimestamp as that eviction set it; empty where nobody saw it."""


class PodNotes(msgspec.Struct, frozen=True):
    """Pods that are under way to another node."""

    manifests: tuple[PodNote, ...] = ()
    lost: tuple[str, ...] = ()
    """A sentence for every file from which nobody can tell the pod any more."""


class MemoryStore:
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
            # Of an agent that was killed while it wrote one; nobody else writes here now.
            self._remove_all(self._folder.glob(".memory-*"))

    def close(self) -> None:
        """Leave the folder to others; the end of the process does that, too."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self) -> MemoryState:
        """The state as it was stored last, or a new one; UserError where it cannot be read."""
        try:
            return state_from_json(self._state.read_bytes())
        except FileNotFoundError:
            return MemoryState()
        except OSError as error:
            raise UserError(
                f"memory: {self._state} cannot be read ({system_reason(error)}); let the agent's user read it"
            ) from error

    def why_not(self, error: OSError) -> str:
        """Why nothing can be stored, for people."""
        return f"{self._folder}: {system_reason(error)}"

    def save(self, state: MemoryState) -> None:
        """Store a state; OSError where that fails, and then the old one is still there."""
        write_atomically(self._state, state_to_json(state))

    @property
    def is_off(self) -> bool:
        """UserError where nobody can say."""
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
        """Remember that colocation is switched off on this node, or on again; OSError where that fails."""
        if off:
            write_atomically(
                self._off, b"Memory colocation is switched off; 'colocate memory on' ends that.\n"
            )
        else:
            self._remove(self._off)

    def moves(self) -> PodNotes:
        """All that are written down. A file that makes no sense is set aside, and named as long as it lies there."""
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
        """ValueError where it is not as it was written."""
        manifest = msgspec.json.decode(file.read_bytes(), type=PodNote)
        if not is_path_word(manifest.uid):
            raise ValueError("it is about no pod")
        if file != self._manifest(manifest.uid):
            raise ValueError("it is about another pod")
        return manifest if manifest.noted else msgspec.structs.replace(manifest, noted=file.stat().st_mtime)

    def _unreadable(self, file: Path) -> Path:
        """Where it lies then."""
        try:
            return self._set_aside(file, _UNREADABLE)
        except OSError:
            return file  # It is named all the same, and the next turn tries again.

    def _set_aside(self, file: Path, why: str) -> Path:
        aside = file.with_name(f"{file.name}{why}")
        file.rename(aside)
        reached("file.set_aside")
        sync_folder(self._folder)
        return aside

    def remember(self, manifest: PodNote) -> None:
        """Write a note; OSError where that fails, and then an older one of that pod is still there."""
        write_atomically(self._manifest(manifest.uid), msgspec.json.encode(manifest))

    def forget(self, uid: str) -> None:
        """Remove a note, where there is one; OSError where that fails."""
        self._remove(self._manifest(uid))

    def expire(self, uid: str) -> None:
        """Set a note aside that no pod is created from any more: it has the only copy of the pod."""
        self._set_aside(self._manifest(uid), _EXPIRED)
        aside = sorted(self._folder.glob(f"{_MOVE}*.json{_EXPIRED}"), key=lambda file: file.stat().st_mtime)
        self._remove_all(aside[:-_MOST_EXPIRED])

    def _manifest(self, uid: str) -> Path:
        """`LeadsElsewhere` where it is no uid that a pod can have."""
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
