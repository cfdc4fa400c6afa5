"""Follows a plugin's list of devices and publishes it to the kubelet.

`inventory` decides what is published, `broadcast` sends it. When a list fails or is refused, the last good one
stays.
"""

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing

from colocate import telemetry
from colocate.aio import first
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.errors import ColocateError, UserError
from colocate.kubelet import inventory
from colocate.kubelet.broadcast import Broadcast
from colocate.kubelet.holders import Holders
from colocate.kubelet.inventory import DeviceInventory
from colocate.kubelet.plugin import DeviceList, DevicePlugin
from colocate.kubelet.plugin_calls import tamed
from colocate.kubelet.settings import Settings
from colocate.model.device import Device
from colocate.telemetry import Event


class BadList(ColocateError):
    """A plugin's list cannot be read; the message says what is wrong and how to write it."""


class DeviceFeed:
    """The device list of one plugin, from its code to the kubelet."""

    def __init__(
        self, plugin: DevicePlugin, broadcast: Broadcast, holders: Holders, settings: Settings, clock: Clock
    ) -> None:
        self._plugin = plugin
        self._broadcast = broadcast
        self._holders = holders
        self._settings = settings
        self._clock = clock
        self._inventory = DeviceInventory()
        self._stream = _lists_of(plugin)
        self._log = telemetry.logger(resource=plugin.resource)

    def knows(self, id: str) -> bool:
        """Whether a device is in the list, healthy or not, so that the kubelet may ask for it."""
        return self._inventory.knows(id)

    async def start(self) -> None:
        """Take the first list, retrying on failure. A list that the kubelet could never accept is an error."""
        pause = self._settings.first_retry
        while True:
            try:
                devices: DeviceList = await anext(self._stream, [])
                self._publish(inventory.replace(self._inventory, as_list(devices)))
                return
            except UserError:
                raise
            except BaseException as error:  # noqa: BLE001 -- the plugin's own code may raise anything
                self._failed(tamed(error), "the plugin does not register yet")
            pause = await self._restart_after(pause)

    async def keep_held(self) -> bool:
        """Add the devices that pods hold and the plugin does not list; False where the holders are unknown."""
        held = await self._holders.ever_held(self._plugin.resource)
        if held is None:
            return False
        self._publish(inventory.keep_held(self._inventory, held))
        return True

    async def follow(self) -> None:
        """Take every further list; if the plugin's stream fails, keep the last list and restart the stream."""
        pause = self._settings.first_retry
        while True:
            try:
                async for devices in self._stream:
                    self._take(as_list(devices))
                    pause = self._settings.first_retry
                return
            except BaseException as error:  # noqa: BLE001 -- the plugin's own code may raise anything
                self._failed(tamed(error), "the last list stays")
            pause = await self._restart_after(pause)

    async def retire(self) -> None:
        """Drop withdrawn ids once the kubelet has known them Unhealthy for a while and no pod holds them."""
        while True:
            await self._clock.sleep(self._settings.holders_interval)
            if not self._inventory.leaving or not self._broadcast.listeners or not self._broadcast.taken:
                continue
            now = self._clock.monotonic()
            self._inventory = inventory.told(self._inventory, now)
            if inventory.due(self._inventory, now, self._settings.linger):
                self._drop(await self._holders.held(self._plugin.resource), self._settings.linger)

    async def withdraw_all(self) -> None:
        """Mark every device Unhealthy, and wait until the kubelet has been sent that list."""
        self._publish(inventory.replace(self._inventory, []))
        await first(self._broadcast.all_taken(), self._clock.sleep(self._settings.stop_grace))
        if self._broadcast.taken:
            self._inventory = inventory.told(self._inventory, self._clock.monotonic())

    async def drop_all_unheld(self) -> None:
        """Drop every device that no pod holds, at once: for the end, when no Allocate is in flight or will be
        answered."""
        self._drop(await self._holders.held(self._plugin.resource), linger=0)

    async def close(self) -> None:
        await self._stream.aclose()

    def _take(self, devices: Iterable[Device | str]) -> None:
        """Publish a list. If it is too long, publish only the devices known before: those that are gone then begin
        to leave, which makes room for the next try."""
        new = inventory.replace(self._inventory, devices)
        try:
            self._publish(new)
        except UserError:
            known = [device for device in new.listed if device.id in self._inventory.places]
            self._publish(inventory.replace(self._inventory, known))
            raise

    def _drop(self, held: frozenset[str] | None, linger: float) -> None:
        left = inventory.drop_unheld(self._inventory, held, self._clock.monotonic(), linger)
        dropped = self._inventory.leaving.keys() - left.leaving.keys()
        if dropped:
            reached("ids.drop")
            self._log.info(Event.DEVICES_DROPPED, ids=_few(dropped))
            self._publish(left)

    def _publish(self, new: DeviceInventory) -> None:
        leaving = [entry.device for entry in new.leaving.values()]
        changed = self._broadcast.publish(new.listed, leaving, new.changed)
        withdrawn = new.leaving.keys() - self._inventory.leaving.keys() if new.leaving else set()
        self._inventory = new
        if not changed:
            return
        unhealthy = len(new.listed) + len(leaving) - new.healthy
        telemetry.PLUGIN_DEVICES.labels(self._plugin.resource, "healthy").set(new.healthy)
        telemetry.PLUGIN_DEVICES.labels(self._plugin.resource, "unhealthy").set(unhealthy)
        self._log.debug(Event.DEVICES_PUBLISHED, healthy=new.healthy, unhealthy=unhealthy)
        if withdrawn:
            self._log.info(Event.DEVICES_RETIRED, ids=_few(withdrawn))

    async def _restart_after(self, pause: float) -> float:
        await self._stream.aclose()
        await self._clock.sleep(pause)
        self._stream = _lists_of(self._plugin)
        return min(2 * pause, self._settings.last_retry)

    def _failed(self, error: Exception, effect: str) -> None:
        telemetry.PLUGIN_ERRORS.labels(self._plugin.resource, "devices").inc()
        expected = isinstance(error, ColocateError | ValueError)
        self._log.error(
            Event.PLUGIN_DEVICES_FAILED,
            reason=f"{type(error).__name__}: {error}",
            effect=effect,
            exc_info=None if expected else error,
        )


async def _lists_of(plugin: DevicePlugin) -> AsyncGenerator[DeviceList, None]:
    devices = plugin.devices()
    if isinstance(devices, AsyncGenerator):
        async with aclosing(devices):
            async for one in devices:
                yield one
    elif isinstance(devices, AsyncIterable):
        async for one in devices:
            yield one
    else:
        yield devices


_HOW = "yield lists of devices from an 'async def devices', or return one list from a plain one"


def as_list(listed: object) -> Iterable[Device | str]:
    """Check that a plugin's answer is a list; BadList with a remedy where not. Its items are checked later."""
    if inspect.iscoroutine(listed):
        listed.close()
        raise BadList(f"'async def devices' returns instead of yielding; {_HOW}")
    if isinstance(listed, str | bytes) or not isinstance(listed, Iterable):
        raise BadList(f"a list of devices was expected, but {listed!r:.100} came; {_HOW}")
    return listed


def _few(ids: set[str]) -> list[str]:
    shown = sorted(ids)
    return shown if len(shown) <= 10 else [*shown[:9], f"… {len(shown) - 9} more"]
