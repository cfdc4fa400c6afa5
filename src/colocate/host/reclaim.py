"""Memory taken back from a group in bounded steps, as far as the kernel can without killing.

On v2 a step is a write to memory.reclaim. On v1, which has none, the limit is lowered to a step below what is
used, which the kernel answers by reclaiming or by EBUSY, and put back at once. The kernel lowers it only when less is
used, but who allocates in between meets it: page cache that is left makes way then, and nobody is killed. Cold pages
go first; a kernel with swap or slower NUMA nodes puts anonymous memory there, one without drops page cache alone.
"""

import errno
from collections.abc import Callable
from enum import StrEnum
from functools import partial

import msgspec

from colocate.aio import in_thread
from colocate.host import memory_files
from colocate.host.memory_files import StatParser
from colocate.host.memory_group import GroupGone, MemoryGroup
from colocate.model.memory import Bytes

STEP: Bytes = 32 << 20
_LEAST_STEP: Bytes = 256 << 10
"""When not even this much comes back, nothing does."""

_V1_LIMIT = "memory.limit_in_bytes"
_V1_STAT = StatParser(1)


class ReclaimEnd(StrEnum):
    """Why reclaiming ended."""

    ENOUGH = "as much as was asked for"
    NOTHING_LEFT = "the kernel finds no more to reclaim"
    STOPPED = "stopped before all was reclaimed"
    GONE = "the group is gone"


class Reclaimed(msgspec.Struct, frozen=True):
    """What came of it."""

    amount: Bytes
    """As the kernel counts: dropped, written to swap or moved to a slower NUMA node."""
    end: ReclaimEnd


class ReclaimStep(msgspec.Struct, frozen=True):
    """What came of one step."""

    amount: Bytes
    complete: bool
    """False where the kernel found less than it was asked for."""


async def reclaim(
    group: MemoryGroup,
    amount: Bytes,
    *,
    leave: Bytes = 0,
    step: Bytes = STEP,
    go_on: Callable[[], bool] = lambda: True,
) -> Reclaimed:
    """Take back `amount`, step by step; `go_on` is asked before each: as long as the pressure allows, say.

    On v1 page cache of `leave` bytes is left. Can be cancelled between steps. One that has begun is finished: no
    limit stays lowered.
    """
    taken = 0
    try:
        while taken < amount:
            if not go_on():
                return Reclaimed(taken, ReclaimEnd.STOPPED)
            size = min(step, amount - taken)
            done = await in_thread(partial(reclaim_once, group, size, leave))
            taken += done.amount
            if not done.complete:
                # Less may still be had in smaller steps; this also bounds how often the kernel searches in vain.
                step = size // 2
                if step < _LEAST_STEP:
                    return Reclaimed(taken, ReclaimEnd.NOTHING_LEFT)
    except GroupGone:
        return Reclaimed(taken, ReclaimEnd.GONE)
    return Reclaimed(taken, ReclaimEnd.ENOUGH)


def reclaim_once(group: MemoryGroup, size: Bytes, leave: Bytes) -> ReclaimStep:
    """One step; blocks until the kernel has done with it."""
    if leave and group.version == 1 and _V1_STAT.parse(group.read("memory.stat")).file - size < leave:
        return ReclaimStep(0, complete=False)
    before = group.usage
    try:
        if group.version == 2:
            group.write("memory.reclaim", str(size))
        else:
            _lower_and_put_back(group, max(0, before - size))
    except OSError as error:
        # v2 says EAGAIN, v1 EBUSY; some of it may have come back all the same.
        if error.errno not in (errno.EAGAIN, errno.EBUSY):
            raise
        return ReclaimStep(min(size, max(0, before - group.usage)), complete=False)
    # v1 lowers a limit to nothing where less than that is used, and calls it done.
    return ReclaimStep(min(size, before), complete=size <= before)


def put_back(group: MemoryGroup, limit: Bytes) -> bool:
    """Raise a limit that a death in the middle of a step left lowered; whether there was one. Only v1 can have it."""
    if group.version != 1:
        return False
    there = memory_files.limit(group.read(_V1_LIMIT))
    if there is None or there >= limit:
        return False
    group.write(_V1_LIMIT, str(limit))
    return True


def _lower_and_put_back(group: MemoryGroup, limit: Bytes) -> None:
    """Whoever dies in between leaves a limit that its successor puts right before anything else."""
    old = group.read(_V1_LIMIT).decode().strip()
    group.write(_V1_LIMIT, str(limit))
    group.write(_V1_LIMIT, old)
