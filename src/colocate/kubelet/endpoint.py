"""The life of one plugin: serve its list, register, and again whenever the kubelet is replaced.

This module knows no device and no resource. Where the list comes from is in `device_list`.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio

from colocate import telemetry
from colocate.aio import Watched, first
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.errors import Unavailable, UserError
from colocate.kubelet import sockets
from colocate.kubelet.broadcast import Broadcast
from colocate.kubelet.device_list import DeviceFeed
from colocate.kubelet.holders import Holders
from colocate.kubelet.hooks import Hooks
from colocate.kubelet.plugin import DevicePlugin, checked_resource, give_clock
from colocate.kubelet.plugin_calls import Caller
from colocate.kubelet.registration import register, watcher_service
from colocate.kubelet.service import PluginService
from colocate.kubelet.settings import OnStop, Registration, Settings
from colocate.kubelet.watch import FolderWatch, Identity, identity, why_absent
from colocate.telemetry import Event
from colocate.wire.rpc import serve, stop_server

_DEBUG, _INFO = logging.DEBUG, logging.INFO
_LAST_WORDS = 3
"""Registrations to tell the kubelet of the end, at most."""
_FLUSH = 1.0
"""Seconds for what was sent on streams that have ended to be on its way: no more than a moment."""
_STEADY = 60.0
"""Seconds after which a registration counts as good and the back-off starts afresh."""


class Endpoint:
    """Runs one plugin until it is told to stop."""

    def __init__(
        self,
        plugin: DevicePlugin,
        settings: Settings,
        clock: Clock,
        watch: FolderWatch,
        holders: Holders,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`check` raises where the plugin must not register with the kubelet that is there."""
        self.plugin = plugin
        self.resource = checked_resource(plugin)
        give_clock(plugin, clock)
        self._settings = settings
        self._clock = clock
        self._watch = watch
        self._broadcast = Broadcast(self.resource)
        self._feed = DeviceFeed(plugin, self._broadcast, holders, settings, clock)
        caller = Caller()
        self._hooks = Hooks(plugin, caller, settings, clock)
        self._service = PluginService(plugin, self._broadcast, self._feed.knows, settings, clock, caller)
        self._by_call = settings.registration is Registration.REGISTER
        self._on_stop = settings.on_stop
        self._again = Watched()
        self._stopping = asyncio.Event()
        self._withdrawn = 0
        """How many streams had been opened when the kubelet was told last that the devices go."""
        self._opened_before = 0
        """How many streams had been opened before we registered last."""
        self._failures = 0
        self._check = check
        self._was_checked = False
        """Whether the plugin was ever allowed to register."""
        self._log = telemetry.logger(resource=self.resource)

    async def run(self) -> None:
        """Serve the plugin; returns after `stop`, and raises where its very first list is unusable."""
        try:
            if await first(self._start(), self._stopping.wait()) == 0:
                await self._serve()
        finally:
            try:
                await self._feed.close()
            finally:
                await self._hooks.close()
        self._log.info(Event.PLUGIN_STOPPED, on_stop=self._on_stop)

    def stop(self, on_stop: OnStop | None = None) -> None:
        """Begin to stop, as the settings say unless told otherwise."""
        self._on_stop = on_stop or self._on_stop
        self._stopping.set()

    async def reload(self) -> None:
        """Let the plugin re-read what it reads, and register again, even if it fails to read."""
        await self._hooks.reload()
        self._again.changed()

    async def _start(self) -> None:
        await self._hooks.open()
        await self._feed.start()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._feed.follow()), tasks.create_task(self._feed.retire())]
            while not self._stopping.is_set():
                await self._serve_once()
            await self._withdraw_after_all()
            for task in helpers:
                task.cancel()

    async def _withdraw_after_all(self) -> None:
        """Told to stop between two registrations: it takes one more to tell the kubelet.

        Or a few: many kubelets close the stream of a new registration when that of the last one has ended.
        """
        for _ in range(_LAST_WORDS):
            opened = self._broadcast.opened
            if self._must_withdraw:
                await self._serve_once()
            if self._broadcast.opened == opened:
                return

    @property
    def _must_withdraw(self) -> bool:
        return self._broadcast.opened > self._withdrawn and self._on_stop is OnStop.WITHDRAW

    async def _serve_once(self) -> None:
        """Serve on one fresh socket until there is a reason to serve on another."""
        seen = self._again.count
        kubelet = await self._kubelet()
        if self._stopping.is_set() and not (self._must_withdraw and (kubelet or not self._by_call)):
            return
        if refusal := await self._why_not():
            await self._retry_later(refusal, kubelet, seen)
            return
        if self._by_call and identity(self._settings.paths.kubelet_socket) != kubelet:
            return  # Another kubelet has come, for which nothing was checked.
        if not await self._feed.keep_held():
            await self._retry_later("the plugin does not know which devices pods hold", kubelet, seen)
            return
        paths = self._settings.paths
        folder = paths.device_plugins if self._by_call else paths.plugins_registry
        try:
            socket, server = await self._start_server(folder)
        except (OSError, RuntimeError) as error:
            await self._retry_later(f"cannot serve in {folder}: {error}", kubelet, seen)
            return
        self._opened_before = self._broadcast.opened
        served = identity(socket)  # Before the kubelet hears of it: it may be deleted in the next moment.
        started = self._clock.monotonic()
        reason: str | None = None
        drain = True
        try:
            if self._by_call:
                await self._register(socket)
            reason, drain = await self._until_over(socket, served, kubelet, seen)
        except grpc.RpcError as error:
            telemetry.PLUGIN_REGISTRATIONS.labels(self.resource, "failed").inc()
            reason = f"the kubelet refused the registration: {error.details() or error.code()}"
        except TimeoutError:
            telemetry.PLUGIN_REGISTRATIONS.labels(self.resource, "failed").inc()
            reason = "the kubelet did not answer the registration"
        finally:
            telemetry.PLUGIN_REGISTERED.labels(self.resource).set(0)
            await self._stop_server(server, socket, drain)
        if self._clock.monotonic() - started >= _STEADY:
            self._failures = 0
        if reason:
            await self._retry_later(reason, kubelet, seen)

    async def _kubelet(self) -> Identity | None:
        """Which kubelet is there; waits for one where it must be called."""
        socket = self._settings.paths.kubelet_socket
        found = identity(socket)
        while self._by_call and found is None and not self._stopping.is_set():
            self._log.info(Event.KUBELET_AWAITED, socket=str(socket), reason=why_absent(socket))
            await first(self._watch.differs(socket, None), self._stopping.wait())
            found = identity(socket)
        return found

    async def _why_not(self) -> str:
        """Why it must not register now; empty where it may. A UserError where it never may."""
        if self._check is None or self._stopping.is_set():
            return ""
        try:
            await self._check()
        except Unavailable as error:
            return str(error)
        except UserError as error:
            if not self._was_checked:
                raise
            return str(error)
        self._was_checked = True
        return ""

    async def _start_server(self, folder: Path) -> tuple[Path, grpc.aio.Server]:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(
                f"this process may not write there; run it as root, or mount {folder} writable"
            )
        sockets.remove_stale(folder, self.resource)
        socket = sockets.fresh(folder, self.resource)
        reached("socket.serve")
        services = [self._service.rpc()]
        if not self._by_call:
            services.append(watcher_service(socket, self.resource))
        server = await serve(socket, *services)
        reached("socket.served")
        self._log.log(_DEBUG if self._by_call else _INFO, Event.PLUGIN_SERVING, socket=str(socket))
        return socket, server

    async def _register(self, socket: Path) -> None:
        registering = register(
            self._settings.paths, socket, self.resource, self._service.options, self._clock
        )
        if await first(registering, self._not_needed()) == 0:
            telemetry.PLUGIN_REGISTRATIONS.labels(self.resource, "ok").inc()
            self._log.info(Event.PLUGIN_REGISTERED, way="register", socket=socket.name)

    async def _not_needed(self) -> None:
        """Return when a plugin that stops need not register; TimeoutError once one that must has had its time."""
        await self._stopping.wait()
        if self._on_stop is OnStop.WITHDRAW:
            await self._clock.sleep(self._settings.stop_grace)
            raise TimeoutError

    async def _until_over(
        self, socket: Path, served: Identity | None, kubelet: Identity | None, seen: int
    ) -> tuple[str | None, bool]:
        """Wait for the end of this registration.

        Returns the reason if it is one to back off for, and whether calls in flight may still be answered.
        """
        ends = [
            self._stopping.wait(),
            self._again.beyond(seen),
            self._lost(),
            # Another instance of this plugin took our place, and has gone: the kubelet listens to no plugin now.
            self._watch.one_goes(sockets.pattern(self.resource), but=socket),
            self._watch.differs(socket, served),
        ]
        if self._by_call:
            ends.append(self._watch.differs(self._settings.paths.kubelet_socket, kubelet))
        end = await first(*ends)
        if end == 0 and self._on_stop is OnStop.WITHDRAW:
            await self._withdraw()
        elif end == 2:
            # A kubelet that restarts closes the stream a moment before it replaces its socket.
            return "the kubelet closed the device-list stream, or never opened it", True
        elif end >= 4:
            self._kubelet_replaced()
            return None, False
        return None, True

    async def _lost(self) -> None:
        """Return when the kubelet does not listen to the list: not in time, or not any more.

        The plugin watcher's way has no such end: the kubelet finds the socket again by itself.
        """
        registered = telemetry.PLUGIN_REGISTERED.labels(self.resource)
        in_time = (
            self._clock.sleep(self._settings.stream_timeout) if self._by_call else asyncio.Event().wait()
        )
        await first(self._broadcast.listened(), in_time)
        while self._broadcast.listeners:
            registered.set(1)
            await self._broadcast.abandoned()
            registered.set(0)
            if not self._by_call:
                await self._broadcast.listened()

    async def _withdraw(self) -> None:
        """Give the kubelet a list without the devices, all of them Unhealthy first.

        Holders are asked last, when no Allocate is in flight and none will be answered: else one could still
        be given a device that is about to go.
        """
        grace = self._settings.stop_grace
        opened = self._broadcast.opened > self._opened_before
        if self._by_call and opened and not self._broadcast.listeners:
            return  # A kubelet opens no second stream for one registration.
        if await first(self._broadcast.listened(), self._clock.sleep(grace)) != 0:
            if not self._by_call:
                self._withdrawn = (
                    self._broadcast.opened
                )  # A plugin watcher would have found the socket by now.
            return
        await self._feed.withdraw_all()
        reached("withdraw.unhealthy")
        self._service.refuse("the plugin is stopping")
        await first(self._service.idle(), self._clock.sleep(self._settings.allocate_timeout))
        await self._feed.drop_all_unheld()
        if self._broadcast.listeners:
            self._withdrawn = self._broadcast.opened

    async def _stop_server(self, server: grpc.aio.Server, socket: Path, drain: bool) -> None:
        """Let calls in flight end if their callers still wait, then end the streams and go.

        In this order: a kubelet whose list stream ends closes the connection, and the calls on it fail.
        """
        try:
            if drain:
                stopping = self._stopping.is_set()
                grace = self._settings.stop_grace if stopping else self._settings.allocate_timeout
                await first(self._service.idle(), self._clock.sleep(grace))
            pause = self._settings.stop_grace if drain else 0
            await first(self._broadcast.hang_up(), self._clock.sleep(pause))
        finally:
            try:
                await stop_server(server, _FLUSH if drain and not self._broadcast.listeners else None)
            finally:
                sockets.remove(socket)

    def _kubelet_replaced(self) -> None:
        self._failures = 0
        self._log.info(Event.KUBELET_REPLACED)

    async def _retry_later(self, reason: str, kubelet: Identity | None, seen: int) -> None:
        pause = min(self._settings.first_retry * 2**self._failures, self._settings.last_retry)
        self._failures = min(self._failures + 1, 16)
        self._log.warning(Event.PLUGIN_NOT_REGISTERED, reason=reason, retry_in=pause)
        woken_by = await first(
            self._stopping.wait(),
            self._again.beyond(seen),
            self._watch.differs(self._settings.paths.kubelet_socket, kubelet),
            self._clock.sleep(pause),
        )
        if woken_by == 2:
            self._kubelet_replaced()
