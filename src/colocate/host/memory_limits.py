"""Limits on the memory of a pod's control group: set, asserted again, put back. What they are is decided elsewhere.

Only what differs is written, so asserting limits at every turn costs no more than reading them. A limit that is not
named is not touched: the kubelet may be changing it at this moment.
On v2 the kernel takes any limit, and kills inside the group what it cannot reclaim. On v1 it refuses a limit that
it cannot reclaim down to (EBUSY): that is reported, and the old limit stays. There, swap is limited together
with memory, in a second limit that may never be below the first, which gives the order of writing.
"""

import errno
import os

import msgspec
from msgspec import UNSET, UnsetType

from colocate.host import memory_files
from colocate.host.memory_group import MemoryGroup
from colocate.model.memory import Bytes

_PAGE = os.sysconf("SC_PAGE_SIZE")

_V1_MEMORY = "memory.limit_in_bytes"
_V1_BOTH = "memory.memsw.limit_in_bytes"


class GroupLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a group may have; None: as much as there is."""

    memory: Bytes | None = None
    high: Bytes | None = None
    """Beyond this much it is throttled and reclaimed (v2)."""
    swap: Bytes | None = None


class LimitChange(msgspec.Struct, frozen=True, kw_only=True):
    """Limits to set: as in `GroupLimits`, and UNSET leaves one to whoever else sets it."""

    memory: Bytes | UnsetType | None = UNSET
    high: Bytes | UnsetType | None = UNSET
    swap: Bytes | UnsetType | None = UNSET


class LimitsSet(msgspec.Struct, frozen=True, kw_only=True):
    """What became of setting limits."""

    written: tuple[str, ...] = ()
    """The files that were changed, in this order; none where all was as wanted."""
    busy: Bytes | None = None
    """What the group uses and the kernel could not reclaim, where that was in the way (v1)."""
    missing: tuple[str, ...] = ()
    """The files that this kernel does not have, and that would have been needed."""


def read_limits(group: MemoryGroup) -> GroupLimits:
    """The limits as they are; to be given to `set_limits` when they are to be put back."""
    if group.version == 2:
        return GroupLimits(
            memory=_limit(group, "memory.max"),
            high=_limit(group, "memory.high"),
            swap=_limit(group, "memory.swap.max"),
        )
    memory, both = _limit(group, _V1_MEMORY), _limit(group, _V1_BOTH)
    swap = None if memory is None or both is None else max(0, both - memory)
    return GroupLimits(memory=memory, swap=swap)


def set_limits(group: MemoryGroup, wanted: GroupLimits | LimitChange) -> LimitsSet:
    """Bring a group's limits to what is wanted; GroupGone or Unavailable where that cannot be."""
    return _set_v2(group, wanted) if group.version == 2 else _set_v1(group, wanted)


def _set_v2(group: MemoryGroup, wanted: GroupLimits | LimitChange) -> LimitsSet:
    files = {"memory.high": wanted.high, "memory.max": wanted.memory, "memory.swap.max": wanted.swap}
    written, missing = [], []
    for name, amount in files.items():
        if amount is UNSET:
            continue
        if not group.has(name) and name != "memory.max":
            # Without such a file there is no limit; that is wrong only where one is wanted.
            missing += [name] if amount is not None else []
        elif _differs(_limit(group, name), amount):
            group.write(name, "max" if amount is None else str(amount))
            written.append(name)
    return LimitsSet(written=tuple(written), missing=tuple(missing))


def _set_v1(group: MemoryGroup, wanted: GroupLimits | LimitChange) -> LimitsSet:
    missing = [] if wanted.high is UNSET or wanted.high is None else ["memory.high"]
    if wanted.memory is UNSET and wanted.swap is UNSET:
        return LimitsSet(missing=tuple(missing))
    # The one limit that has both in it moves with the one that is named.
    there = read_limits(group)
    memory = there.memory if wanted.memory is UNSET else wanted.memory
    swap = there.swap if wanted.swap is UNSET else wanted.swap
    both = None if memory is None or swap is None else memory + swap
    files = {} if wanted.memory is UNSET else {_V1_MEMORY: memory}
    if group.has(_V1_BOTH):
        now = _limit(group, _V1_BOTH)
        raised = both is None or (now is not None and both >= now)
        files = {_V1_BOTH: both, **files} if raised else {**files, _V1_BOTH: both}
    elif both is not None and wanted.swap is not UNSET:
        missing.append(_V1_BOTH)
    written: list[str] = []
    for name, amount in files.items():
        if not _differs(_limit(group, name), amount):
            continue
        try:
            group.write(name, "-1" if amount is None else str(amount))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return LimitsSet(written=tuple(written), busy=group.usage, missing=tuple(missing))
        written.append(name)
    return LimitsSet(written=tuple(written), missing=tuple(missing))


def _limit(group: MemoryGroup, name: str) -> Bytes | None:
    return memory_files.limit(group.read(name)) if group.has(name) else None


def _differs(there: Bytes | None, wanted: Bytes | None) -> bool:
    """The kernel keeps limits in whole pages."""
    if there is None or wanted is None:
        return there is not wanted
    return there // _PAGE != wanted // _PAGE
