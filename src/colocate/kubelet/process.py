"""A process of device plugins: any number of them, one event loop, the signals a container gets."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from colocate import telemetry
from colocate.clock import Clock, SystemClock
from colocate.errors import exit_on_user_error
from colocate.kubelet.endpoint import Endpoint
from colocate.kubelet.holders import Holders
from colocate.kubelet.plugin import DevicePlugin
from colocate.kubelet.settings import OnStop, Registration, Settings
from colocate.kubelet.watch import FolderWatch


class Plugins:
    """Several plugins that live and stop together; others may join and leave meanwhile."""

    def __init__(
        self, *plugins: DevicePlugin, settings: Settings | None = None, clock: Clock | None = None
    ) -> None:
        self.settings = settings or Settings()
        self._clock = clock or SystemClock()
        paths = self.settings.paths
        by_call = self.settings.registration is Registration.REGISTER
        self._watch = FolderWatch(paths.device_plugins if by_call else paths.plugins_registry, self._clock)
        self._holders = Holders(paths)
        self.endpoints = [self._endpoint(plugin) for plugin in plugins]
        self._serving: dict[Endpoint, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serve every plugin until `stop`."""
        async with asyncio.TaskGroup() as self._tasks:
            watching = self._tasks.create_task(self._watch.run())
            for endpoint in self.endpoints:
                self._start(endpoint)
            await self._stopping.wait()
            while self._serving:
                await asyncio.wait(self._serving.values())
            watching.cancel()

    def stop(self) -> None:
        """Begin to stop; `run` returns when all have stopped."""
        self._stopping.set()
        for endpoint in self.endpoints:
            endpoint.stop()

    def add(self, plugin: DevicePlugin) -> None:
        """Serve one more plugin."""
        endpoint = self._endpoint(plugin)
        self.endpoints.append(endpoint)
        if self._stopping.is_set():
            endpoint.stop()
        if self._tasks is not None:
            self._start(endpoint)

    async def remove(self, resource: str) -> None:
        """Stop the plugin of a resource for good: its devices are withdrawn, whatever the settings say."""
        endpoint = next(endpoint for endpoint in self.endpoints if endpoint.resource == resource)
        self.endpoints.remove(endpoint)
        endpoint.stop(OnStop.WITHDRAW)
        if endpoint in self._serving:
            await asyncio.wait([self._serving[endpoint]])

    async def reload(self) -> None:
        """Let every plugin re-read its configuration and register again."""
        for endpoint in self.endpoints:
            await endpoint.reload()

    def _endpoint(self, plugin: DevicePlugin) -> Endpoint:
        return Endpoint(plugin, self.settings, self._clock, self._watch, self._holders)

    def _start(self, endpoint: Endpoint) -> None:
        assert self._tasks is not None
        task = self._serving[endpoint] = self._tasks.create_task(endpoint.run())
        task.add_done_callback(lambda _: self._serving.pop(endpoint))


async def serve(*plugins: DevicePlugin, settings: Settings | None = None) -> None:
    """Serve plugins in a running event loop until SIGTERM or SIGINT; SIGHUP reloads them."""
    group = Plugins(*plugins, settings=settings)
    with_signals(stop=group.stop, reload=group.reload)
    await group.run()


def with_signals(stop: Callable[[], None], reload: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """SIGTERM and SIGINT call `stop`; SIGHUP starts `reload`, one at a time."""
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    def hang_up() -> None:
        if not running:
            task = loop.create_task(reload())
            running.add(task)
            task.add_done_callback(running.discard)

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, stop)
    loop.add_signal_handler(signal.SIGHUP, hang_up)


def run(*plugins: DevicePlugin, settings: Settings | None = None) -> None:
    """Run plugins as this process, with logs on standard error. This is a plugin's whole main()."""
    telemetry.configure_logs()
    with exit_on_user_error():
        uvloop.run(serve(*plugins, settings=settings))
