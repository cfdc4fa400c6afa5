"""Reads and sets the memory limits of a control group. What they should be is decided elsewhere.

Only what differs is written, so setting the same limits at every turn costs no more than reading them. A limit that
is not named is not touched: the kubelet may be changing it at this moment.

On v2 the kernel takes any limit, and kills processes of the group if it cannot reclaim enough. On v1 it refuses a
limit that it cannot reclaim down to (EBUSY): that is reported, and the old limit stays. On v1, swap is limited
together with memory, in a second limit that must never be below the first, which gives the order of writing.

A memory.high that we set is marked by an extended attribute of the group with the value from before. The mark lives
as long as the group and does not depend on our files: an agent that has lost its state still finds the pods that it
has throttled, and leaves alone a memory.high that is not ours. Kernels before Linux 5.7 take no such mark: there only
the stored state knows.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from colocate.crashpoints import reached
from colocate.errors import ColocateError
from colocate.host import memory_files
from colocate.host.memory_group import MemoryGroup
from colocate.model.memory import Bytes, OurHigh

_PAGE = os.sysconf("SC_PAGE_SIZE")

_V1_MEMORY = "memory.limit_in_bytes"
_V1_BOTH = "memory.memsw.limit_in_bytes"

_MARK = "user.colocate.memory-high-before"
_NO_LIMIT = b"max"


class LimitRefused(ColocateError):
    """The kernel does not take a limit."""


class GroupLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a group; None: no limit."""

    memory: Bytes | None = None
    high: Bytes | None = None
    """Beyond this much it is throttled and reclaimed (v2)."""
    swap: Bytes | None = None


class LimitChange(msgspec.Struct, frozen=True, kw_only=True):
    """Limits to set: as in `GroupLimits`; UNSET leaves a limit as it is."""

    memory: Bytes | UnsetType | None = UNSET
    high: Bytes | UnsetType | None = UNSET
    swap: Bytes | UnsetType | None = UNSET


class LimitsSet(msgspec.Struct, frozen=True, kw_only=True):
    """The result of setting limits."""

    written: tuple[str, ...] = ()
    """The files that were changed, in this order; none where all limits were right."""
    busy: Bytes | None = None
    """What the group uses, where the kernel could not reclaim enough of it for the limit (v1)."""
    missing: tuple[str, ...] = ()
    """The files that were needed and that this kernel does not have."""


def read_limits(group: MemoryGroup) -> GroupLimits:
    """The current limits; `set_limits` takes them to restore them later."""
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
    """Set a group's limits; GroupGone or Unavailable where that is not possible."""
    return _set_v2(group, wanted) if group.version == 2 else _set_v1(group, wanted)


def throttle(group: MemoryGroup, high: Bytes, before: Bytes | None, *, must_mark: bool = False) -> bool:
    """Set memory.high, with a mark that it is ours and was `before`; whether anything changed.

    LimitRefused where the group takes no mark and `must_mark`.
    """
    if not mark_high(group.folder, before) and must_mark:
        raise LimitRefused(
            "its control group takes no mark and the state cannot be stored, so it could never be undone"
        )
    return bool(set_limits(group, LimitChange(high=high)).written)


def restore_high(group: MemoryGroup, high: Bytes | None) -> bool:
    """Set memory.high to what it was before, and remove the mark; whether anything changed."""
    changed = bool(set_limits(group, LimitChange(high=high)).written)
    unmark_high(group.folder)
    return changed


def read_high_mark(folder: Path) -> OurHigh | None:
    """The mark on a group; None where its memory.high is not known to be ours."""
    try:
        value = os.getxattr(folder, _MARK)
        return OurHigh(None if value == _NO_LIMIT else int(value))
    except (OSError, ValueError):
        return None


def mark_high(folder: Path, before: Bytes | None) -> bool:
    """Mark memory.high as ours before it is set; whether the kernel takes the mark."""
    try:
        os.setxattr(folder, _MARK, _NO_LIMIT if before is None else str(before).encode())
    except OSError:
        return False
    reached("cgroup.marked")
    return True


def unmark_high(folder: Path) -> None:
    """Remove the mark, once memory.high is no longer ours."""
    with suppress(OSError):
        os.removexattr(folder, _MARK)
    reached("cgroup.unmarked")


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
    # The limit on memory and swap together changes with the limit that is named.
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
