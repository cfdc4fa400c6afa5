"""What the kernel writes into its memory files, read as numbers. Bytes in, facts out; no I/O here.

Only the few lines that are needed are looked for: a memory.stat has some sixty, for every pod at every turn.
"""

import re

import msgspec

from colocate.errors import ColocateError
from colocate.model.memory import Bytes, Pressure

_NO_LIMIT = 1 << 62
"""cgroup v1 says the greatest multiple of a page that a long holds, older kernels the greatest unsigned long."""


class Garbled(ColocateError):
    """A file of the kernel does not look like itself."""


class StatKeys(msgspec.Struct, frozen=True):
    """How a memory.stat calls what is wanted of it, each between line feed and blank."""

    anon: bytes
    active_file: bytes
    inactive_file: bytes
    shmem: bytes
    swap: bytes | None
    refaults: tuple[bytes, ...]


V1_STAT = StatKeys(
    anon=b"\ntotal_rss ",
    active_file=b"\ntotal_active_file ",
    inactive_file=b"\ntotal_inactive_file ",
    shmem=b"\ntotal_shmem ",
    swap=b"\ntotal_swap ",
    refaults=(b"\ntotal_workingset_refault_anon ", b"\ntotal_workingset_refault_file "),
)
V2_STAT = StatKeys(
    anon=b"\nanon ",
    active_file=b"\nactive_file ",
    inactive_file=b"\ninactive_file ",
    shmem=b"\nshmem ",
    swap=None,
    refaults=(b"\nworkingset_refault_anon ", b"\nworkingset_refault_file "),
)
_OLD_REFAULTS = {V1_STAT.refaults: b"\ntotal_workingset_refault ", V2_STAT.refaults: b"\nworkingset_refault "}
"""Before Linux 5.9, when only the page cache was counted."""


class Stat(msgspec.Struct, frozen=True):
    """The part of memory.stat that is of use, the groups below included."""

    anon: Bytes
    file: Bytes
    inactive_file: Bytes
    shmem: Bytes
    swap: Bytes | None
    refaults: int | None


def stat(data: bytes, keys: StatKeys) -> Stat:
    data = b"\n" + data
    inactive = _field(data, keys.inactive_file)
    return Stat(
        _field(data, keys.anon),
        _field(data, keys.active_file) + inactive,
        inactive,
        _field(data, keys.shmem) if keys.shmem in data else 0,
        _field(data, keys.swap) if keys.swap and keys.swap in data else None,
        _refaults(data, keys.refaults),
    )


def _refaults(data: bytes, keys: tuple[bytes, ...]) -> int | None:
    if keys[0] in data:
        return _field(data, keys[0]) + _field(data, keys[1])
    old = _OLD_REFAULTS[keys]
    return _field(data, old) if old in data else None


def _field(data: bytes, key: bytes) -> int:
    at = data.find(key)
    if at < 0:
        raise Garbled(f"there is no line {key.decode().strip()!r}")
    at += len(key)
    return number(data[at : data.find(b"\n", at)])


def counter(data: bytes, name: str) -> int | None:
    """A line `name number` of a file such as memory.events; None where there is none."""
    key = b"\n%s " % name.encode()
    data = b"\n" + data + b"\n"
    return _field(data, key) if key in data else None


def number(data: bytes) -> int:
    """A file or a field that is one number."""
    # int() alone would take signs, underscores and more.
    if not (data := data.strip()).isdigit():
        raise Garbled(f"{data[:40]!r} is no number")
    return int(data)


def limit(data: bytes) -> Bytes | None:
    """A limit of either version; None where there is none."""
    if data.strip() == b"max":
        return None
    amount = number(data)
    return amount if amount < _NO_LIMIT else None


def pressure(data: bytes) -> Pressure:
    """A file of PSI: what `some` and what `full` lost."""
    words = data.replace(b"=", b" ").split()
    if len(words) != 18 or words[0] != b"some" or words[9] != b"full":
        raise Garbled(f"{data[:40]!r} is no memory pressure")
    try:
        some10, some60, some300, full10, full60, full300 = map(float, words[2:7:2] + words[11:16:2])
    except ValueError as error:
        raise Garbled(f"{data[:40]!r} is no memory pressure") from error
    return Pressure(some10, some60, some300, full10, full60, full300, number(words[8]), number(words[17]))


def kibibytes(data: bytes, name: str) -> Bytes | None:
    """A line `name: n kB` of /proc/meminfo or of a NUMA node's; None where there is none."""
    found = re.search(rb"(?:^|\s)%s:(.*)$" % re.escape(name.encode()), data, re.MULTILINE)
    return number(found[1].replace(b"kB", b"")) * 1024 if found else None


def plain_count(data: bytes, name: str) -> int | None:
    """A line `name: n` of /proc/meminfo that counts and has no unit."""
    found = re.search(rb"^%s:(.*)$" % re.escape(name.encode()), data, re.MULTILINE)
    return number(found[1]) if found else None


def numa_stat(data: bytes, version: int, page_size: int) -> dict[int, Bytes]:
    """A memory.numa_stat: bytes by NUMA node, of anonymous memory and files together."""
    if version == 1:
        rows, unit = [rb"hierarchical_total=\d+"], page_size
    else:
        rows, unit = [b"anon", b"file"], 1
    nodes: dict[int, Bytes] = {}
    for row in rows:
        found = re.search(rb"^%s((?: N\d+=\d+)*)$" % row, data, re.MULTILINE)
        if not found:
            raise Garbled(f"there is no line {row.decode()!r} by NUMA node")
        for word in found[1].split():
            node, _, amount = word[1:].partition(b"=")
            nodes[int(node)] = nodes.get(int(node), 0) + int(amount) * unit
    return nodes


def id_list(data: bytes) -> list[int]:
    """A list such as `0-3,5`, of NUMA nodes or CPUs."""
    ids: list[int] = []
    for part in data.strip().split(b","):
        if part:
            first, _, last = part.partition(b"-")
            ids += range(number(first), number(last or first) + 1)
    return ids
