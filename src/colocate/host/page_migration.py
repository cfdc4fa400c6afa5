"""Moves the pages of a pod's processes to another NUMA node: in slices, at a rate; can be cancelled at any time.

It goes through every process of the group, including those that are forked meanwhile. Pages of files that other pods
may use too (a library of the same image) are moved only where this process alone maps them, so that no other pod is
touched. Page cache that no process maps cannot be moved this way. The report says what moved, what stayed and why.
Where pages should be is decided elsewhere.
"""

import errno
import os
from array import array
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from itertools import compress
from pathlib import Path

import msgspec

from colocate.aio import in_thread
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.host.cgroups import members
from colocate.host.memory_group import MemoryGroup
from colocate.host.node_memory import PROC
from colocate.host.numa_maps import MappedPages, MappingKind, mapped_pages
from colocate.host.page_calls import Kernel
from colocate.model.memory import Bytes

_PAGE = os.sysconf("SC_PAGE_SIZE")
_HUGE = 2 << 20
"""A transparent huge page moves as one, so a slice never cuts it."""
_PRESENT = 0x80
"""A bit in the last byte of an entry of pagemap: the page is in memory."""
_NOT_THERE = frozenset({-errno.EFAULT, -errno.ENOENT})
_TRIES = 3
"""How often busy pages, and processes forked meanwhile, are tried."""


class MoveEnd(StrEnum):
    """Why moving ended."""

    DONE = "all processes are done"
    ENOUGH = "as much as was asked for was moved"
    NO_ROOM = "the NUMA node has no room"
    NO_NODE = "the NUMA node does not exist"
    UNFINISHED = "stopped before the end"


class PagesRefused(msgspec.Struct, frozen=True):
    """A process whose pages may not be moved."""

    pid: int
    reason: str


