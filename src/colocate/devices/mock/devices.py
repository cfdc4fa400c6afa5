"""Which devices a mock resource has: their ids, their NUMA nodes, and how many the kubelet accepts. Pure.

Ids depend only on the configuration, so they are the same after every restart, and a larger count adds ids without
changing the existing ones.
"""

from collections.abc import Iterable, Sequence

from colocate.devices.mock.section import MockResource, Spread
from colocate.kubelet import MESSAGE_LIMIT
from colocate.model.device import Device, from_one_group, list_bytes

_WIDTH = 4
"""Digits of the number in an id; larger numbers have more."""


def prefix_of(resource: MockResource) -> str:
    """The prefix of the ids of a counted resource: by default `gpu-` for `mock/gpu`."""
    if resource.id_prefix is not None:
        return resource.id_prefix
    return resource.name.rpartition("/")[2] + "-"


def ids_of(resource: MockResource) -> Sequence[str]:
    """The ids of a resource, in order."""
    if resource.ids is not None:
        return resource.ids
    prefix = prefix_of(resource)
    return [f"{prefix}{number:0{_WIDTH}}" for number in range(resource.count or 0)]


def devices_of(resource: MockResource) -> list[Device]:
    """The devices of a resource, all healthy."""
    ids = ids_of(resource)
    if resource.numa is None:
        return [Device(id) for id in ids]
    near = [(node,) for node in resource.numa.nodes]
    if resource.numa.spread is Spread.INTERLEAVE:
        return [Device(id, numa=near[i % len(near)]) for i, id in enumerate(ids)]
    return [Device(id, numa=near[i * len(near) // len(ids)]) for i, id in enumerate(ids)]


def how_many_fit(resource: MockResource) -> int:
    """How many devices of this resource fit into one message to the kubelet, even if all are Unhealthy.

    Computed, so that a count of ten million is refused without making ten million devices.
    """
    node = max(resource.numa.nodes) if resource.numa else None
    if resource.ids is not None:
        return _fitting(list_bytes(len(id.encode()), node) for id in resource.ids)
    prefix = len(prefix_of(resource).encode())
    room, numbered, width = MESSAGE_LIMIT, 0, _WIDTH
    while True:
        size = list_bytes(prefix + width, node)
        of_this_width = 10**width - numbered
        if room < size * of_this_width:
            return numbered + room // size
        room -= size * of_this_width
        numbered += of_this_width
        width += 1


def _fitting(sizes: Iterable[int]) -> int:
    room, count = MESSAGE_LIMIT, 0
    for size in sizes:
        room -= size
        if room < 0:
            break
        count += 1
    return count


def preferred(
    numa: dict[str, int], available: Sequence[str], must_include: Sequence[str], size: int
) -> list[str]:
    """Which devices to take: from one NUMA node if possible; `numa` gives the node of each id."""
    return from_one_group(lambda id: numa.get(id, -1), str, available, must_include, size)
