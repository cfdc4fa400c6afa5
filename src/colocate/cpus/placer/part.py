"""The placer as a part of a process: built from the configuration, run, reloaded."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Protocol

from colocate import telemetry
from colocate.aio import Watched, first
from colocate.clock import Clock, SystemClock
from colocate.config.process_sections import Log
from colocate.cpus.placer.machine import PlacementMachine
from colocate.cpus.placer.placer import Placer
from colocate.cpus.placer.report import PLACER, placer_service
from colocate.cpus.placer.section import CpusSection
from colocate.cpus.placer.store import PlacementStore
from colocate.cpus.placer.upkeep import Upkeep
from colocate.errors import UserError
from colocate.host.cpu_topology import read_topology
from colocate.http import metrics
from colocate.kubelet.paths import KubeletPaths
from colocate.model.cpu_shapes import machine, parse_shape
from colocate.model.cpu_topology import CpuTopology
from colocate.telemetry import Event
from colocate.wire import control_socket as control


class PlacementConfig(Protocol):
    """The sections of a configuration that a placer reads."""

    @property
    def log(self) -> Log: ...

    @property
    def cpus(self) -> CpusSection: ...


class PlacementPart:
    """A placer with its upkeep and its control socket.

    Call `begin`, connect `placer` to a runtime (CRI proxy or NRI plugin), and run `run` beside it.
    """

    def __init__(
        self, section: CpusSection, clock: Clock | None = None, kubelet: KubeletPaths | None = None
    ) -> None:
        """`kubelet`, if given, is asked about devices that sysfs does not know."""
        self._section = section
        """The section at the start."""
        self._wanted = section
        """The section as last reloaded."""
        self._reloaded = Watched()
        made = made_machine(section.topology)
        self.placer = Placer(
            section,
            PlacementStore(section.state_folder),
            PlacementMachine(decide_for=made, kubelet=kubelet, clock=clock),
            clock or SystemClock(),
        )
        self._upkeep = Upkeep(self.placer)

    def begin(self) -> None:
        """Restore the stored state; UserError if another placer has it."""
        self.placer.keeper.begin()

    async def run(self) -> None:
        """Write, audit and answer `colocate cpus` until cancelled."""
        section = self._section
        service = placer_service(self.placer, section.topology)
        try:
            async with AsyncExitStack() as stack:
                servers: tuple[AbstractAsyncContextManager[object], ...] = (
                    metrics.serving(section.metrics),
                    control.serving(section.socket, service, peer=PLACER),
                )
                for server in servers:
                    try:
                        await stack.enter_async_context(server)
                    except UserError as error:
                        # Go on without metrics or control socket: no container could start without this process.
                        telemetry.logger().error(Event.PLACEMENT_DOUBTFUL, reason=str(error))
                await first(self._upkeep.run(), self._publish())
        finally:
            self.placer.keeper.close()

    async def _publish(self) -> None:
        """Publish once the configuration asks for it; the API client is loaded only then."""
        seen = 0
        while not self._wanted.publish:
            seen = await self._reloaded.beyond(seen)
        from colocate.cpus.placer.publication import publish

        await publish(lambda: self._wanted, self._reloaded, self.placer.keeper)

    async def reload_on_demand(self, hung_up: Watched, load: Callable[[], PlacementConfig]) -> None:
        """Reload after every SIGHUP; a SIGHUP during a reload causes another reload."""
        seen = 0
        while True:
            seen = await hung_up.beyond(seen)
            try:
                config = load()
            except UserError as error:
                telemetry.logger().error(
                    Event.CONFIG_REFUSED, reason=str(error), effect="the old configuration stays in use"
                )
                continue
            telemetry.configure_logs(config.log.format, config.log.level)
            waiting = await self.reload(config.cpus)
            telemetry.logger().info(Event.CONFIG_RELOADED, **({"at_next_start": waiting} if waiting else {}))

    async def reload(self, section: CpusSection) -> list[str]:
        """Apply another configuration; returns the changed fields that only count after a restart."""
        await self.placer.keeper.reconfigure(section)
        self._wanted = section
        self._reloaded.changed()
        fixed = ("state_folder", "socket", "metrics", "nri", "topology")
        return [f"cpus.{name}" for name in fixed if getattr(section, name) != getattr(self._section, name)]


def made_machine(name: str) -> CpuTopology | None:
    """The made machine of `cpus.topology`: a shape or the path of a dump; None for the real machine."""
    if not name:
        return None
    if "/" in name:
        return read_topology(Path(name))
    try:
        return machine(parse_shape(name))
    except ValueError as error:
        raise UserError(f"cpus.topology: {error}, or the path of a dump") from error
