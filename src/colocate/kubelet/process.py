"""Runs any number of device plugins in one process: one event loop, and the signals that a container gets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import uvloop
from prometheus_client import REGISTRY, CollectorRegistry

from colocate import startup, telemetry
from colocate.aio import Watched, first, with_signals, without_signals
from colocate.clock import Clock, SystemClock
from colocate.errors import UserError, exit_on_user_error
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.plugin import DevicePlugin
from colocate.kubelet.settings import OnStop, Registration, Settings
from colocate.kubelet.watch import FolderWatch

if TYPE_CHECKING:
    from colocate.kubelet.endpoint import Endpoint

LogStyle: TypeAlias = Literal["auto", "json", "text"]
"""How `run` logs: JSON, one object a line; readable text; or text on a terminal and JSON elsewhere."""


class Plugins:
    """Several plugins that run and stop together; others may join and leave meanwhile.

    For a program with its own event loop and signals; `run` and `serve` use it. `metrics` is the prometheus-client
    registry for the SDK's metrics; None registers them nowhere. `check` is awaited before every registration, which
    waits while it raises; a `UserError` before the first registration ends `run`.
    """

    settings: Settings
    """The settings with which all plugins are served."""

    def __init__(
        self,
        *plugins: DevicePlugin,
        settings: Settings | None = None,
        clock: Clock | None = None,
        metrics: CollectorRegistry | None = REGISTRY,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        # Imported here, because a program may have to set something before gRPC is loaded.
        startup.load_grpc()
        from colocate.kubelet.holders import Holders

        if metrics is not None:
            telemetry.register_plugin_metrics(metrics)
        self.settings = settings or Settings(paths=KubeletPaths.from_environment())
        self._clock = clock or SystemClock()
        self._check = check
        paths = self.settings.paths
        by_call = self.settings.registration is Registration.REGISTER
        self._watch = FolderWatch(paths.device_plugins if by_call else paths.plugins_registry, self._clock)
        self._holders = Holders(paths, self._clock)
        self._endpoints: list[Endpoint] = []
        for plugin in plugins:
            self._endpoints.append(self._endpoint(plugin))
        self._serving: dict[Endpoint, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources that are served."""
        return tuple(endpoint.resource for endpoint in self._endpoints)

    async def run(self) -> None:
        """Serve every plugin until `stop`."""
        async with asyncio.TaskGroup() as self._tasks:
            watching = self._tasks.create_task(self._watch.run())
            for endpoint in self._endpoints:
                self._start(endpoint)
            await self._stopping.wait()
            while self._serving:
                await asyncio.wait(self._serving.values())
            watching.cancel()

    def stop(self) -> None:
        """Begin to stop; `run` returns when all have stopped."""
        self._stopping.set()
        for endpoint in self._endpoints:
            endpoint.stop()

    def add(self, plugin: DevicePlugin) -> None:
        """Serve one more plugin."""
        endpoint = self._endpoint(plugin)
        self._endpoints.append(endpoint)
        if self._stopping.is_set():
            endpoint.stop()
        if self._tasks is not None:
            self._start(endpoint)

    async def remove(self, resource: str) -> None:
        """Stop the plugin of a resource for good, and withdraw its devices whatever the settings say."""
        endpoint = next(endpoint for endpoint in self._endpoints if endpoint.resource == resource)
        self._endpoints.remove(endpoint)
        endpoint.stop(OnStop.WITHDRAW)
        if endpoint in self._serving:
            await asyncio.wait([self._serving[endpoint]])

    async def reload(self) -> None:
        """Let every plugin re-read its configuration and register again."""
        await asyncio.gather(*(endpoint.reload() for endpoint in self._endpoints))

    def _endpoint(self, plugin: DevicePlugin) -> "Endpoint":
        from colocate.kubelet.endpoint import Endpoint

        made = Endpoint(plugin, self.settings, self._clock, self._watch, self._holders, self._check)
        if any(other.resource == made.resource for other in self._endpoints):
            raise UserError(
                f"two plugins serve {made.resource}, but a kubelet listens to one; give one of them another "
                "name"
            )
        return made

    def _start(self, endpoint: "Endpoint") -> None:
        assert self._tasks is not None
        task = self._serving[endpoint] = self._tasks.create_task(endpoint.run())
        task.add_done_callback(lambda _: self._serving.pop(endpoint))


async def serve(
    *plugins: DevicePlugin, settings: Settings | None = None, metrics: CollectorRegistry | None = REGISTRY
) -> None:
    """Serve plugins in a running event loop until SIGTERM or SIGINT; SIGHUP reloads them.

    The handlers of the three signals are removed when it returns.
    """
    group = Plugins(*plugins, settings=settings, metrics=metrics)
    hung_up = with_signals(stop=group.stop)
    try:
        await first(group.run(), _reload_on_demand(group, hung_up))
    finally:
        without_signals()


async def _reload_on_demand(group: Plugins, hung_up: Watched) -> None:
    seen = 0
    while True:
        seen = await hung_up.beyond(seen)
        await group.reload()


def run(
    *plugins: DevicePlugin,
    settings: Settings | None = None,
    logs: LogStyle | None = "auto",
    metrics: CollectorRegistry | None = REGISTRY,
) -> None:
    """Run plugins as this process, until SIGTERM or SIGINT. This is a plugin's whole main().

    `logs` is how to log to standard error: `json`, `text`, or `auto`, which is text on a terminal. If structlog is
    already configured, or `logs` is None, logging is not configured. `metrics` is the prometheus-client registry
    for the SDK's metrics; None registers them nowhere.
    """
    with exit_on_user_error():
        if logs is not None:
            _configure_logs(logs)
        uvloop.run(serve(*plugins, settings=settings, metrics=metrics))


def _configure_logs(style: str) -> None:
    styles = get_args(LogStyle)
    if style not in styles:
        raise UserError(f"logs={style!r} is not known; use one of {', '.join(map(repr, styles))}, or None")
    telemetry.configure_logs_once(style)
