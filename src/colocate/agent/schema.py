"""The configuration file of an agent: its sections, with those of the capabilities.

msgspec reads the types, with those of `model.values`; `check` says what a type cannot: ranges, names, and what goes
with what. `configuration` reads a file.
"""

from pathlib import Path

from colocate.config.document import VERSION
from colocate.config.process_sections import Log, Metrics
from colocate.cpus.placer.section import CpusSection
from colocate.devices.mock.section import Mock
from colocate.gpus.agent.section import GpusSection
from colocate.kubelet import OnStop, Registration, Settings
from colocate.kubelet.paths import DEFAULT_ROOT, KubeletPaths
from colocate.memory.agent.section import MemorySection
from colocate.model.values import Seconds, Section


class Kubelet(Section, frozen=True):
    """How the agent finds the kubelet and registers with it."""

    root: Path = DEFAULT_ROOT
    """The kubelet's folder, with device-plugins/kubelet.sock in it."""
    registration: Registration = Registration.REGISTER
    on_stop: OnStop = OnStop.KEEP
    allocate_timeout: Seconds = Seconds(10)
    """How long a device may take to answer Allocate before the container is refused."""

    def settings(self) -> Settings:
        """The settings of the device-plugin SDK."""
        # A withdrawn id must stay until no Allocate can ask for it any more.
        linger = max(Settings().linger, self.allocate_timeout + 5)
        return Settings(
            paths=KubeletPaths(self.root),
            registration=self.registration,
            on_stop=self.on_stop,
            allocate_timeout=self.allocate_timeout,
            linger=linger,
        )


DEFAULT_CONTROL_SOCKET = Path("/run/colocate/agent.sock")


class Control(Section, frozen=True):
    """Where commands such as `colocate mock` reach the agent."""

    socket: Path = DEFAULT_CONTROL_SOCKET


class Config(Section, frozen=True):
    """The whole configuration of `colocate agent`."""

    version: int = VERSION
    kubelet: Kubelet = Kubelet()
    log: Log = Log()
    metrics: Metrics = Metrics()
    control: Control = Control()
    mock: Mock = Mock()
    memory: MemorySection = MemorySection()
    cpus: CpusSection = CpusSection()
    gpus: GpusSection = GpusSection()
