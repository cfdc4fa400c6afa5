"""The section `memory` of the agent's configuration: what decisions read (`MemoryOffer`) and what the agent needs."""

from enum import StrEnum
from pathlib import Path

from colocate.config.words import Problem, show
from colocate.errors import UserError
from colocate.memory import (
    Forecast,
    Instant,
    Koordinator,
    KoordinatorPolicy,
    MemoryOffer,
    MemorySettings,
    WindowMax,
    check_settings,
)
from colocate.model.values import Seconds, Section, Share, Size

_MAX_NODE = 1023
"""The highest number of a NUMA node that Linux allows."""


class ForecastKind(StrEnum):
    """How the agent predicts the memory that online work will use."""

    INSTANT = "instant"
    """What it uses now."""
    WINDOW_MAX = "window-max"
    """The most that it used in a window of the past."""
    KOORDINATOR = "koordinator"
    """As Koordinator's batch-memory does."""


class ForecastSection(Section, frozen=True):
    """What online work is expected to use."""

    kind: ForecastKind = ForecastKind.WINDOW_MAX
    window: Seconds = Seconds(WindowMax().window)
    """Of window-max."""
    policy: KoordinatorPolicy = Koordinator().policy
    threshold: Share = Share(Koordinator().threshold / 100)
    """Of koordinator: how much of the node may be in use."""

    def forecast(self) -> Forecast:
        """The forecast of this kind, with the fields that belong to it."""
        match self.kind:
            case ForecastKind.INSTANT:
                return Instant()
            case ForecastKind.WINDOW_MAX:
                return WindowMax(window=float(self.window))
            case ForecastKind.KOORDINATOR:
                return Koordinator(policy=self.policy, threshold=float(self.threshold) * 100)


class MemorySection(MemoryOffer, frozen=True):
    """Idle memory of the node, sold in blocks."""

    enabled: bool = False
    refresh: Seconds = Seconds(10)
    """Time between two turns."""
    forecast: ForecastSection = ForecastSection()
    migration_rate: Size = Size(256 << 20)
    """Bytes per second at which pages move to other NUMA nodes."""
    move_expiry: Seconds = Seconds(3600)
    """How long the agent tries to create a pod again on another node."""
    state_folder: Path = Path("/var/lib/colocate")
    cgroup_root: str = ""
    """The control group below which pods are looked for; empty: anywhere."""
    node: str = ""
    """This node's name in the cluster; empty: NODE_NAME, or the host's name."""
    kubeconfig: str = ""
    """How to reach the cluster; empty: KUBECONFIG, ~/.kube/config, or the pod's service account."""
    dry_run: bool = False

    def settings(self) -> MemorySettings:
        """What decisions read of it; UserError where a value is not allowed."""
        offer = {name: getattr(self, name) for name in MemoryOffer.__struct_fields__}
        return check_settings(MemorySettings(**offer, forecast=self.forecast.forecast()))


def check_memory(memory: MemorySection) -> None:
    """Raise a Problem where an agent could not run with this section."""
    if not 1 <= memory.refresh <= 60:
        raise Problem("memory.refresh", f"{memory.refresh:g}s is out of range; choose 1s to 1m")
    if memory.migration_rate < 1 << 20:
        raise Problem("memory.migrationRate", f"{memory.migration_rate} bytes a second; give at least 1Mi")
    if not 60 <= memory.move_expiry <= 7 * 86400:
        raise Problem("memory.moveExpiry", f"{memory.move_expiry:g}s is out of range; choose 1m to 168h")
    if not memory.state_folder.is_absolute():
        raise Problem(
            "memory.stateFolder",
            f"{show(str(memory.state_folder))} is not an absolute path; begin it with '/'",
        )
    if Path(memory.cgroup_root).is_absolute() or ".." in Path(memory.cgroup_root).parts:
        raise Problem(
            "memory.cgroupRoot",
            f"{show(memory.cgroup_root)} is a path below the top of the control groups; begin it with a name",
        )
    for index, node in enumerate(memory.far_nodes or ()):
        if not 0 <= node <= _MAX_NODE:
            raise Problem(
                f"memory.farNodes[{index}]", f"{show(node)} is not a NUMA node; give a number from 0 on"
            )
    try:
        memory.settings()
    except UserError as error:
        raise Problem("memory", str(error).removeprefix("memory: ")) from error
