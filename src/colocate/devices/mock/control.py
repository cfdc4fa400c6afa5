"""The agent's side of `colocate mock`: messages, methods and answers."""

from collections.abc import Iterable, Mapping

import msgspec

from colocate import telemetry
from colocate.config.words import suggest
from colocate.devices.mock.faults import MENDING, Change, Fail
from colocate.devices.mock.plugin import MockPlugin
from colocate.errors import UserError
from colocate.model.device import Health
from colocate.telemetry import Event
from colocate.wire import control_socket as control
from colocate.wire import rpc


class DeviceStatus(msgspec.Struct, frozen=True):
    """One device of a mock resource."""

    id: str
    health: Health
    vanished: bool
    numa: tuple[int, ...] = ()


class ResourceStatus(msgspec.Struct, frozen=True):
    """A mock resource: its devices and what is wrong with it."""

    resource: str
    devices: tuple[DeviceStatus, ...]
    slow: float
    fail: Fail | None
    hang: bool


class ListMocks(msgspec.Struct, frozen=True):
    """Ask for every mock resource."""


class Mocks(msgspec.Struct, frozen=True):
    """Every mock resource of an agent."""

    resources: tuple[ResourceStatus, ...]


class SetFault(msgspec.Struct, frozen=True):
    """Set a fault of a mock resource, or clear it."""

    resource: str
    change: Change


LIST = rpc.json("/colocate.Mock/List", ListMocks, Mocks)
SET = rpc.json("/colocate.Mock/Set", SetFault, ResourceStatus)


def service(mocks: Mapping[str, MockPlugin]) -> rpc.Service:
    """The methods, for plugins that may be added and removed."""

    def list_all(_: ListMocks) -> Mocks:
        return Mocks(tuple(status_of(mock) for mock in mocks.values()))

    def set_fault(request: SetFault) -> ResourceStatus:
        mock = mocks.get(request.resource)
        if mock is None:
            raise UserError(no_such_resource(request.resource, mocks))
        mock.change(request.change)
        mended = isinstance(request.change, MENDING)
        telemetry.logger().info(
            Event.MOCK_FAULT_CLEARED if mended else Event.MOCK_FAULT_SET,
            resource=request.resource,
            **msgspec.to_builtins(request.change),
        )
        return status_of(mock)

    return rpc.Service({LIST: control.answering(list_all), SET: control.answering(set_fault)})


def no_such_resource(name: str, known: Iterable[str]) -> str:
    """The error for a resource that does not exist."""
    return f"there is no mock resource {name!r}; {suggest(name, known, 'mock resources')}"


def status_of(mock: MockPlugin) -> ResourceStatus:
    """A plugin's state as a message."""
    faults = mock.faults
    return ResourceStatus(
        mock.resource,
        tuple(
            DeviceStatus(device.id, device.health, device.id in faults.vanished, device.numa)
            for device in mock.all_devices
        ),
        faults.slow,
        faults.fail,
        faults.hang,
    )
