"""`colocate agent`: the process on every node. Joins configuration, metrics, control socket and plugins.

SIGTERM and SIGINT stop it, as kubelet.onStop says. SIGHUP reads the configuration again. A bad one is refused and
the old one stays. A good one adds, removes and changes mock resources, changes the log and the settings of memory,
GPUs and CPUs, and makes every plugin register again. The log names settings that need a restart of the agent.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from colocate import __version__, telemetry
from colocate.agent.device_bound import DeviceBound
from colocate.agent.schema import Config
from colocate.aio import Watched, first, with_signals
from colocate.clock import Clock, SystemClock
from colocate.devices.mock import control as mock_control
from colocate.devices.mock.plugin import MockPlugin
from colocate.errors import UserError
from colocate.gpus.agent import control as gpu_control
from colocate.gpus.agent import mock_faults
from colocate.http import metrics
from colocate.kubelet import DevicePlugin, Plugins
from colocate.kubelet.paths import KubeletPaths
from colocate.memory.agent import control as memory_control
from colocate.model.values import Address
from colocate.telemetry import Event
from colocate.wire import control_socket as control

if TYPE_CHECKING:
    from colocate.agent.nri import NriPart
    from colocate.gpus.agent.part import GpuPart
    from colocate.memory.agent.part import MemoryPart

_FIXED_AT_START = ("kubelet", "metrics", "control")


async def run_agent(
    load: Callable[[], Config], clock: Clock | None = None, *, warnings: Sequence[str] = ()
) -> None:
    """Run an agent until it is told to stop; `load` reads its configuration, now and on every SIGHUP."""
    config = load()
    telemetry.configure_logs(config.log.format, config.log.level)
    for warning in warnings:
        telemetry.logger().warning(Event.CONFIG_DOUBTFUL, reason=warning)
    await Agent(config, load, clock or SystemClock()).run()


class Agent:
    """One agent: its configuration and its plugins."""

    def __init__(self, config: Config, load: Callable[[], Config], clock: Clock) -> None:
        self._config = config
        self._load = load
        self._clock = clock
        self._mocks = {resource.name: MockPlugin(resource, clock) for resource in config.mock.resources}
        self._bound = DeviceBound(config)
        self._memory: MemoryPart | None = None
        if config.memory.enabled:
            self._memory = _memory_configuration().memory_part(config, clock, self._bound)
        self._gpus: GpuPart | None = None
        if config.gpus.enabled:
            self._gpus = _gpu_configuration().gpu_part(config, clock, self._bound)
        self._nri = _nri_part(config, clock) if config.cpus.nri.enabled else None
        plugins: list[DevicePlugin] = [*self._mocks.values()]
        if self._memory is not None and not self._memory.dry_run:
            plugins.append(self._memory.plugin)
        plugins += self._gpus.plugins if self._gpus is not None else ()
        self._plugins = Plugins(
            *plugins, settings=config.kubelet.settings(), clock=clock, check=self._bound.check
        )

    async def run(self) -> None:
        """Serve until a signal says stop."""
        log = telemetry.logger()
        hung_up = with_signals(stop=self._plugins.stop)
        async with metrics.serving(self._config.metrics.address) as address:
            services = (
                mock_control.service(self._mocks),
                memory_control.service(lambda: self._memory),
                gpu_control.service(lambda: self._gpus),
                mock_faults.service(lambda: self._gpus),
            )
            async with control.serving(self._config.control.socket, *services):
                log.info(
                    Event.AGENT_STARTED,
                    version=__version__,
                    resources=list(self._plugins.resources),
                    kubelet=str(self._config.kubelet.root),
                    metrics=address,
                    control=str(self._config.control.socket),
                )
                self._tell_if_idle()
                parts = [part.run() for part in (self._memory, self._gpus, self._nri) if part is not None]
                await first(self._plugins.run(), self._reload_on_demand(hung_up), *parts)
        log.info(Event.AGENT_STOPPED)

    async def _reload_on_demand(self, hung_up: Watched) -> None:
        """Reload after every SIGHUP, also after one that comes during a reload."""
        seen = 0
        while True:
            seen = await hung_up.beyond(seen)
            try:
                config = self._load()
                await self._bound.judge(config)
                if self._memory is not None:
                    _memory_configuration().take_settings(self._memory, config.memory)
                if self._gpus is not None:
                    _gpu_configuration().take_settings(self._gpus, config.gpus)
            except UserError as error:
                telemetry.logger().error(
                    Event.CONFIG_REFUSED, reason=str(error), effect="the old configuration stays in use"
                )
                continue
            await self._take(config)

    async def _take(self, new: Config) -> None:
        old, self._config = self._config, new
        self._bound.take(new)
        telemetry.configure_logs(new.log.format, new.log.level)
        wanted = {resource.name: resource for resource in new.mock.resources}
        removed = [name for name in self._mocks if name not in wanted]
        added = [name for name in wanted if name not in self._mocks]
        waiting = [name for name in _FIXED_AT_START if getattr(old, name) != getattr(new, name)]
        if self._memory is not None:
            waiting += _memory_configuration().fixed_differences(old.memory, new.memory)
        elif new.memory.enabled:
            waiting.append("memory.enabled")
        if self._gpus is not None:
            waiting += _gpu_configuration().fixed_differences(old.gpus, new.gpus)
        elif new.gpus.enabled:
            waiting.append("gpus.enabled")
        if self._nri is not None:
            waiting += await self._nri.placement.reload(new.cpus)
        elif new.cpus.nri.enabled:
            waiting.append("cpus.nri.enabled")
        telemetry.logger().info(
            Event.CONFIG_RELOADED,
            added=added,
            removed=removed,
            **({"at_next_start": waiting} if waiting else {}),
        )
        # Compare the next configuration with what the running parts were built from.
        kept = {name: getattr(old, name) for name in _FIXED_AT_START}
        self._config = msgspec.structs.replace(new, **kept, memory=old.memory, gpus=old.gpus)
        for name in removed:
            del self._mocks[name]
        await asyncio.gather(*(self._plugins.remove(name) for name in removed))
        for name, mock in self._mocks.items():
            mock.configure(wanted[name])
        await self._plugins.reload()
        for name in added:
            self._mocks[name] = MockPlugin(wanted[name], self._clock)
            self._plugins.add(self._mocks[name])
        self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        parts = (self._memory, self._gpus, self._nri)
        if not self._plugins.resources and all(part is None for part in parts):
            telemetry.logger().info(Event.AGENT_IDLE, reason="no resource is configured")


def _nri_part(config: Config, clock: Clock) -> "NriPart":
    """The part that places containers; imported only if placement is enabled. The agent serves its metrics."""
    from colocate.agent.nri import NriPart
    from colocate.kubelet.managers import check_managers

    kubelet = KubeletPaths(config.kubelet.root)
    check_managers(kubelet)
    return NriPart(msgspec.structs.replace(config.cpus, metrics=Address("off")), clock, kubelet)


def _memory_configuration() -> ModuleType:
    """The constructor of the memory part; imported only if memory is enabled, because it loads the API client."""
    from colocate.agent import memory_part as configuration

    return configuration


def _gpu_configuration() -> ModuleType:
    """The constructor of the GPU part; imported only if GPUs are shared."""
    from colocate.agent import gpu_part as configuration

    return configuration
