"""Chooses the NUMA nodes for a container's devices, like the kubelet's topology manager."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import combinations


class TopologyPolicy(StrEnum):
    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class NotAligned(Exception):
    """The policy does not admit a container whose devices cannot be aligned."""


def affinity(
    policy: TopologyPolicy, wishes: Mapping[str, int], free: Mapping[str, Mapping[str, tuple[int, ...]]]
) -> frozenset[int] | None:
    """The fewest NUMA nodes with enough devices for all requests; None where alignment does not matter.

    `free` has the NUMA nodes of each free device, by resource; a resource that has a device without topology is
    ignored.
    """
    if policy is TopologyPolicy.NONE:
        return None
    wanted = {
        resource: count
        for resource, count in wishes.items()
        if count and free.get(resource) and all(nodes for nodes in free[resource].values())
    }
    if not wanted:
        return None
    nodes = sorted({node for resource in wanted for near in free[resource].values() for node in near})
    for width in range(1, len(nodes) + 1):
        for mask in combinations(nodes, width):
            chosen = frozenset(mask)
            if all(_room(free[resource], chosen) >= count for resource, count in wanted.items()):
                if width > 1 and policy is TopologyPolicy.SINGLE_NUMA_NODE:
                    raise NotAligned
                if width > _narrowest(wanted, free) and policy is TopologyPolicy.RESTRICTED:
                    raise NotAligned
                return chosen
    if policy is not TopologyPolicy.BEST_EFFORT:
        raise NotAligned
    return None


def _room(devices: Mapping[str, tuple[int, ...]], nodes: frozenset[int]) -> int:
    return sum(bool(nodes & set(near)) for near in devices.values())


def _narrowest(wanted: Mapping[str, int], free: Mapping[str, Mapping[str, tuple[int, ...]]]) -> int:
    """How many nodes the largest single request needs, if all its devices were free."""
    widths = []
    for resource, count in wanted.items():
        per_node: dict[int, int] = {}
        for near in free[resource].values():
            for node in near:
                per_node[node] = per_node.get(node, 0) + 1
        room, width = 0, 0
        for size in sorted(per_node.values(), reverse=True):
            if room >= count:
                break
            room, width = room + size, width + 1
        widths.append(max(width, 1))
    return max(widths)
