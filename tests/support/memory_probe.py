"""What a test wants to know of a group or a process, and no part of the product asks."""

import errno
import re

from colocate.host import memory_files
from colocate.host.memory_group import MemoryGroup
from colocate.host.numa_maps import MappedPages
from colocate.model.memory import Bytes

_IN_STOCK = 4 << 20
"""Bytes that CPUs may have taken for a group and not used yet: 64 pages each."""


def counter(data: bytes, name: str) -> int | None:
    """A line `name number` of a file such as memory.events; None where there is none."""
    found = re.search(rb"^%s (.*)$" % name.encode(), data, re.MULTILINE)
    return memory_files.number(found[1]) if found else None


def oom_kills(group: MemoryGroup) -> int | None:
    """How many processes of a group, and of those below it, were ever killed for memory; None where uncounted."""
    if group.version == 2:
        return counter(group.read("memory.events"), "oom_kill")
    # On v1 a death is counted in the group of the process alone.
    found = [counter(group.read("memory.oom_control"), "oom_kill")]
    for file in group.folder.glob("*/**/memory.oom_control"):
        try:
            found.append(counter(file.read_bytes(), "oom_kill"))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
    counted = [count for count in found if count is not None]
    return sum(counted) if counted else None


def is_counted(group: MemoryGroup) -> bool:
    """Whether the kernel's counters tell all that is used. On v1 it adds them up every few seconds; on v2 for
    whoever reads them."""
    if group.version == 2:
        return True
    kept = group.usage - memory_files.number(group.read("memory.kmem.usage_in_bytes"))
    stat = group.read("memory.stat")
    counted = (counter(stat, "total_rss") or 0) + (counter(stat, "total_cache") or 0)
    return abs(kept - counted) < _IN_STOCK


def bytes_by_node(mappings: list[MappedPages]) -> dict[int, Bytes]:
    """What of it lies on each NUMA node."""
    nodes: dict[int, Bytes] = {}
    for mapping in mappings:
        for node, count in mapping.pages.items():
            nodes[node] = nodes.get(node, 0) + count * mapping.page_size
    return nodes
