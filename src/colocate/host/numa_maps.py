"""Reads on which NUMA nodes the pages of a process are, mapping by mapping, from /proc/PID/numa_maps and maps."""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from colocate.host.node_memory import PROC
from colocate.model.memory import Bytes


class MappingKind(StrEnum):
    """Which processes the pages of a mapping belong to."""

    PRIVATE = "private"
    """Anonymous: of this process, or shared with its parents and children by fork."""
    SHARED_MEMORY = "shared memory"
    """tmpfs, memfd, System V: shared by processes that work together."""
    FILE = "file"
    """Page cache: may belong to every pod whose image has the same file."""
    HUGE = "huge pages"
    """Reserved by the administrator; no control group counts them as memory."""


class MappedPages(msgspec.Struct, frozen=True):
    """A mapping with pages in memory."""

    start: int
    end: int
    kind: MappingKind
    page_size: Bytes
    pages: Mapping[int, int]
    """Number of pages by NUMA node."""

    @property
    def count(self) -> int:
        return sum(self.pages.values())


_LINE = re.compile(rb"^([0-9a-f]+) \S+(.*)$", re.MULTILINE)
_NODE = re.compile(rb" N(\d+)=(\d+)")
_FILE = re.compile(rb" file=(\S+)")
_SIZE = re.compile(rb" kernelpagesize_kB=(\d+)")
_RANGE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ", re.MULTILINE)
# Names in numa_maps of shared memory that is not a file on disk.
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
    """Parse numa_maps, which has the starts of mappings; `ends` has their ends. A mapping in only one of them
    changed."""
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
