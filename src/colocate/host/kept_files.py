"""Files that are read again and again, their descriptors kept open within a budget.

Of a control group's file, opening costs several times as much as reading. A file beyond the budget is opened
and closed each time: slower, never wrong.
"""

import errno
import os
import resource
from pathlib import Path

_ABSENT = (errno.ENOENT, errno.EOPNOTSUPP)
"""EOPNOTSUPP: pressure, on a kernel that was told not to measure it."""


class DescriptorBudget:
    """How many descriptors may yet be kept open."""

    def __init__(self, most: int | None = None) -> None:
        """By default half of what this process may have, and no more than 4096."""
        self.left = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2) if most is None else most


class KeptFile:
    """One file; its group may vanish at any time, and the caller learns of it by FileNotFoundError."""

    __slots__ = ("_absent", "_budget", "_fd", "_path", "_size")

    def __init__(self, path: Path, budget: DescriptorBudget) -> None:
        self._path = path
        self._budget = budget
        self._fd = -1
        self._size = 1024
        self._absent = False

    def read(self) -> bytes:
        """All of it, as it is now; FileNotFoundError once the file is gone."""
        if self._fd < 0:
            return self._open_and_read()
        try:
            data = os.pread(self._fd, self._size, 0)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            # The group is gone; one of the same name may be there already.
            self.close()
            return self._open_and_read()
        return data if len(data) < self._size else self._whole(self._fd)

    def read_if_there(self) -> bytes | None:
        """All of it; None where this kernel has no such file."""
        if self._absent:
            return None
        try:
            return self.read()
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            self._absent = True
            return None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._budget.left += 1

    def _open_and_read(self) -> bytes:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise OSError(
                error.errno, "too many open files; raise the limit (ulimit -n)", str(self._path)
            ) from error
        if self._budget.left > 0:
            self._budget.left -= 1
            self._fd = fd
            return self._whole(fd)
        try:
            return self._whole(fd)
        finally:
            os.close(fd)

    def _whole(self, fd: int) -> bytes:
        try:
            while len(data := os.pread(fd, self._size, 0)) == self._size:
                self._size *= 2
        except OSError as error:
            if error.errno == errno.ENODEV:
                raise FileNotFoundError(errno.ENOENT, "gone while it was read", str(self._path)) from error
            raise
        return data
