"""Converts what Allocate injects between this project's facts and the message that the kubelet stores."""

from google.protobuf.message import DecodeError

from colocate.model.device import Allocation, DeviceNode, Mount
from colocate.wire import deviceplugin_pb2 as dp


def to_wire(allocation: Allocation) -> dp.ContainerAllocateResponse:
    """An allocation as the message that the kubelet stores and hands to the runtime."""
    message = dp.ContainerAllocateResponse(
        envs=dict(allocation.envs), annotations=dict(allocation.annotations)
    )
    for mount in allocation.mounts:
        message.mounts.add(
            container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only
        )
    for node in allocation.devices:
        message.devices.add(
            container_path=node.container_path or node.host_path,
            host_path=node.host_path,
            permissions=node.permissions,
        )
    for name in allocation.cdi:
        message.cdi_devices.add(name=name)
    return message


def from_wire(message: dp.ContainerAllocateResponse) -> Allocation:
    """The allocation in a message. Maps, which have no order on the wire, are sorted by name."""
    return Allocation(
        envs=dict(sorted(message.envs.items())),
        mounts=tuple(Mount(one.container_path, one.host_path, one.read_only) for one in message.mounts),
        devices=tuple(
            DeviceNode(one.host_path, one.container_path, one.permissions) for one in message.devices
        ),
        annotations=dict(sorted(message.annotations.items())),
        cdi=tuple(device.name for device in message.cdi_devices),
    )


def read(stored: bytes) -> Allocation | None:
    """The allocation in a checkpoint's AllocResp; None where the bytes cannot be decoded."""
    try:
        return from_wire(dp.ContainerAllocateResponse.FromString(stored))
    except DecodeError:
        return None
