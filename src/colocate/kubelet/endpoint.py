"""The life of one plugin: list its devices, serve, register, and again whenever the kubelet is replaced.

This module knows no device and no resource. What is published is decided in `inventory`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from pathlib import Path

import grpc
import grpc.aio

from colocate import telemetry
from colocate.aio import Watched, first
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.errors import ColocateError, UserError
from colocate.kubelet import inventory, sockets
from colocate.kubelet.broadcast import Broadcast
from colocate.kubelet.holders import Holders
from colocate.kubelet.inventory import Inventory
from colocate.kubelet.plugin import DeviceList, DevicePlugin, checked_resource
from colocate.kubelet.registration import register, watcher_service
from colocate.kubelet.service import PluginService, run
from colocate.kubelet.settings import OnStop, Registration, Settings
from colocate.kubelet.watch import FolderWatch, identity
from colocate.model.device import Device, Health
from colocate.telemetry import Event
from colocate.wire.rpc import serve

_STEADY = 60.0
"""Seconds after which a registration counts as good and the back-off starts afresh."""


class Endpoint:
    """Runs one plugin until it is told to stop."""

    def __init__(
        self, plugin: DevicePlugin, settings: Settings, clock: Clock, watch: FolderWatch, holders: Holders
    ) -> None:
        self.plugin = plugin
        self.resource = checked_resource(plugin)
        self._settings = settings
        self._clock = clock
        self._watch = watch
        self._holders = holders
        self._inventory = Inventory()
        self._broadcast = Broadcast(self.resource)
        self._service = PluginService(plugin, self._broadcast, self._knows, settings, clock)
        self._on_stop = settings.on_stop
        self._again = Watched()
        self._stopping = asyncio.Event()
        self._failures = 0
        self._stream = _stream(plugin)
        self._log = telemetry.logger(resource=self.resource)

    async def run(self) -> None:
        """Serve the plugin; returns after `stop`, and raises where its very first list is unusable."""
        try:
            await self._first_list()
            async with asyncio.TaskGroup() as tasks:
                helpers = [tasks.create_task(self._follow()), tasks.create_task(self._retire())]
                while not self._stopping.is_set():
                    await self._serve_once()
                for task in helpers:
                    task.cancel()
        finally:
            await self._stream.aclose()
        self._log.info(Event.PLUGIN_STOPPED, on_stop=self._on_stop)

    def stop(self, on_stop: OnStop | None = None) -> None:
        """Begin to stop: as the settings say, unless told otherwise."""
        self._on_stop = on_stop or self._on_stop
        self._stopping.set()

    async def reload(self) -> None:
        """Let the plugin re-read what it reads, and register again, even if it fails to read."""
        try:
            await run(self.plugin.reload)
        except Exception as error:  # noqa: BLE001 -- the plugin's own code may raise anything
            telemetry.PLUGIN_ERRORS.labels(self.resource, "reload").inc()
            self._log.error(
                Event.PLUGIN_CALL_FAILED, method="reload", reason=f"{type(error).__name__}: {error}"
            )
        self._again.changed()

    # --- the device list -------------------------------------------------------------------------

    async def _first_list(self) -> None:
        """Take the first list before anyone is told of the plugin, with the ids that pods hold already.

        A list that the kubelet could never take ends the start; any other failure is tried again.
        """
        pause = self._settings.first_retry
        while not self._stopping.is_set():
            try:
                devices: DeviceList = await anext(self._stream, [])
                held = await self._holders.held(self.resource) or frozenset()
                now = self._clock.monotonic()
                first_list = inventory.replace(self._inventory, _normal(devices), now)
                self._publish(inventory.keep_held(first_list, held, now))
                return
            except UserError:
                raise
            except Exception as error:  # noqa: BLE001 -- the plugin's own code may raise anything
                self._devices_failed(error, "the plugin does not register yet")
            pause = await self._pause_and_restart_stream(pause)

    async def _follow(self) -> None:
        """Take every further list; where the plugin's stream fails, keep the last one and start it again."""
        pause = self._settings.first_retry
        while True:
            try:
                async for devices in self._stream:
                    now = self._clock.monotonic()
                    self._publish(inventory.replace(self._inventory, _normal(devices), now))
                    pause = self._settings.first_retry
                return
            except Exception as error:  # noqa: BLE001 -- the plugin's own code may raise anything
                self._devices_failed(error, "the last list stays")
            pause = await self._pause_and_restart_stream(pause)

    async def _pause_and_restart_stream(self, pause: float) -> float:
        await first(self._clock.sleep(pause), self._stopping.wait())
        self._stream = _stream(self.plugin)
        return min(2 * pause, self._settings.last_retry)

    def _devices_failed(self, error: Exception, effect: str) -> None:
        telemetry.PLUGIN_ERRORS.labels(self.resource, "devices").inc()
        expected = isinstance(error, ColocateError | ValueError)
        self._log.error(
            Event.PLUGIN_DEVICES_FAILED,
            reason=f"{type(error).__name__}: {error}",
            effect=effect,
            exc_info=None if expected else error,
        )

    async def _retire(self) -> None:
        """Drop withdrawn ids once they have lingered and no pod holds them."""
        while True:
            await self._clock.sleep(self._settings.holders_interval)
            if not self._inventory.leaving or not self._broadcast.taken:
                continue
            held = await self._holders.held(self.resource)
            self._drop(held, self._settings.linger)

    def _drop(self, held: frozenset[str] | None, linger: float) -> None:
        left = inventory.drop_unheld(self._inventory, held, self._clock.monotonic(), linger)
        dropped = self._inventory.leaving.keys() - left.leaving.keys()
        if dropped:
            reached("ids.drop")
            self._log.info(Event.DEVICES_DROPPED, ids=_few(dropped))
            self._publish(left)

    def _publish(self, new: Inventory) -> None:
        devices = new.published
        if not self._broadcast.publish(devices):
            self._inventory = new
            return
        withdrawn = new.leaving.keys() - self._inventory.leaving.keys()
        self._inventory = new
        healthy = sum(device.health is Health.HEALTHY for device in devices)
        telemetry.PLUGIN_DEVICES.labels(self.resource, "healthy").set(healthy)
        telemetry.PLUGIN_DEVICES.labels(self.resource, "unhealthy").set(len(devices) - healthy)
        self._log.debug(Event.DEVICES_PUBLISHED, healthy=healthy, unhealthy=len(devices) - healthy)
        if withdrawn:
            self._log.info(Event.DEVICES_RETIRED, ids=_few(withdrawn))

    def _knows(self, ids: Sequence[str]) -> bool:
        return self._inventory.knows(ids)

    # --- serving and registering -----------------------------------------------------------------

    async def _serve_once(self) -> None:
        """Serve on one fresh socket until there is a reason to serve on another."""
        by_call = self._settings.registration is Registration.REGISTER
        paths = self._settings.paths
        kubelet = identity(paths.kubelet_socket)
        if by_call and kubelet is None:
            self._log.info(Event.KUBELET_AWAITED, socket=str(paths.kubelet_socket))
            await first(self._watch.differs(paths.kubelet_socket, None), self._stopping.wait())
            return
        seen = self._again.count
        folder = paths.device_plugins if by_call else paths.plugins_registry
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(sockets.remove_stale, folder, self.resource)
            socket = sockets.fresh(folder, self.resource)
            server = await self._start_server(socket, by_call)
        except UserError:
            raise
        except (OSError, RuntimeError) as error:
            await self._retry_later(f"cannot serve in {folder}: {error}", kubelet)
            return
        started = self._clock.monotonic()
        try:
            if by_call:
                registering = register(paths, socket, self.resource, self._service.options)
                if await first(registering, self._stopping.wait()) == 0:
                    telemetry.PLUGIN_REGISTRATIONS.labels(self.resource, "ok").inc()
                    self._log.info(Event.PLUGIN_REGISTERED, way="register", socket=socket.name)
            reason = await self._until_over(socket, kubelet, seen, by_call)
        except grpc.RpcError as error:
            telemetry.PLUGIN_REGISTRATIONS.labels(self.resource, "failed").inc()
            reason = f"the kubelet did not take the registration: {error.details() or error.code()}"
        finally:
            telemetry.PLUGIN_REGISTERED.labels(self.resource).set(0)
            await self._stop_server(server, socket)
        if self._clock.monotonic() - started >= _STEADY:
            self._failures = 0
        if reason:
            await self._retry_later(reason, kubelet)

    async def _start_server(self, socket: Path, by_call: bool) -> grpc.aio.Server:
        reached("socket.serve")
        services = [self._service.rpc()]
        if not by_call:
            services.append(watcher_service(socket, self.resource))
        server = await serve(socket, *services)
        reached("socket.served")
        self._log.debug(Event.PLUGIN_SERVING, socket=str(socket))
        return server

    async def _until_over(
        self, socket: Path, kubelet: tuple[int, int] | None, seen: int, by_call: bool
    ) -> str | None:
        """Wait for the end of this registration; returns the reason if it is one to back off for."""
        paths = self._settings.paths
        mine = identity(socket)
        ends = [
            self._stopping.wait(),
            self._again.beyond(seen),
            self._lost(by_call),
            self._watch.differs(socket, mine),
        ]
        if by_call:
            ends.append(self._watch.differs(paths.kubelet_socket, kubelet))
        end = await first(*ends)
        if end == 0:
            await self._withdraw()
        elif end == 2:
            # A kubelet that restarts closes the stream a moment before it replaces its socket.
            return "the kubelet closed the device-list stream, or never opened it"
        elif end >= 3:
            self._kubelet_replaced()
        return None

    def _kubelet_replaced(self) -> None:
        self._failures = 0
        self._log.info(Event.KUBELET_REPLACED)

    async def _lost(self, by_call: bool) -> None:
        """Return when the kubelet does not listen to the list: not in time, or not any more.

        The plugin watcher's way has no such end: the kubelet finds the socket again by itself.
        """
        registered = telemetry.PLUGIN_REGISTERED.labels(self.resource)
        in_time = self._clock.sleep(self._settings.stream_timeout) if by_call else asyncio.Event().wait()
        await first(self._broadcast.listened(), in_time)
        while self._broadcast.listeners:
            registered.set(1)
            await self._broadcast.abandoned()
            registered.set(0)
            if not by_call:
                await self._broadcast.listened()

    async def _withdraw(self) -> None:
        """Give the kubelet a list without the devices, all of them Unhealthy first."""
        if self._on_stop is OnStop.WITHDRAW:
            await first(self._broadcast.listened(), self._clock.sleep(self._settings.stop_grace))
            held = await self._holders.held(self.resource)
            self._publish(inventory.replace(self._inventory, [], self._clock.monotonic()))
            await first(self._broadcast.all_taken(), self._clock.sleep(self._settings.stop_grace))
            reached("withdraw.unhealthy")
            self._drop(held, linger=0)
        self._broadcast.close()
        await first(self._broadcast.abandoned(), self._clock.sleep(self._settings.stop_grace))

    async def _stop_server(self, server: grpc.aio.Server, socket: Path) -> None:
        await server.stop(self._settings.stop_grace if self._stopping.is_set() else None)
        sockets.remove(socket)

    async def _retry_later(self, reason: str, kubelet: tuple[int, int] | None) -> None:
        pause = min(self._settings.first_retry * 2**self._failures, self._settings.last_retry)
        self._failures = min(self._failures + 1, 16)
        self._log.warning(Event.PLUGIN_NOT_REGISTERED, reason=reason, retry_in=pause)
        woken_by = await first(
            self._stopping.wait(),
            self._watch.differs(self._settings.paths.kubelet_socket, kubelet),
            self._clock.sleep(pause),
        )
        if woken_by == 1:
            self._kubelet_replaced()


async def _stream(plugin: DevicePlugin) -> AsyncGenerator[DeviceList, None]:
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


def _normal(devices: DeviceList) -> list[Device]:
    return [Device(device) if isinstance(device, str) else device for device in devices]


def _few(ids: set[str]) -> list[str]:
    shown = sorted(ids)
    return shown if len(shown) <= 10 else [*shown[:9], f"… {len(shown) - 9} more"]
