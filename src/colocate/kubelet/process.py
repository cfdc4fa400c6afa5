"""A process of device plugins: any number of them, one event loop, the signals a container gets."""

import asyncio
import signal
from collections.abc import Callable

import uvloop

from colocate import telemetry
from colocate.aio import Watched, first
from colocate.clock import Clock, SystemClock
from colocate.errors import exit_on_user_error
from colocate.kubelet.endpoint import Endpoint
from colocate.kubelet.holders import Holders
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.plugin import DevicePlugin
from colocate.kubelet.settings import OnStop, Registration, Settings
from colocate.kubelet.watch import FolderWatch


class Plugins:
    """Several plugins that live and stop together; others may join and leave meanwhile."""

    def __init__(
        self, *plugins: DevicePlugin, settings: Settings | None = None, clock: Clock | None = None
    ) -> None:
        self.settings = settings or Settings(paths=KubeletPaths.from_environment())
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
    hung_up = with_signals(stop=group.stop)
    await first(group.run(), _reload_on_demand(group, hung_up))


def with_signals(stop: Callable[[], None]) -> Watched:
    """SIGTERM and SIGINT call `stop`; SIGHUP is counted in what is returned, for someone to wait on."""
    loop = asyncio.get_running_loop()
    hung_up = Watched()
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, stop)
    loop.add_signal_handler(signal.SIGHUP, hung_up.changed)
    return hung_up


async def _reload_on_demand(group: Plugins, hung_up: Watched) -> None:
    seen = 0
    while True:
        seen = await hung_up.beyond(seen)
        await group.reload()


def run(*plugins: DevicePlugin, settings: Settings | None = None) -> None:
    """Run plugins as this process, with logs on standard error. This is a plugin's whole main()."""
    telemetry.configure_logs()
    with exit_on_user_error():
        uvloop.run(serve(*plugins, settings=settings))
