"""A mark on a pod's control group: its memory.high is ours, and this is what it was before.

It is an extended attribute, so it ends with the group and outlives every file of ours. With it, a pod that was
throttled is found again by an agent that has lost its state, and a memory.high of somebody else is left alone.
Kernels before Linux 5.7 take no such mark: there the stored state alone knows.
"""

import os
from contextlib import suppress
from pathlib import Path

from colocate.crashpoints import reached
from colocate.model.memory import Bytes, OurHigh

_NAME = "user.colocate.memory-high-before"
_NO_LIMIT = b"max"


def mark(folder: Path, before: Bytes | None) -> bool:
    """Say that memory.high is ours, before it is; whether the kernel has taken that."""
    try:
        os.setxattr(folder, _NAME, _NO_LIMIT if before is None else str(before).encode())
    except OSError:
        return False
    reached("cgroup.marked")
    return True


def unmark(folder: Path) -> None:
    """Say that it is no longer, when it is not."""
    with suppress(OSError):
        os.removexattr(folder, _NAME)
    reached("cgroup.unmarked")


def read_mark(folder: Path) -> OurHigh | None:
    """None where memory.high is not known to be ours."""
    try:
        value = os.getxattr(folder, _NAME)
        return OurHigh(None if value == _NO_LIMIT else int(value))
    except (OSError, ValueError):
        return None
