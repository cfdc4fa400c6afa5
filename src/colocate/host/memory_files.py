"""Parses the kernel's memory files. Bytes in, facts out; no I/O here.

Only the few lines that are needed are parsed: a memory.stat has some sixty, for every pod at every turn.
"""

import re

import msgspec

from colocate.errors import ColocateError
from colocate.model.memory import Bytes, Pressure

_NO_LIMIT = 1 << 62
"""cgroup v1 writes the largest multiple of a page in a long, older kernels the largest unsigned long."""


class Garbled(ColocateError):
    """A file of the kernel has an unknown format."""


class Stat(msgspec.Struct, frozen=True):
    """The lines of memory.stat that are used, including the groups below."""

    anon: Bytes
    file: Bytes
    inactive_file: Bytes
    shmem: Bytes
    swap: Bytes | None
    refaults: int | None


_REFAULTS = (b"workingset_refault_anon", b"workingset_refault_file", b"workingset_refault")
"""The last name is from Linux before 5.9, which counted only page cache."""


class StatParser:
    """Parses memory.stat of one version; a running kernel uses the same layout in every group.

    The parser remembers the line numbers and checks them each time, which costs a quarter of a search.
    """

    def __init__(self, version: int) -> None:
        # On v1 the plain names are the group itself; total_ includes the groups below.
        total = b"total_" if version == 1 else b""
        needed = (b"rss" if version == 1 else b"anon", b"active_file", b"inactive_file")
        self._keys = [total + name + b" " for name in (*needed, b"shmem", b"swap", *_REFAULTS)]
        self._layout: list[tuple[int, int, bytes]] = []
        """For each key of this kernel: its index in `_keys`, its line, and the key."""
        self._length = -1

    def parse(self, data: bytes) -> Stat:
        lines = data.split(b"\n")
        try:
            values = self._values(lines)
            if values is None:
                self._learn(lines)
                values = self._values(lines)
        except ValueError as error:
            raise Garbled(f"a line of memory.stat has no number: {error}") from error
        assert values is not None
        anon, active, inactive, shmem, swap, *refaults = values
        if anon is None or active is None or inactive is None:
            raise Garbled(f"memory.stat has no line {self._keys[values.index(None)].decode().strip()!r}")
        known = [count for count in refaults if count is not None]
        return Stat(anon, active + inactive, inactive, shmem or 0, swap, sum(known) if known else None)

    def _values(self, lines: list[bytes]) -> list[int | None] | None:
        """The number of each key; None where the layout has changed."""
        if len(lines) != self._length:
            return None
        values: list[int | None] = [None] * len(self._keys)
        for place, at, key in self._layout:
            if not lines[at].startswith(key):
                return None
            values[place] = int(lines[at][len(key) :])
        return values

    def _learn(self, lines: list[bytes]) -> None:
        self._length = len(lines)
        self._layout = [
            (place, at, key)
            for place, key in enumerate(self._keys)
            for at, line in enumerate(lines)
            if line.startswith(key)
        ]


def number(data: bytes) -> int:
    """Parse a file or field that is one number."""
    # int() alone would accept signs, underscores and more.
    if not (data := data.strip()).isdigit():
        raise Garbled(f"{data[:40]!r} is not a number")
    return int(data)


def limit(data: bytes) -> Bytes | None:
    """Parse a limit of either version; None where there is none."""
    if data.strip() == b"max":
        return None
    amount = number(data)
    return amount if amount < _NO_LIMIT else None


def pressure(data: bytes) -> Pressure:
    """Parse a file of PSI, with its lines `some` and `full`."""
    words = data.replace(b"=", b" ").split()
    if len(words) != 18 or words[0] != b"some" or words[9] != b"full":
        raise Garbled(f"{data[:40]!r} is not a memory pressure")
    try:
        some10, some60, some300, full10, full60, full300 = map(float, words[2:7:2] + words[11:16:2])
    except ValueError as error:
        raise Garbled(f"{data[:40]!r} is not a memory pressure") from error
    return Pressure(some10, some60, some300, full10, full60, full300, number(words[8]), number(words[17]))


def kibibytes(data: bytes, name: str) -> Bytes | None:
    """The value of a line `name: n kB` of /proc/meminfo or a NUMA node's meminfo; None where it is missing."""
    found = re.search(rb"(?:^|\s)%s:(.*)$" % re.escape(name.encode()), data, re.MULTILINE)
    return number(found[1].replace(b"kB", b"")) * 1024 if found else None


def plain_count(data: bytes, name: str) -> int | None:
    """The value of a line `name: n` of /proc/meminfo without a unit; None where it is missing."""
    found = re.search(rb"^%s:(.*)$" % re.escape(name.encode()), data, re.MULTILINE)
    return number(found[1]) if found else None


def numa_stat(data: bytes, version: int, page_size: int) -> dict[int, Bytes]:
    """Parse a memory.numa_stat: bytes of anonymous memory and files by NUMA node.

    Without inactive file pages, as in a working set; v1 does not list these by node.
    """
    if version == 1:
        return {id: pages * page_size for id, pages in numa_row(data, rb"hierarchical_total=\d+").items()}
    anon, file, inactive = (numa_row(data, row) for row in (b"anon", b"file", b"inactive_file"))
    # The kernel does not count the rows at the same instant.
    return {id: max(0, anon.get(id, 0) + file.get(id, 0) - inactive.get(id, 0)) for id in anon | file}


def numa_row(data: bytes, row: bytes) -> dict[int, int]:
    """One row of a memory.numa_stat by NUMA node: bytes on v2, pages on v1."""
    found = re.search(rb"^%s((?: N\d+=\d+)*)$" % row, data, re.MULTILINE)
    if not found:
        raise Garbled(f"there is no line {row.decode()!r} by NUMA node")
    words = (word[1:].partition(b"=") for word in found[1].split())
    return {int(id): int(amount) for id, _, amount in words}


def id_list(data: bytes) -> list[int]:
    """Parse a list of NUMA nodes or CPUs such as `0-3,5`."""
    ids: list[int] = []
    for part in data.strip().split(b","):
        if part:
            first, _, last = part.partition(b"-")
            ids += range(number(first), number(last or first) + 1)
    return ids
