"""What an agent can be told: the configuration file's fields, their types and their defaults.

The types are read by msgspec, with those of `values`; what a type cannot say (ranges, names, what goes with what) is
checked in `check_settings`. Nothing here opens a file; see `file`.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from colocate.apps.config.gpus import GpusSection
from colocate.apps.config.values import Address, CpuAmount, Seconds, Section, Share, Size, plain
from colocate.cpus import BurstLevel
from colocate.kubelet import OnStop, Registration, Settings
from colocate.kubelet.paths import DEFAULT_ROOT, KubeletPaths
from colocate.memory import (
    Forecast,
    Instant,
    Koordinator,
    KoordinatorPolicy,
    MemorySettings,
    PageCache,
    Rung,
    WindowMax,
    check_settings,
)
from colocate.model.device import Allocation

VERSION = 1
"""The version of the configuration that this release reads."""


class Kubelet(Section, frozen=True):
    """How the agent meets the kubelet."""

    root: Path = DEFAULT_ROOT
    """The kubelet's folder, with device-plugins/kubelet.sock in it."""
    registration: Registration = Registration.REGISTER
    on_stop: OnStop = OnStop.KEEP
    allocate_timeout: Seconds = Seconds(10)
    """How long a device may take to answer Allocate before the container is turned away."""

    def settings(self) -> Settings:
        """The same for the device-plugin SDK."""
        # A withdrawn id must outlive every Allocate that may still ask for it.
        linger = max(Settings().linger, self.allocate_timeout + 5)
        return Settings(
            paths=KubeletPaths(self.root),
            registration=self.registration,
            on_stop=self.on_stop,
            allocate_timeout=self.allocate_timeout,
            linger=linger,
        )


class LogFormat(StrEnum):
    """How log lines look; `auto` is text on a terminal and JSON elsewhere."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least important events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Log(Section, frozen=True):
    """What the agent writes to standard error."""

    format: LogFormat = LogFormat.AUTO
    level: LogLevel = LogLevel.INFO


class Metrics(Section, frozen=True):
    """The Prometheus endpoint; off unless an address is given, so that two agents never clash."""

    address: Address = Address("off")


DEFAULT_CONTROL_SOCKET = Path("/run/colocate/agent.sock")


class Control(Section, frozen=True):
    """Where `colocate mock` and its like reach the agent."""

    socket: Path = DEFAULT_CONTROL_SOCKET


class Spread(StrEnum):
    """How devices are spread over NUMA nodes."""

    INTERLEAVE = "interleave"
    """Device i is near node i modulo n; stays as it is when the count grows."""
    BLOCKS = "blocks"
    """The first devices are near the first node, the next near the second."""


class Numa(Section, frozen=True):
    """The NUMA nodes that devices are near to."""

    nodes: tuple[int, ...]
    spread: Spread = Spread.INTERLEAVE


class MockResource(Section, frozen=True):
    """A resource with devices that do not exist: `count` of them, or those in `ids`."""

    name: str
    count: int | None = None
    ids: tuple[str, ...] | None = None
    id_prefix: str | None = None
    """Put before the number of each device where `count` is given; the last part of the name by default."""
    numa: Numa | None = None
    inject: Allocation = Allocation()
    """What a container gets with its devices. Values may hold {ids}, {count} and {resource}."""


class Mock(Section, frozen=True):
    """Mock devices."""

    resources: tuple[MockResource, ...] = ()


class ForecastKind(StrEnum):
    """How the memory that online work will use is guessed."""

    INSTANT = "instant"
    """What it uses now."""
    WINDOW_MAX = "window-max"
    """The most that it used in a window of the past."""
    KOORDINATOR = "koordinator"
    """As Koordinator's batch-memory does."""


class ForecastSection(Section, frozen=True):
    """What online work is expected to use."""

    kind: ForecastKind = ForecastKind.WINDOW_MAX
    window: Seconds = Seconds(24 * 3600)
    """Of window-max."""
    policy: KoordinatorPolicy = KoordinatorPolicy.USAGE
    threshold: Share = Share(0.65)
    """Of koordinator: how much of the node may be in use."""

    def forecast(self) -> Forecast:
        """The same for those who decide."""
        match self.kind:
            case ForecastKind.INSTANT:
                return Instant()
            case ForecastKind.WINDOW_MAX:
                return WindowMax(window=float(self.window))
            case ForecastKind.KOORDINATOR:
                return Koordinator(policy=self.policy, threshold=float(self.threshold) * 100)


_SOLD = MemorySettings()


