"""What an author of a device plugin writes: a resource, its devices, and what a container gets with them.

Nothing here knows of sockets, registration or gRPC; see `endpoint` for the life of a plugin.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from colocate.errors import ColocateError, UserError
from colocate.model.device import Allocation, Device
from colocate.model.resource_name import why_not_allowed

DeviceList: TypeAlias = Iterable[Device | str]
"""Devices, or plain ids for healthy ones near no particular NUMA node."""

Devices: TypeAlias = AsyncIterable[DeviceList] | DeviceList
"""One list that never changes, or a stream in which each list replaces the one before."""


class Refused(ColocateError):
    """Raised by a plugin to turn a container away; the message is what the pod's owner reads."""


class DevicePlugin:
    """Base class of device plugins: set `resource`, write `devices`, and whatever else is needed.

    `allocate`, `prefer` and `prestart` may be plain functions, which run in a thread, or coroutines.
    """

    resource: str

    def devices(self) -> Devices:
        """The devices: a list, or, as an async generator, a new list whenever something changes."""
        raise NotImplementedError(f"{type(self).__name__} does not say which devices it has")

    def allocate(self, ids: Sequence[str]) -> Allocation | Awaitable[Allocation]:
        """What a container that gets exactly these devices is started with."""
        return Allocation()

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        """Which `size` of the available devices go well together. Written only where it matters."""
        raise NotImplementedError

    def prestart(self, ids: Sequence[str]) -> Awaitable[None] | None:
        """Called before a container that holds these devices is created. Written only where needed."""
        raise NotImplementedError

    def reload(self) -> Awaitable[None] | None:
        """Called on SIGHUP, before the plugin registers again."""
        return None

    async def gate(self) -> None:
        """Awaited before anything is said to the kubelet, with no deadline: for mocks that hang on purpose."""

    @property
    def has_prefer(self) -> bool:
        return type(self).prefer is not DevicePlugin.prefer

    @property
    def has_prestart(self) -> bool:
        return type(self).prestart is not DevicePlugin.prestart


def checked_resource(plugin: DevicePlugin) -> str:
    """The plugin's resource name, if Kubernetes allows it."""
    resource = getattr(plugin, "resource", None)
    if not isinstance(resource, str):
        raise UserError(f"{type(plugin).__name__} has no resource name: set resource = 'example.com/name'")
    reason = why_not_allowed(resource)
    if reason:
        raise UserError(f"the resource name {resource!r} is not allowed: {reason}")
    return resource


def plugin(
    resource: str, devices: Devices | Callable[[], Devices]
) -> Callable[[Callable[[Sequence[str]], Allocation | Awaitable[Allocation]]], DevicePlugin]:
    """Make a plugin of an `allocate` function: the short way where nothing else is needed."""

    def decorate(function: Callable[[Sequence[str]], Allocation | Awaitable[Allocation]]) -> DevicePlugin:
        def list_devices(self: DevicePlugin) -> Devices:
            return devices() if callable(devices) else devices

        def allocate(self: DevicePlugin, ids: Sequence[str]) -> Allocation | Awaitable[Allocation]:
            return function(ids)

        name = getattr(function, "__name__", "plugin")
        made: type[DevicePlugin] = type(
            name, (DevicePlugin,), {"devices": list_devices, "allocate": allocate, "resource": resource}
        )
        return made()

    return decorate
