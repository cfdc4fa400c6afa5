"""The pages of a pod's processes moved from NUMA nodes to another: in slices, at a rate, to be cancelled at any time.

Every process of the group is gone through, those that are forked meanwhile too. Pages that files have in common
with other pods (a library of the same image) are moved only where this process alone maps them: nothing is done
to a pod that is not meant. Page cache that no process maps cannot be moved this way. What is moved, what stays
and why is reported; where pages should be is decided elsewhere.
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
from colocate.host.page_calls import PageCalls
from colocate.model.memory import Bytes

_PAGE = os.sysconf("SC_PAGE_SIZE")
_HUGE = 2 << 20
"""A transparent huge page moves as one; a slice holds all of it or nothing."""
_PRESENT = 0x80
"""In the last byte of an entry of pagemap."""
_NOT_THERE = frozenset({-errno.EFAULT, -errno.ENOENT})
_TRIES = 3
"""For a page that is busy, and for processes that are forked while others are moved."""


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
    """What became of it."""

    moved: Bytes = 0
    already_there: Bytes = 0
    stayed: Bytes = 0
    """Pages that would not move: shared with others, locked by a device, or busy each time."""
    ended: int = 0
    """Processes that ended on the way."""
    refused: tuple[PagesRefused, ...] = ()
    end: MoveEnd = MoveEnd.UNFINISHED


class _Stop(Exception):
    """The way out of all loops."""

    def __init__(self, end: MoveEnd) -> None:
        self.end = end


class PageMigration:
    """One journey of a group's pages. `report` says how far it is at any time, after a cancellation too."""

    def __init__(
        self,
        group: MemoryGroup,
        *,
        sources: frozenset[int],
        target: int,
        rate: Bytes,
        clock: Clock,
        calls: PageCalls,
        at_most: Bytes | None = None,
        slice_size: Bytes = 8 << 20,
        proc: Path = PROC,
    ) -> None:
        """From the NUMA nodes `sources` to `target`, at `rate` bytes a second, and about `at_most` in all."""
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
        """Move; raises nothing but a cancellation and what no one expects of a kernel."""
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
        # Files may be other pods' too; what is private or shared memory is this pod's alone.
        shared = mapping.kind is not MappingKind.FILE
        while True:
            started = self._clock.monotonic()
            before = self.report.moved
            if not await in_thread(partial(self._next_slice, pid, slices, shared)):
                return
            due = (self.report.moved - before) / self._rate
            await self._clock.sleep(max(0.0, due - (self._clock.monotonic() - started)))

    def _next_slice(self, pid: int, slices: Iterator["array[int]"], shared: bool) -> bool:
        """In a thread: move the next slice; False where there is none."""
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
        """The node of each page. Linux 6.1, for one, denies those that NUMA balancing has marked until touched."""
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
            # Asked again: of a huge page's parts all but one are answered EBUSY, and all of them are moved.
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
        """What an error of one process means for all of them."""
        if error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL):
            # EINVAL: it has given up its memory and not yet its id.
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
        # Great mappings may be almost empty, and pagemap tells of holes far more quickly than move_pages.
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
    """The stretches of a chunk, up to the next huge page each, that have any page at all."""
    at = 0
    while at < len(flags):
        address = start + at * _PAGE
        count = (_HUGE - address % _HUGE) // _PAGE
        part = flags[at : at + count]
        if part.strip(b"\0"):
            yield range(address, address + len(part) * _PAGE, _PAGE), part
        at += count