class MemorySection(Section, frozen=True):
    """Idle memory of the node, sold in blocks. A field that `MemorySettings` also has is passed on to it by name."""

    enabled: bool = False
    resource: str = _SOLD.resource
    block_size: Size = Size(_SOLD.block_size)
    namespaces: tuple[str, ...] = _SOLD.namespaces
    """Whose pods may use blocks; all where none is named."""
    refresh: Seconds = Seconds(10)
    forecast: ForecastSection = ForecastSection()
    page_cache: PageCache = _SOLD.page_cache
    margin: Share = Share(_SOLD.margin)
    cool_down: Seconds = Seconds(_SOLD.cool_down)
    hysteresis: int = _SOLD.hysteresis
    swap: bool = _SOLD.swap
    without: tuple[Rung, ...] = _SOLD.without
    """Rungs of the ladder that are never used."""
    far_nodes: tuple[int, ...] | None = _SOLD.far_nodes
    """NUMA nodes that pages may go to; not given: those without CPUs."""
    demotion: bool = _SOLD.demotion
    """Whether the kernel's demotion may be switched on for the far rung."""
    migration_rate: Size = Size(256 << 20)
    """Bytes a second."""
    move_expiry: Seconds = Seconds(3600)
    """How long a pod that is to be created again on another node is tried for."""
    state_folder: Path = Path("/var/lib/colocate")
    cgroup_root: str = ""
    """The control group below which pods are looked for; empty: anywhere."""
    node: str = ""
    """This node's name in the cluster; empty: NODE_NAME, or the host's name."""
    kubeconfig: str = ""
    """How to reach the cluster; empty: KUBECONFIG, ~/.kube/config, or the pod's service account."""
    dry_run: bool = False

    def settings(self) -> MemorySettings:
        """The same for those who decide; UserError where they would not have it."""
        shared = set(self.__struct_fields__) & set(_SOLD.__struct_fields__) - {"forecast"}
        # Plain numbers: they come back in states and reports.
        given = {name: plain(getattr(self, name)) for name in shared}
        return check_settings(msgspec.structs.replace(_SOLD, forecast=self.forecast.forecast(), **given))


class CpuPolicy(StrEnum):
    """Who decides which CPUs a container runs on."""

    TOPOLOGY = "topology"
    """The placer, by the machine's topology."""
    NONE = "none"
    """Nobody: every container runs on all CPUs."""


class CpuPoolSection(Section, frozen=True):
    """CPUs for the containers of some namespaces: a list, or so many."""

    name: str
    namespaces: tuple[str, ...]
    cpus: str = ""
    size: int = 0


class CpuDefaults(Section, frozen=True):
    """Wishes of pods that have none of their own."""

    guaranteed: str = ""
    burstable: str = ""
    best_effort: str = ""
    namespaces: Mapping[str, str] = {}
    """By namespace; they go before those of the QoS class."""


DEFAULT_STATE_FOLDER = Path("/var/lib/colocate")
DEFAULT_CPUS_SOCKET = Path("/run/colocate/cpus.sock")
DEFAULT_NRI_SOCKET = Path("/var/run/nri/nri.sock")


class NriSection(Section, frozen=True):
    """How containers are placed by NRI."""

    enabled: bool = False
    """Whether the agent places them; `colocate nri` does in any case."""
    socket: Path = DEFAULT_NRI_SOCKET
    index: str = "90"
    """Two digits: the runtime asks plugins of lower ones before."""


class CpusSection(Section, frozen=True):
    """Where containers are placed: for `colocate cri-proxy`, `colocate nri` and the agent alike."""

    policy: CpuPolicy = CpuPolicy.TOPOLOGY
    reserved: CpuAmount = CpuAmount(0)
    """For the system, rounded up to whole CPUs."""
    reserved_cpus: str = ""
    """The same as a list."""
    reserved_namespaces: tuple[str, ...] = ("kube-system",)
    pools: tuple[CpuPoolSection, ...] = ()
    wish_namespaces: tuple[str, ...] = ()
    """Whose pods may wish for exclusive or isolated CPUs, or for strict placement."""
    exclusive_guaranteed: bool = True
    burst: BurstLevel = BurstLevel.CCX
    spread: bool = False
    pin_memory: bool = True
    defaults: CpuDefaults = CpuDefaults()
    state_folder: Path = DEFAULT_STATE_FOLDER
    socket: Path = DEFAULT_CPUS_SOCKET
    """Where `colocate cpus` reaches whoever places containers."""
    metrics: Address = Address("off")
    """Of `colocate cri-proxy` and `colocate nri`; the agent has its own."""
    nri: NriSection = NriSection()
    publish: bool = False
    """Whether the node's annotation tells schedulers which CCXs have room."""
    node: str = ""
    """This node's name in the cluster; empty: NODE_NAME, or the host's name."""
    kubeconfig: str = ""
    """How to reach the cluster, to publish; empty: KUBECONFIG, ~/.kube/config, or the pod's service account."""
    topology: str = ""
    """For tests: decide as for this made machine or dump; cpusets are clipped to what exists."""


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
