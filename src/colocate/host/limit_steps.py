"""A limit lowered in steps on cgroup v1, where the kernel refuses one that it cannot reclaim down to (EBUSY).

What was reached stays: the group may not grow back into what it gave.
"""

import errno

import msgspec

from colocate.host import memory_files
from colocate.host.memory_group import MemoryGroup
from colocate.host.reclaim import STEP
from colocate.model.memory import Bytes

_LIMIT = "memory.limit_in_bytes"


class Lowered(msgspec.Struct, frozen=True):
    """How far it got."""

    limit: Bytes | None
    """The limit that the group has now."""
    gave: Bytes
    """By how much its use went down."""
    complete: bool


def lower_limit(group: MemoryGroup, to: Bytes, step: Bytes = STEP) -> Lowered:
    """Lower a limit to `to`; blocks while the kernel reclaims."""
    before = group.usage
    complete = True
    target = max(to, before - step)
    while True:
        try:
            group.write(_LIMIT, str(target))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            complete = False
            break
        if target <= to:
            break
        target = max(to, target - step)
    limit = memory_files.limit(group.read(_LIMIT))
    return Lowered(limit, max(0, before - group.usage), complete)
