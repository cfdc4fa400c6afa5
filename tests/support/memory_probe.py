"""What a test wants to know of a group or a process, and no part of the product asks."""

import errno

from colocate.host import memory_files
from colocate.host.memory_group import MemoryGroup
from colocate.host.numa_maps import MappedPages
from colocate.model.memory import Bytes


def oom_kills(group: MemoryGroup) -> int | None:
    """How many processes of a group, and of those below it, were ever killed for memory; None where uncounted."""
    if group.version == 2:
        return memory_files.counter(group.read("memory.events"), "oom_kill")
    # On v1 a death is counted in the group of the process alone.
    found = [memory_files.counter(group.read("memory.oom_control"), "oom_kill")]
    for file in group.folder.glob("*/**/memory.oom_control"):
        try:
            found.append(memory_files.counter(file.read_bytes(), "oom_kill"))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
    counted = [count for count in found if count is not None]
    return sum(counted) if counted else None


def bytes_by_node(mappings: list[MappedPages]) -> dict[int, Bytes]:
    """What of it lies on each NUMA node."""
    nodes: dict[int, Bytes] = {}
    for mapping in mappings:
        for node, count in mapping.pages.items():
            nodes[node] = nodes.get(node, 0) + count * mapping.page_size
    return nodes
