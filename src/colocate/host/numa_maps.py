"""Where the pages of a process lie, mapping by mapping, as /proc/PID/numa_maps and maps say. Only read."""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from colocate.host.node_memory import PROC
from colocate.model.memory import Bytes


class MappingKind(StrEnum):
    """Whose the pages of a mapping are."""

    PRIVATE = "private"
    """Anonymous: this process's own, or shared with those that it was forked from or has forked."""
    SHARED_MEMORY = "shared memory"
    """tmpfs, memfd, System V: of processes that work together."""
    FILE = "file"
    """Page cache: perhaps of every pod whose image has the same file."""
    HUGE = "huge pages"
    """Set aside by the administrator; no control group accounts for them as memory."""


class MappedPages(msgspec.Struct, frozen=True):
    """One mapping that has pages in memory."""

    start: int
    end: int
    kind: MappingKind
    page_size: Bytes
    pages: Mapping[int, int]
    """By NUMA node."""

    @property
    def count(self) -> int:
        return sum(self.pages.values())


_LINE = re.compile(rb"^([0-9a-f]+) \S+(.*)$", re.MULTILINE)
_NODE = re.compile(rb" N(\d+)=(\d+)")
_FILE = re.compile(rb" file=(\S+)")
_SIZE = re.compile(rb" kernelpagesize_kB=(\d+)")
_RANGE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ", re.MULTILINE)
# How numa_maps writes the names of shared memory that is no file on a disk.
_SHARED = (b"/dev/zero", b"/dev/shm/", b"/memfd:", b"/SYSV", b"/anon_hugepage")


def mapped_pages(pid: int, proc: Path = PROC) -> list[MappedPages]:
    """The mappings of a process that have pages in memory.

    ProcessLookupError or FileNotFoundError once the process is gone.
    """
    ends = {
        int(start, 16): int(end, 16) for start, end in _RANGE.findall((proc / str(pid) / "maps").read_bytes())
    }
    return parse((proc / str(pid) / "numa_maps").read_bytes(), ends)


def parse(numa_maps: bytes, ends: Mapping[int, int]) -> list[MappedPages]:
    """numa_maps says where mappings start, `ends` where they end; one in only one of them has just changed."""
    found = []
    for address, rest in _LINE.findall(numa_maps):
        start = int(address, 16)
        pages = {int(node): int(count) for node, count in _NODE.findall(rest)}
        if pages and start in ends:
            size = _SIZE.search(rest)
            found.append(
                MappedPages(start, ends[start], _kind(rest), int(size[1]) * 1024 if size else 4096, pages)
            )
    return found


def _kind(rest: bytes) -> MappingKind:
    if b" huge" in rest:
        return MappingKind.HUGE
    file = _FILE.search(rest)
    if not file:
        return MappingKind.PRIVATE
    return MappingKind.SHARED_MEMORY if file[1].startswith(_SHARED) else MappingKind.FILE
