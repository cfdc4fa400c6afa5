"""What the memory part keeps on disk: its state, the off switch, and pods that are about to be created elsewhere.

Every file is old or new, never half-written. Nothing is done to a pod before its state is stored here.
"""

import contextlib
from pathlib import Path

import msgspec

from colocate.cluster.resources import Object
from colocate.crashpoints import reached
from colocate.errors import UserError
from colocate.host.files import sync_folder, write_atomically
from colocate.memory.state import State, from_json, to_json


class Manifest(msgspec.Struct, frozen=True):
    """A pod that ends here and is to be created again elsewhere."""

    uid: str
    namespace: str
    name: str
    body: Object


class Store:
    """One folder of files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = folder / "memory-state.json"
        self._off = folder / "memory-off"

    def prepare(self) -> None:
        """Make the folder; UserError where that cannot be."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(
                f"memory.stateFolder: cannot make {self._folder} ({reason}); choose a folder that outlives the agent"
            ) from error

    def load(self) -> State:
        """The state as it was stored last, or a new one; UserError where it cannot be read."""
        try:
            return from_json(self._state.read_bytes())
        except FileNotFoundError:
            return State()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(
                f"memory: {self._state} cannot be read ({reason}); let the agent's user read it"
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

    def manifests(self) -> list[Manifest]:
        """Pods that are under way to another node."""
        found = []
        for file in sorted(self._folder.glob("memory-recreate-*.json")):
            with contextlib.suppress(FileNotFoundError):
                found.append(msgspec.json.decode(file.read_bytes(), type=Manifest))
        return found

    def remember(self, manifest: Manifest) -> None:
        write_atomically(self._manifest(manifest.uid), msgspec.json.encode(manifest))

    def forget(self, uid: str) -> None:
        self._remove(self._manifest(uid))

    def _manifest(self, uid: str) -> Path:
        return self._folder / f"memory-recreate-{uid}.json"

    def _remove(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        reached("file.removed")
        sync_folder(self._folder)
