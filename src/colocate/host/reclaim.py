"""Reclaims memory from a group in bounded steps, as far as the kernel can without killing.

On v2 a step is a write to memory.reclaim. v1 has none: there the limit is lowered to a step below the usage, which
the kernel answers by reclaiming or by EBUSY, and restored at once. A process that allocates in between meets the
lowered limit; remaining page cache then yields, so that no process is killed. Cold pages go first. A kernel with swap
or slower NUMA nodes moves anonymous memory there; one without drops only page cache.
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
"""When a step of this size fails, there is nothing left to reclaim."""

_V1_LIMIT = "memory.limit_in_bytes"
_V1_STAT = StatParser(1)


class ReclaimEnd(StrEnum):
    """Why reclaiming ended."""

    ENOUGH = "as much as was asked for"
    NOTHING_LEFT = "the kernel finds no more to reclaim"
    STOPPED = "stopped before all was reclaimed"
    GONE = "the group is gone"


class Reclaimed(msgspec.Struct, frozen=True):
    """The result of a reclaim."""

    amount: Bytes
    """Bytes that the kernel dropped, wrote to swap or moved to a slower NUMA node."""
    end: ReclaimEnd


class ReclaimStep(msgspec.Struct, frozen=True):
    """The result of one step."""

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
    """Reclaim `amount` bytes, step by step, while `go_on` returns true, for example while the pressure is low.

    On v1, `leave` bytes of page cache stay. A cancellation takes effect between steps, so that no limit stays
    lowered.
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
                # Smaller steps may still succeed; halving also bounds how often the kernel searches in vain.
                step = size // 2
                if step < _LEAST_STEP:
                    return Reclaimed(taken, ReclaimEnd.NOTHING_LEFT)
    except GroupGone:
        return Reclaimed(taken, ReclaimEnd.GONE)
    return Reclaimed(taken, ReclaimEnd.ENOUGH)


def reclaim_once(group: MemoryGroup, size: Bytes, leave: Bytes) -> ReclaimStep:
    """One step; returns when the kernel is done."""
    if leave and group.version == 1 and _V1_STAT.parse(group.read("memory.stat")).file - size < leave:
        return ReclaimStep(0, complete=False)
    before = group.usage
    try:
        if group.version == 2:
            group.write("memory.reclaim", str(size))
        else:
            _lower_and_put_back(group, max(0, before - size))
    except OSError as error:
        # v2 answers EAGAIN, v1 EBUSY; some memory may have been reclaimed.
        if error.errno not in (errno.EAGAIN, errno.EBUSY):
            raise
        return ReclaimStep(min(size, max(0, before - group.usage)), complete=False)
    # v1 accepts a limit of 0 where less than `size` is used.
    return ReclaimStep(min(size, before), complete=size <= before)


def put_back(group: MemoryGroup, limit: Bytes) -> bool:
    """Restore a limit that stayed lowered because the agent was killed during a step (v1); whether there was one."""
    if group.version != 1:
        return False
    there = memory_files.limit(group.read(_V1_LIMIT))
    if there is None or there >= limit:
        return False
    group.write(_V1_LIMIT, str(limit))
    return True


def _lower_and_put_back(group: MemoryGroup, limit: Bytes) -> None:
    """If the agent is killed in between, the next one restores the limit first (`put_back`)."""
    old = group.read(_V1_LIMIT).decode().strip()
    group.write(_V1_LIMIT, str(limit))
    group.write(_V1_LIMIT, old)