class PagesMoved(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a migration."""

    moved: Bytes = 0
    already_there: Bytes = 0
    stayed: Bytes = 0
    """Pages that did not move: shared with other processes, locked by a device, or busy each time."""
    ended: int = 0
    """Processes that ended meanwhile."""
    refused: tuple[PagesRefused, ...] = ()
    end: MoveEnd = MoveEnd.UNFINISHED


class _Stop(Exception):
    """Ends all loops of a migration."""

    def __init__(self, end: MoveEnd) -> None:
        self.end = end


class PageMigration:
    """One migration of a group's pages. `report` is up to date at any time, also after a cancellation."""

    def __init__(
        self,
        group: MemoryGroup,
        *,
        sources: frozenset[int],
        target: int,
        rate: Bytes,
        clock: Clock,
        calls: Kernel,
        at_most: Bytes | None = None,
        slice_size: Bytes = 8 << 20,
        proc: Path = PROC,
    ) -> None:
        """Move from the NUMA nodes `sources` to `target`, at `rate` bytes a second, about `at_most` bytes in all."""
        self._group = group
        self._sources = sources - {target}
        self._target = target
        self._rate = rate
        self._clock = clock
        self._calls = calls
        self._at_most = at_most
        self._slice_pages = max(1, slice_size // _PAGE)
        self._proc = proc
        self.report = PagesMoved()

    async def run(self) -> PagesMoved:
        """Move; raises only a cancellation, or an error that no kernel should give."""
        try:
            await self._every_process()
            self._note(end=MoveEnd.DONE)
        except _Stop as stop:
            self._note(end=stop.end)
        return self.report

    async def _every_process(self) -> None:
        seen: set[int] = set()
        for _ in range(_TRIES):
            new = [pid for pid in members(self._group.folder) if pid not in seen]
            for pid in new:
                seen.add(pid)
                await self._one_process(pid)

    async def _one_process(self, pid: int) -> None:
        if pid == 0:
            self._refuse(pid, "its id is not visible here; run in the host's PID namespace (hostPID: true)")
            return
        try:
            pagemap = os.open(self._proc / str(pid) / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
            try:
                for mapping in await in_thread(partial(mapped_pages, pid, self._proc)):
                    if mapping.kind is not MappingKind.HUGE and not self._sources.isdisjoint(mapping.pages):
                        await self._one_mapping(pid, mapping, pagemap)
            finally:
                os.close(pagemap)
        except OSError as error:
            self._meet(pid, error)

    async def _one_mapping(self, pid: int, mapping: MappedPages, pagemap: int) -> None:
        slices = _slices(mapping, pagemap, self._slice_pages)
        # Other pods may map the same files; private and shared memory belongs to this pod alone.
        shared = mapping.kind is not MappingKind.FILE
        while True:
            started = self._clock.monotonic()
            before = self.report.moved
            if not await in_thread(partial(self._next_slice, pid, slices, shared)):
                return
            due = (self.report.moved - before) / self._rate
            await self._clock.sleep(max(0.0, due - (self._clock.monotonic() - started)))

    def _next_slice(self, pid: int, slices: Iterator["array[int]"], shared: bool) -> bool:
        """Move the next slice (in a thread); False where there is none."""
        addresses = next(slices, None)
        if addresses is None:
            return False
        there = self._where(pid, addresses)
        self._note(already_there=self.report.already_there + there.count(self._target) * _PAGE)
        pages = _chosen(addresses, there, self._sources)
        if self._at_most is not None:
            pages = pages[: -(-(self._at_most - self.report.moved) // _PAGE)]
        self._move(pid, pages, shared)
        if self._at_most is not None and self.report.moved >= self._at_most:
            raise _Stop(MoveEnd.ENOUGH)
        return True

    def _where(self, pid: int, addresses: "array[int]") -> "array[int]":
        """The node of each page. Some kernels, as Linux 6.1, hide pages that NUMA balancing marked until touched."""
        there = self._calls.where(pid, addresses)
        denied = _chosen(addresses, there, _NOT_THERE)
        if denied:
            self._calls.touch(pid, denied)
            there = self._calls.where(pid, addresses)
        return there

    def _move(self, pid: int, pages: "array[int]", shared: bool) -> None:
        failure: OSError | None = None
        for _ in range(_TRIES):
            if not pages:
                return
            try:
                answers = self._calls.move(pid, pages, self._target, shared=shared)
                if -errno.ENOMEM in answers:
                    failure = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            except OSError as error:
                failure = error
            # Ask again: of a huge page, all parts but one are answered EBUSY although all moved.
            now = self._calls.where(pid, pages)
            if moved := now.count(self._target):
                self._note(moved=self.report.moved + moved * _PAGE)
                reached("pages.moved")
            left = _chosen(pages, now, self._sources)
            if failure or len(left) == len(pages):
                break
            pages = left
        self._note(stayed=self.report.stayed + len(left) * _PAGE)
        if failure:
            raise failure

    def _meet(self, pid: int, error: OSError) -> None:
        """Handle an error of one process; some end the whole migration."""
        if error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL):
            # EINVAL: the process is exiting and has no memory any more.
            self._note(ended=self.report.ended + 1)
        elif error.errno == errno.ENOMEM:
            raise _Stop(MoveEnd.NO_ROOM)
        elif error.errno == errno.ENODEV:
            raise _Stop(MoveEnd.NO_NODE)
        elif error.errno == errno.EPERM or (isinstance(error, PermissionError) and error.filename):
            self._refuse(pid, "moving pages of another user's process needs CAP_SYS_NICE and CAP_SYS_PTRACE")
        elif error.errno == errno.EACCES:
            self._refuse(pid, f"its cpuset does not allow memory of NUMA node {self._target}")
        else:
            raise error

    def _refuse(self, pid: int, reason: str) -> None:
        self._note(refused=(*self.report.refused, PagesRefused(pid, reason)))

    def _note(self, **news: object) -> None:
        self.report = msgspec.structs.replace(self.report, **news)


def _chosen(addresses: "array[int]", nodes: "array[int]", wanted: frozenset[int]) -> "array[int]":
    return array("Q", compress(addresses, map(wanted.__contains__, nodes)))


def _slices(mapping: MappedPages, pagemap: int, size: int) -> Iterator["array[int]"]:
    """The addresses of a mapping's present pages, at least `size` at a time; a huge page is never cut in two."""
    found = array("Q")
    start = mapping.start
    while start < mapping.end:
        # Large mappings may be almost empty, and pagemap shows holes far faster than move_pages.
        end = min(mapping.end, (start // _HUGE + 64) * _HUGE)
        flags = os.pread(pagemap, (end - start) // _PAGE * 8, start // _PAGE * 8)[7::8]
        if not flags:
            break
        for window, part in _windows(start, flags):
            found.extend(compress(window, map(_PRESENT.__and__, part)))
            if len(found) >= size:
                yield found
                found = array("Q")
        start = end
    if found:
        yield found


def _windows(start: int, flags: bytes) -> Iterator[tuple[range, bytes]]:
    """The parts of a chunk that have any page, each up to the next huge page."""
    at = 0
    while at < len(flags):
        address = start + at * _PAGE
        count = (_HUGE - address % _HUGE) // _PAGE
        part = flags[at : at + count]
        if part.strip(b"\0"):
            yield range(address, address + len(part) * _PAGE, _PAGE), part
        at += count
