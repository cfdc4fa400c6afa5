"""What an author of a device plugin writes: a resource, its devices, and what a container gets with them.

Nothing here knows of sockets, registration or gRPC; see `endpoint` for the life of a plugin.
"""

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from colocate.clock import Clock, SystemClock
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

    Every method but `devices` may be a plain function, which runs in a thread, or a coroutine.
    """

    resource: str
    """The name of the resource, such as `example.com/fan`."""
    clock: Clock = SystemClock()
    """The time to go by, for waits and spans: `await self.clock.sleep(5)`, `self.clock.monotonic()`.

    The SDK sets it before `open`: to the machine's own time, and in a test to the time that the test moves. A plugin
    that has a `clock` of its own keeps it.
    """

    def open(self) -> Awaitable[None] | None:
        """Take hold of the hardware: called once, before `devices`, with no deadline.

        Where it raises, it is called again after a growing pause, and the plugin does not register before it
        returns. A `UserError` ends the process.
        """
        return None

    def close(self) -> Awaitable[None] | None:
        """Let go of the hardware: called once, when the plugin has stopped and no call is in flight.

        Called only after an `open` that returned. It has `Settings.close_timeout` seconds.
        """
        return None

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

    @property
    def has_prefer(self) -> bool:
        """Whether `prefer` is written; the kubelet is told."""
        return type(self).prefer is not DevicePlugin.prefer

    @property
    def has_prestart(self) -> bool:
        """Whether `prestart` is written; the kubelet is told."""
        return type(self).prestart is not DevicePlugin.prestart


class GatedPlugin(DevicePlugin):
    """A plugin that can be held up on purpose, for mocks. No part of the SDK."""

    async def gate(self) -> None:
        """Awaited before anything is said to the kubelet, with no deadline."""


async def pass_gate(plugin: DevicePlugin) -> None:
    """Wait while a plugin is held up."""
    if isinstance(plugin, GatedPlugin):
        await plugin.gate()


def give_clock(plugin: DevicePlugin, clock: Clock) -> None:
    """Let a plugin go by this clock, unless it has one of its own."""
    own = vars(plugin)
    is_ours = own.get("clock") is own.get("_clock_of_sdk")
    if type(plugin).clock is DevicePlugin.clock and is_ours:
        own["clock"] = own["_clock_of_sdk"] = clock


def checked_resource(plugin: DevicePlugin) -> str:
    """The plugin's resource name, if Kubernetes allows it and the plugin is written so far."""
    _check_plugin(plugin)
    resource = getattr(plugin, "resource", None)
    if not isinstance(resource, str):
        raise UserError(f"{type(plugin).__name__} has no resource name: set resource = 'example.com/name'")
    reason = why_not_allowed(resource)
    if reason:
        raise UserError(f"the resource name {resource!r} is not allowed: {reason}")
    return resource


def _check_plugin(plugin: object) -> None:
    """Raise UserError for what no kubelet could ever be served with."""
    if isinstance(plugin, type) and issubclass(plugin, DevicePlugin):
        name = plugin.__name__
        raise UserError(f"{name} is the class of a plugin; make one of it: write {name}() with parentheses")
    if not isinstance(plugin, DevicePlugin):
        raise UserError(
            f"{plugin!r:.100} is no plugin; derive its class from DevicePlugin, or decorate with @plugin"
        )
    if getattr(plugin.devices, "__func__", None) is DevicePlugin.devices:
        raise UserError(
            f"{type(plugin).__name__} does not say which devices it has; write its method devices, which returns a "
            "list of ids or yields one whenever something changes"
        )


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
