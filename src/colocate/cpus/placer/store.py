"""Stores the placements: one file, and a lock so that only one placer writes it.

The file is replaced as a whole, never half-written. A file that cannot be read (damaged, or of another release or
program) is set aside, and the state is rebuilt from the containers that run: operators never have to delete anything.
If the disk fails or is slow, placement goes on without a stored state.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from colocate import telemetry
from colocate.cpus import ContainerKey, decode_state, encode_state
from colocate.cpus.placer.placements import STATE_VERSION, PlacedContainer, PlacementState
from colocate.crashpoints import reached
from colocate.errors import UserError, system_reason
from colocate.host.files import sync_folder, take_lock, write_atomically
from colocate.model.container import ContainerPhase, RuntimeSandbox
from colocate.telemetry import Event

_FILE = "cpus-state.json"
_LOCK = "cpus-lock"
_ASIDE = ".set-aside"
_LARGEST = 64 << 20
"""Largest file in bytes; a thousand containers take about 1 MiB."""
DEADLINE = 1.0
"""Seconds that storing may take; a runtime waits two seconds for an answer."""
_SLOW = "the disk takes too long"


class _StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file; `cpus` is read by `colocate.cpus`."""

    version: int
    off: bool = False
    unpinned: tuple[ContainerKey, ...] = ()
    sandboxes: tuple[RuntimeSandbox, ...] = ()
    containers: tuple[PlacedContainer, ...] = ()
    cpus: msgspec.Raw


class PlacementStore:
    """The state file in one folder."""

    def __init__(self, folder: Path) -> None:
        self.unstored = ""
        """Why the last state is not stored; empty if it is."""
        self._folder = folder
        self._file = folder / _FILE
        self._lock: int | None = None
        self._stored = b""
        self._saving: asyncio.Future[None] | None = None

    def begin(self) -> PlacementState:
        """Lock the folder and read the last state, or an empty one; UserError if another placer has the folder."""
        self.unstored = self._prepare()
        state, aside = self._load()
        if aside:
            telemetry.logger().warning(Event.PLACEMENT_STATE_SET_ASIDE, reason=aside)
        return state

    def close(self) -> None:
        """Release the folder; the end of the process does that, too."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def save(self, state: PlacementState) -> None:
        """Store the state in a thread. On return it is on disk, or `unstored` says why not."""
        if not await self._has_ended():
            return
        self._saving = asyncio.ensure_future(asyncio.to_thread(self._write, state))
        if not await self._has_ended():
            return
        error = self._saving.exception()
        if error is None:
            self._tell("")
        else:
            self._tell(self._why_not(error) if isinstance(error, OSError) else repr(error))

    def set_aside(self, why: str) -> None:
        """Rename the file so that people can look at it, and go on without one."""
        telemetry.logger().warning(Event.PLACEMENT_STATE_SET_ASIDE, reason=self._set_aside(why))

    def _prepare(self) -> str:
        """Make and lock the folder; UserError if another placer has it.

        Any other failure is returned as a sentence: containers start and are placed without a store.
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
            return self._why_not(error)
        with suppress(OSError):
            # Temporary files of a placer that was killed while it wrote; with the lock held, only we write here.
            for left in self._folder.glob(f".{_FILE}.*"):
                left.unlink(missing_ok=True)
        return ""

    def _load(self) -> tuple[PlacementState, str]:
        """The last state, or an empty one; and why a file was set aside, if one was."""
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
            return PlacementState(), self._set_aside(str(error))

    def _write(self, state: PlacementState) -> None:
        """Write the file if it changes; OSError if that fails, and then the old file is unchanged."""
        data = encoded(state)
        if data != self._stored:
            write_atomically(self._file, data)
            self._stored = data

    def _set_aside(self, why: str) -> str:
        """Rename the file; returns a sentence about what was done."""
        self._stored = b""
        aside = self._file.with_name(f"{_FILE}{_ASIDE}")
        try:
            self._file.rename(aside)
            reached("file.set_aside")
            sync_folder(self._folder)
        except OSError as error:
            return f"{self._file} makes no sense ({why}) and cannot be set aside ({system_reason(error)})"
        return f"{self._file} makes no sense ({why}); it was set aside as {aside.name}"

    async def _has_ended(self) -> bool:
        """Whether no write is under way, or the one under way ended in time."""
        if self._saving is None:
            return True
        await asyncio.wait({self._saving}, timeout=DEADLINE)
        if not self._saving.done():
            self._saving.add_done_callback(lambda late: late.cancelled() or late.exception())
            self._tell(_SLOW)
        return self._saving.done()

    def _why_not(self, error: OSError) -> str:
        return f"{self._folder}: {system_reason(error)}"

    def _tell(self, why: str) -> None:
        telemetry.CPUS_STATE_STORED.set(0 if why else 1)
        if why and why != self.unstored:
            telemetry.logger().warning(Event.PLACEMENT_STATE_UNSTORED, reason=why)
        elif self.unstored and not why:
            telemetry.logger().info(Event.PLACEMENT_STATE_STORED)
        self.unstored = why


def examine_state(folder: Path) -> Iterator[str]:
    """Problems of a folder's state, found without changing it; PermissionError if it cannot be read."""
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
    """The content of the file: without ids and phases, which the runtime tells again when it connects."""
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
    """The state in a file; ValueError if this release cannot read it."""
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
