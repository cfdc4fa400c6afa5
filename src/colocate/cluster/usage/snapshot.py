"""The use of nodes and pods after one round, and how its queries went. Facts only."""

from collections.abc import Mapping

import msgspec

from colocate.cluster.usage.claims import SeriesCollision
from colocate.cluster.usage.node_series import Counts, Joined
from colocate.model.load import NodeLoad, PodUsage


class SignalHealth(msgspec.Struct, frozen=True):
    """How one query is doing. The counts are those of the last good answer."""

    name: str
    query: str
    """PromQL, or what was asked of the metrics API."""
    last_success: float | None = None
    """When there was a good answer, in seconds since the epoch; None where there was none yet."""
    error: str = ""
    """What is wrong now; empty where the last answer was good."""
    failures: int = 0
    """In a row."""
    counts: Counts = Counts()
    missing: tuple[str, ...] = ()
    """The nodes that have no value."""
    strangers: tuple[Mapping[str, str], ...] = ()
    """The labels of some series of no node that we know."""
    collisions: tuple[SeriesCollision, ...] = ()
    """Some of the nodes with two series that disagree; the higher counts."""
    warnings: tuple[str, ...] = ()
    """What Prometheus says about its own answer."""
    ratio: bool = False
    """Whether its values look like ratios, from 0 to 1, where percents are asked for."""

    def succeeded(self, now: float, joined: Joined, warnings: tuple[str, ...] = ()) -> "SignalHealth":
        return SignalHealth(
            self.name,
            self.query,
            now,
            counts=joined.counts,
            missing=joined.missing,
            strangers=joined.strangers,
            collisions=joined.collisions,
            warnings=warnings,
            ratio=self.ratio,
        )

    def failed(self, why: str) -> "SignalHealth":
        return msgspec.structs.replace(self, error=why, failures=self.failures + 1)


class UsageSnapshot(msgspec.Struct, frozen=True):
    """The result of one round. It never changes; the next round makes another."""

    taken: float = 0.0
    """When, in seconds since the epoch; 0 before the first round."""
    nodes: Mapping[str, NodeLoad] = {}
    """Every known node of which there ever was a sample, however old: each carries its time."""
    pods: Mapping[str, PodUsage] = {}
    """By namespace/name, where pods are asked for."""
    filled: tuple[str, ...] = ()
    """Nodes whose use is from the metrics API."""
    health: tuple[SignalHealth, ...] = ()
    ambiguous: tuple[str, ...] = ()
    """Addresses that several nodes claim; nothing joins by them."""
    clock_offset: float | None = None
    """Seconds by which Prometheus' clock is ahead of ours; None before it has answered."""

    def of(self, name: str) -> SignalHealth | None:
        """The health of one signal."""
        return next((health for health in self.health if health.name == name), None)
