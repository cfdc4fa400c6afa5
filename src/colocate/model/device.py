"""Devices as the kubelet knows them, and what a container gets with them."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec


class Health(StrEnum):
    """What the kubelet reads in a device's `health`."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"


class Device(msgspec.Struct, frozen=True):
    """One unit of a resource: an id, its health, and the NUMA nodes that it is near to."""

    id: str
    health: Health = Health.HEALTHY
    numa: tuple[int, ...] = ()

    def unhealthy(self) -> "Device":
        """The same device, not to be given to any new pod."""
        return Device(self.id, Health.UNHEALTHY, self.numa)


class Mount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A file or folder of the host that the container sees."""

    container_path: str
    host_path: str
    read_only: bool = False


class DeviceNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A device node of the host that the container sees, at the same path unless another is named."""

    host_path: str
    container_path: str = ""
    permissions: str = "rw"


class Allocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a container is started with because it holds certain devices."""

    envs: Mapping[str, str] = {}
    mounts: Sequence[Mount] = ()
    devices: Sequence[DeviceNode] = ()
    annotations: Mapping[str, str] = {}
    cdi: Sequence[str] = ()
    """Names of CDI devices, such as `vendor.com/class=name`."""
