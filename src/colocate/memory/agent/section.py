"""The section `memory` of the agent's configuration: its fields, and what they come to for those who decide."""

from enum import StrEnum
from pathlib import Path

import msgspec

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
from colocate.model.values import Seconds, Section, Share, Size, plain


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
