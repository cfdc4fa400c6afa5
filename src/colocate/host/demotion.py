"""The kernel's demotion: its switch, the memory tiers, and moving a pod's pages to a lower tier by memory.reclaim.

With the switch on, memory reclaimed from a group goes to NUMA nodes of a lower memory tier, including tmpfs and
anonymous memory, even without swap. The agent needs no access to the group's processes; memory.numa_stat shows what
moved. A kernel that cannot demote drops page cache or swaps instead. So each step is small, is taken only where the
lower nodes have room, and is the last one if more was dropped than moved. Whether to demote is decided elsewhere.
"""

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec

from colocate.aio import in_thread
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.host import memory_files
from colocate.host.memory_files import Garbled
from colocate.host.memory_group import GroupGone, MemoryGroup
from colocate.host.node_memory import PROC, SYS, read_numa
from colocate.model.memory import Bytes, Demotion

STEP: Bytes = 8 << 20
_LEAST: Bytes = 1 << 20
"""Less than this is not worth a step."""
_OVERSHOOT = 2
"""A kernel moves up to this many times what it is asked for."""
_CUSHION: Bytes = 16 << 20
"""Page cache that a pod keeps: without any it would read its own program from disk again and again."""
_LITTLE_CACHE: Bytes = 4 << 20
"""Page cache below this is read again quickly; losing it is better than evicting a pod."""
_SWAP = "memory.swap.current"
_PROMOTION = 2
"""A bit of kernel.numa_balancing."""


