"""The placer with all that belongs to it, for the process of a way in: made from the configuration, run, reloaded."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Protocol

from colocate import telemetry
from colocate.aio import Watched, first
from colocate.clock import Clock, SystemClock
from colocate.config.process_sections import Log
from colocate.cpus.placer import control as placement_control
from colocate.cpus.placer import section as cpus_check
from colocate.cpus.placer.machine import PlacementMachine
from colocate.cpus.placer.placer import Placer
from colocate.cpus.placer.policy import PlacementPolicy
from colocate.cpus.placer.requests import WishDefaults
from colocate.cpus.placer.section import CpuPolicy, CpusSection
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
    """The configuration of a process that places containers, as far as a placer reads it."""

    @property
    def log(self) -> Log: ...

    @property
    def cpus(self) -> CpusSection: ...


class PlacementPart:
    """A placer that keeps itself, and answers `colocate cpus`.

    Call `begin`, give `placer` to a way in, and run `run` beside it.
    """

    def __init__(
        self, section: CpusSection, clock: Clock | None = None, kubelet: KubeletPaths | None = None
    ) -> None:
        """`kubelet` is asked about devices that sysfs does not know, where it is given."""
        self._section = section
        """As at the start."""
        self._wanted = section
        """As last reloaded."""
        self._reloaded = Watched()
        made = made_machine(section.topology)
        self.placer = Placer(
            policy_of(section),
            PlacementStore(section.state_folder),
            PlacementMachine(decide_for=made, kubelet=kubelet, clock=clock),
            clock or SystemClock(),
        )
        self._upkeep = Upkeep(self.placer)

    def begin(self) -> None:
        """Take the state up; UserError where another placer has it."""
        self.placer.begin()

    async def run(self) -> None:
        """Until cancelled: write, audit, and answer."""
        section = self._section
        service = placement_control.service(self.placer, section.topology)
        try:
            async with AsyncExitStack() as stack:
                ways: tuple[AbstractAsyncContextManager[object], ...] = (
                    metrics.serving(section.metrics),
                    control.serving(section.socket, service, peer=placement_control.PLACER),
                )
                for way in ways:
                    try:
                        await stack.enter_async_context(way)
                    except UserError as error:
                        # Without it nobody can look; without the process no container would start.
                        telemetry.logger().error(Event.PLACEMENT_DOUBTFUL, reason=str(error))
                await first(self._upkeep.run(), self._publish())
        finally:
            self.placer.close()

    async def _publish(self) -> None:
        """Nothing, until it is wanted: the API client is loaded only then."""
        seen = 0
        while not self._wanted.publish:
            seen = await self._reloaded.beyond(seen)
        from colocate.cpus.placer.publication import publish

        await publish(lambda: self._wanted, self._reloaded, self.placer)

    async def reload_on_demand(self, hung_up: Watched, load: Callable[[], PlacementConfig]) -> None:
        """Reload after every SIGHUP; one that comes during a reload is answered by another."""
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
        """Go on by another configuration; returns the fields that wait for the next start."""
        await self.placer.reconfigure(policy_of(section))
        self._wanted = section
        self._reloaded.changed()
        fixed = ("state_folder", "socket", "metrics", "nri", "topology")
        return [f"cpus.{name}" for name in fixed if getattr(section, name) != getattr(self._section, name)]


def policy_of(section: CpusSection) -> PlacementPolicy:
    """What the configuration means."""
    return PlacementPolicy(
        active=section.policy is CpuPolicy.TOPOLOGY,
        settings=cpus_check.settings(section),
        defaults=WishDefaults(
            namespaces=cpus_check.namespace_wishes(section), classes=cpus_check.class_wishes(section)
        ),
    )


def made_machine(name: str) -> CpuTopology | None:
    """A machine to decide for that does not exist: a shape, or the path of a dump; None for this one."""
    if not name:
        return None
    if "/" in name:
        return read_topology(Path(name))
    try:
        return machine(parse_shape(name))
    except ValueError as error:
        raise UserError(f"cpus.topology: {error}, or the path of a dump") from error
