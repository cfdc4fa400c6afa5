"""`colocate nri`: the process that places containers on CPUs as an NRI plugin of the container runtime.

The agent can run the plugin, too (cpus.nri.enabled). SIGTERM and SIGINT stop it, and containers keep their CPUs.
SIGHUP reads the configuration again; a bad one is refused, and the old one stays in use. It needs neither the API
server nor Prometheus.
"""

from collections.abc import Callable

from colocate import __version__, telemetry
from colocate.agent.schema import Config
from colocate.aio import Watched, first, with_signals
from colocate.clock import Clock, SystemClock
from colocate.cpus.placer.part import PlacementPart
from colocate.cpus.placer.section import CpusSection
from colocate.kubelet.managers import check_managers
from colocate.kubelet.paths import KubeletPaths
from colocate.runtime.nri_plugin import NriPlugin
from colocate.runtime.nri_session import PluginIdentity
from colocate.telemetry import Event


class NriPart:
    """A placer that is connected to its runtime by NRI."""

    def __init__(
        self, section: CpusSection, clock: Clock | None = None, kubelet: KubeletPaths | None = None
    ) -> None:
        """UserError if another placer has the state."""
        self.placement = PlacementPart(section, clock, kubelet)
        self._plugin = NriPlugin(
            self.placement.placer,
            clock or SystemClock(),
            socket=section.nri.socket,
            identity=PluginIdentity(index=section.nri.index),
        )
        self.placement.begin()

    async def run(self) -> None:
        """Run until cancelled."""
        await first(self.placement.run(), self._plugin.run())


async def run_nri(load: Callable[[], Config], paths: KubeletPaths) -> None:
    """Run until SIGTERM or SIGINT; `load` reads the configuration, now and on SIGHUP."""
    config = load()
    telemetry.configure_logs(config.log.format, config.log.level)
    check_managers(paths)
    stop = Watched()
    hung_up = with_signals(stop=stop.changed)
    part = NriPart(config.cpus, kubelet=paths)
    telemetry.logger().info(
        Event.NRI_STARTED,
        version=__version__,
        socket=str(config.cpus.nri.socket),
        policy=config.cpus.policy,
    )
    await first(stop.beyond(0), part.run(), part.placement.reload_on_demand(hung_up, load))
    telemetry.logger().info(Event.NRI_STOPPED)