class KernelDemotion:
    """Reads what this kernel supports of demotion, and sets its switch."""

    def __init__(self, *, proc: Path = PROC, sys: Path = SYS) -> None:
        self._proc = proc
        self._sys = sys
        self._switch = sys / "kernel/mm/numa/demotion_enabled"

    def read(self) -> Demotion:
        """What the kernel supports, and the switch now."""
        enabled = self.enabled
        tiers = self._tiers()
        return Demotion(
            tiers=tiers,
            enabled=bool(enabled),
            promotes=bool(self._number("kernel/numa_balancing") & _PROMOTION),
            missing=self._missing(enabled, tiers),
        )

    @property
    def enabled(self) -> bool | None:
        """Whether the switch is on; None where it does not exist or cannot be read."""
        try:
            return self._switch.read_bytes().strip() in (b"true", b"1")
        except OSError:
            return None

    def switch(self, on: bool) -> bool:
        """Set the switch; whether that changed it. OSError where it may not be written."""
        if self.enabled is on:
            return False
        handle = os.open(self._switch, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(handle, b"1" if on else b"0")
        finally:
            os.close(handle)
        reached("demotion.switched")
        return True

    def room(self, leave: Mapping[int, Bytes]) -> Bytes:
        """Free bytes above `leave` on the fullest of these NUMA nodes, since it is unknown which one the kernel
        fills."""
        free = {node.id: node.free for node in read_numa(self._sys)}
        return min((free.get(id, 0) - left for id, left in leave.items()), default=0)

    def _missing(self, enabled: bool | None, tiers: Mapping[int, int]) -> str:
        if enabled is None:
            return f"cannot read {self._switch} here (Linux 5.15 has it)"
        if not tiers:
            return "this kernel does not report memory tiers (Linux 6.1 does)"
        if not self._number("vm/swappiness"):
            return "vm.swappiness is 0, so the kernel moves nothing but page cache"
        if not enabled and not os.access(self._switch, os.W_OK):
            return f"cannot write {self._switch}; mount the host's {self._switch.parent} with rw"
        return ""

    def _tiers(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for folder in (self._sys / "devices/virtual/memory_tiering").glob("memory_tier[0-9]*"):
            try:
                tier = memory_files.number(folder.name.removeprefix("memory_tier").encode())
                nodes = memory_files.id_list((folder / "nodelist").read_bytes())
            except (OSError, Garbled):
                continue  # A tier disappears with its last node.
            found |= dict.fromkeys(nodes, tier)
        return found

    def _number(self, name: str) -> int:
        try:
            return memory_files.number((self._proc / "sys" / name).read_bytes())
        except (OSError, Garbled):
            return 0


class DemotionEnd(StrEnum):
    """Why demoting ended."""

    ENOUGH = "as much as was asked for"
    NOTHING_LEFT = "everything that can be moved is there"
    NO_ROOM = "the far NUMA nodes have no room"
    NOTHING_MOVES = "the kernel does not move more"
    DROPS = "the kernel drops more than it moves"
    SWITCHED_OFF = "demotion is switched off"
    STOPPED = "stopped before the end"
    GONE = "the group is gone"


class PagesDemoted(msgspec.Struct, frozen=True):
    """The result of a demotion."""

    moved: Bytes
    """Bytes of anonymous memory and tmpfs; moved page cache does not count, since it could be dropped as well."""
    dropped: Bytes
    """Bytes of page cache that were dropped, and of memory that was swapped."""
    end: DemotionEnd


class _Placement(msgspec.Struct, frozen=True):
    """On which NUMA nodes the memory of a group is; page cache only where a field says so."""

    near: Bytes
    far: Bytes
    far_cache: Bytes
    cache: Bytes
    swap: Bytes
    room: Bytes
    """Free bytes on the far nodes."""


class PodDemotion:
    """Moves one group's memory to a lower tier."""

    def __init__(
        self,
        group: MemoryGroup,
        kernel: KernelDemotion,
        *,
        sources: Iterable[int],
        leave: Mapping[int, Bytes],
        rate: Bytes,
        clock: Clock,
        go_on: Callable[[], bool] = lambda: True,
        step: Bytes = STEP,
    ) -> None:
        """Move from the NUMA nodes `sources`, at `rate` bytes a second; `leave` are the bytes that stay free on each
        target.

        It stops when `go_on`, called before each step, returns false.
        """
        self._group = group
        self._kernel = kernel
        self._sources = frozenset(sources)
        self._leave = leave
        self._rate = rate
        self._clock = clock
        self._go_on = go_on
        self._step = step

    async def run(self, amount: Bytes) -> PagesDemoted:
        """Move about `amount` bytes. A cancellation takes effect between steps."""
        moved = dropped = 0
        try:
            now = first = await in_thread(self._look)
            while (end := self._end(amount - moved, now)) is None:
                size = min(self._step, amount - moved, now.near, now.room // _OVERSHOOT)
                started = self._clock.monotonic()
                complete = await in_thread(partial(self._ask, size))
                before, now = now, await in_thread(self._look)
                moved, dropped = max(0, now.far - first.far), _dropped(first, now)
                went = now.far - before.far + max(0, now.far_cache - before.far_cache)
                if went < _dropped(before, now) or _is_bare(first, now):
                    return PagesDemoted(moved, dropped, DemotionEnd.DROPS)
                if went < _LEAST // _OVERSHOOT:
                    return PagesDemoted(moved, dropped, DemotionEnd.NOTHING_MOVES)
                if not complete:
                    self._step = max(_LEAST, size // 2)
                due = went / self._rate
                await self._clock.sleep(max(0.0, due - (self._clock.monotonic() - started)))
        except GroupGone:
            end = DemotionEnd.GONE
        return PagesDemoted(moved, dropped, end)

    def _end(self, wanted: Bytes, now: _Placement) -> DemotionEnd | None:
        """Why to stop; None where another step follows."""
        if wanted < _LEAST:
            return DemotionEnd.ENOUGH
        if now.near < _LEAST:
            return DemotionEnd.NOTHING_LEFT
        if now.room < _LEAST * _OVERSHOOT:
            return DemotionEnd.NO_ROOM
        if not self._kernel.enabled:
            return DemotionEnd.SWITCHED_OFF
        return None if self._go_on() else DemotionEnd.STOPPED

    def _ask(self, size: Bytes) -> bool:
        """One step; False where the kernel found less than `size`."""
        try:
            self._group.write("memory.reclaim", str(size))
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            return False
        return True

    def _look(self) -> _Placement:
        data = self._group.read("memory.numa_stat")
        anon, file, shmem = (memory_files.numa_row(data, row) for row in (b"anon", b"file", b"shmem"))
        firm = {id: anon.get(id, 0) + shmem.get(id, 0) for id in anon | shmem}
        # The kernel does not count the rows at the same instant.
        cache = {id: max(0, size - shmem.get(id, 0)) for id, size in file.items()}
        return _Placement(
            near=sum(size for id, size in firm.items() if id in self._sources),
            far=sum(size for id, size in firm.items() if id not in self._sources),
            far_cache=sum(size for id, size in cache.items() if id not in self._sources),
            cache=sum(cache.values()),
            swap=memory_files.number(self._group.read(_SWAP)) if self._group.has(_SWAP) else 0,
            room=self._kernel.room(self._leave),
        )


def _is_bare(first: _Placement, now: _Placement) -> bool:
    """Whether a pod is about to lose its page cache."""
    return first.cache > _LITTLE_CACHE and now.cache < min(_CUSHION, first.cache // 2)


def _dropped(before: _Placement, now: _Placement) -> Bytes:
    return max(0, before.cache - now.cache) + max(0, now.swap - before.swap)
