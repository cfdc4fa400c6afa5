"""Reads and writes the files of one control group, and translates their errors.

Every write announces itself to `crashpoints` when done. `GroupGone`: the group is gone, because its pod has ended.
`Unavailable`: the group cannot be written, with the reason.
"""

import errno
import os
from pathlib import Path

import msgspec

from colocate.crashpoints import reached
from colocate.errors import ColocateError, Unavailable
from colocate.host import memory_files
from colocate.model.memory import Bytes

_GONE = (errno.ENOENT, errno.ENODEV)

_REMEDIES = {
    errno.EROFS: "the control groups are mounted read-only here; mount /sys/fs/cgroup of the host with rw",
    errno.EACCES: "this process may not write control groups; run it as root",
    errno.EPERM: "this process may not write control groups; run it as root",
}


class GroupGone(ColocateError):
    """The control group no longer exists."""


class MemoryGroup(msgspec.Struct, frozen=True):
    """A control group that accounts for memory."""

    folder: Path
    version: int
    """1 or 2."""

    @property
    def usage(self) -> Bytes:
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return memory_files.number(self.read(name))

    def read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise self._meaning(error, name) from error

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def write(self, name: str, value: str) -> None:
        """Write one of its files; OSError where the kernel refuses the value (EBUSY, EAGAIN, EINVAL)."""
        try:
            handle = os.open(self.folder / name, os.O_WRONLY | os.O_TRUNC)
            try:
                os.write(handle, value.encode())
            finally:
                os.close(handle)
        except OSError as error:
            raise self._meaning(error, name) from error
        reached(f"cgroup.{name}")

    def _meaning(self, error: OSError, name: str) -> Exception:
        if error.errno in _GONE and not self.folder.is_dir():
            return GroupGone(f"the control group {self.folder} is gone")
        if error.errno in _GONE:
            return Unavailable(f"this kernel has no {name} in {self.folder}")
        if error.errno in _REMEDIES:
            return Unavailable(f"{self.folder / name} is out of reach: {_REMEDIES[error.errno]}")
        return error
