"""Devices as the kubelet knows them, and what a container gets with them."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec


class Health(StrEnum):
    """What the kubelet reads in a device's `health`."""

    HEALTHY = "Healthy"
    """The kubelet may give it to new pods."""
    UNHEALTHY = "Unhealthy"
    """The kubelet gives it to no new pod; pods that hold it keep it."""


class Device(msgspec.Struct, frozen=True):
    """One unit of a resource: an id, its health, and the NUMA nodes that it is near to."""

    id: str
    """Unique within the resource; the only thing by which the kubelet knows the device."""
    health: Health = Health.HEALTHY
    """Whether new pods may get it."""
    numa: tuple[int, ...] = ()
    """NUMA nodes, for the kubelet's topology manager; empty where it does not matter."""

    def unhealthy(self) -> "Device":
        """This device with health Unhealthy: no new pod gets it."""
        return Device(self.id, Health.UNHEALTHY, self.numa)


class Mount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A file or folder of the host that the container sees."""

    container_path: str
    """Where the container sees it."""
    host_path: str
    """Where it is on the host."""
    read_only: bool = False
    """Whether the container may only read it."""


class DeviceNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A device node of the host that the container sees, at `host_path` unless `container_path` is set."""

    host_path: str
    """Its path on the host, such as `/dev/fan0`."""
    container_path: str = ""
    """Where the container sees it; empty means `host_path`."""
    permissions: str = "rw"
    """Any of `r` (read), `w` (write) and `m` (make a node)."""


class Allocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a container is started with because it holds certain devices."""

    envs: Mapping[str, str] = {}
    """Variables of the environment."""
    mounts: Sequence[Mount] = ()
    """Files and folders of the host."""
    devices: Sequence[DeviceNode] = ()
    """Device nodes of the host."""
    annotations: Mapping[str, str] = {}
    """For the container runtime, not for the pod."""
    cdi: Sequence[str] = ()
    """Names of CDI devices, such as `vendor.com/class=name`."""


def from_one_group(
    group_of: Callable[[str], int],
    order: Callable[[str], object],
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
) -> list[str]:
    """Choose devices: first those that must be included, then the rest from the group where it fits best.

    Groups of devices that must be included come first, then the group with the fewest free devices that still has
    enough, then any other group, in the order of ids.
    """
    chosen = list(must_include)[:size]
    free = set(available) - set(chosen)
    missing = size - len(chosen)
    groups: dict[int, list[str]] = {}
    for id in free:
        groups.setdefault(group_of(id), []).append(id)
    taken = {group_of(id) for id in chosen}

    def fitness(group: int) -> tuple[bool, bool, int, int]:
        room = len(groups[group])
        enough = room >= missing
        return (group not in taken, not enough, room if enough else -room, group)

    for group in sorted(groups, key=fitness):
        if len(chosen) == size:
            break
        chosen += sorted(groups[group], key=order)[: size - len(chosen)]  # type: ignore[arg-type]
    return chosen


def list_bytes(id_length: int, node: int | None, health: Health = Health.UNHEALTHY) -> int:
    """The bytes of one device in the list sent to a kubelet; `id_length` is in bytes, `node` is its NUMA node."""
    near = 0
    if node is not None:
        near = _field(_field(1 + _varint(node) if node else 0))
    return _field(_field(id_length) + _field(len(health)) + near)


def _field(length: int) -> int:
    return 1 + _varint(length) + length


def _varint(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
