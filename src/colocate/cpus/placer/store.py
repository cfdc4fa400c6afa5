"""What the placer keeps on disk: one file with its state, and the lock that makes it the only one.

The file is old or new, never half-written. One that cannot be understood (damaged, of another release, somebody
else's) is set aside, and the state is rebuilt from what runs: nobody ever has to delete anything.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from colocate.cpus import ContainerKey, decode_state, encode_state
from colocate.cpus.placer.book import STATE_VERSION, PlacedContainer, PlacementState
from colocate.crashpoints import reached
from colocate.errors import UserError, system_reason
from colocate.host.files import sync_folder, take_lock, write_atomically
from colocate.model.container import ContainerPhase, RuntimeSandbox

_FILE = "cpus-state.json"
_LOCK = "cpus-lock"
_ASIDE = ".set-aside"
_LARGEST = 64 << 20
"""Bytes. A node of a thousand containers fills one."""


class _StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content; the part about CPUs is read by those who wrote it."""

    version: int
    off: bool = False
    unpinned: tuple[ContainerKey, ...] = ()
    sandboxes: tuple[RuntimeSandbox, ...] = ()
    containers: tuple[PlacedContainer, ...] = ()
    cpus: msgspec.Raw


class PlacementStore:
    """One folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / _FILE
        self._lock: int | None = None
        self._stored = b""

    def prepare(self) -> str:
        """Make the folder and take it for this placer alone; UserError where another has it.

        Anything else that fails is returned as a sentence: containers are placed without a store, and start.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = take_lock(self._folder / _LOCK)
        except BlockingIOError:
            raise UserError(
                f"another placer works with {self._folder}; stop it (systemctl stop colocate-cri-proxy, or "
                "colocate-nri), or give this one a folder of its own with cpus.stateFolder"
            ) from None
        except OSError as error:
            return self.why_not(error)
        with suppress(OSError):
            # Of a placer that was killed while it wrote one; nobody else writes here now.
            for left in self._folder.glob(f".{_FILE}.*"):
                left.unlink(missing_ok=True)
        return ""

    def close(self) -> None:
        """Leave the folder to others; the end of the process does that, too."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def why_not(self, error: OSError) -> str:
        """Why nothing can be stored, for people."""
        return f"{self._folder}: {system_reason(error)}"

    def load(self) -> tuple[PlacementState, str]:
        """The state as it was stored last, or an empty one; and why a file was set aside, where one was."""
        try:
            with self._file.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return PlacementState(), ""
        except OSError as error:
            return PlacementState(), f"{self._file} cannot be read ({system_reason(error)})"
        try:
            return decoded(data), ""
        except ValueError as error:
            return PlacementState(), self.set_aside(str(error))

    def save(self, state: PlacementState) -> None:
        """OSError where that fails, and then the old file is still there."""
        data = encoded(state)
        if data != self._stored:
            write_atomically(self._file, data)
            self._stored = data

    def set_aside(self, why: str) -> str:
        """Keep the file for people to look at, and begin without one; what was done, for people."""
        self._stored = b""
        aside = self._file.with_name(f"{_FILE}{_ASIDE}")
        try:
            self._file.rename(aside)
            reached("file.set_aside")
            sync_folder(self._folder)
        except OSError as error:
            return f"{self._file} makes no sense ({why}) and cannot be set aside ({system_reason(error)})"
        return f"{self._file} makes no sense ({why}); it was set aside as {aside.name}"


def examine_state(folder: Path) -> Iterator[str]:
    """What people should know of a folder's state, without changing it; PermissionError where it cannot be read."""
    file = folder / _FILE
    try:
        decoded(file.read_bytes())
    except FileNotFoundError:
        pass
    except ValueError as error:
        yield f"{file} makes no sense ({error}); the next placer sets it aside"
    if (aside := folder / f"{_FILE}{_ASIDE}").exists():
        yield f"{aside} was set aside by a placer that could not read it"


def encoded(state: PlacementState) -> bytes:
    """The state as the file has it: without ids and phases, which the runtime tells again when it connects."""
    containers = tuple(
        msgspec.structs.replace(each, id="", phase=ContainerPhase.UNKNOWN) for each in state.containers
    )
    return msgspec.json.encode(
        _StateFile(
            version=state.version,
            off=state.off,
            unpinned=state.unpinned,
            sandboxes=state.sandboxes,
            containers=containers,
            cpus=msgspec.Raw(encode_state(state.cpus)),
        )
    )


def decoded(data: bytes) -> PlacementState:
    """The state of a file; ValueError where it is none of this release."""
    if len(data) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST} bytes")
    try:
        file = msgspec.json.decode(data, type=_StateFile)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if file.version != STATE_VERSION:
        raise ValueError(f"it has version {file.version}, and this release reads version {STATE_VERSION}")
    return PlacementState(
        off=file.off,
        unpinned=file.unpinned,
        sandboxes=file.sandboxes,
        containers=file.containers,
        cpus=decode_state(bytes(file.cpus)),
    )
