"""Nodes without a sample, with an incomplete or an old one; each with a remedy. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from colocate.cluster.usage import METRICS_API, Measured, UsageSnapshot
from colocate.cluster.usage.signals import below_one
from colocate.doctor.report import CheckResult, good, warn

_SOME = 5
MEASURED_BY_THE_API = (
    "read in the log of metrics-server why it does not measure them: it must reach every node's kubelet"
)
_CALLED = {Measured.CPU: "CPU", Measured.MEMORY: "memory"}
_COLLECTORS = {Measured.CPU: "--collector.cpu", Measured.MEMORY: "--collector.meminfo"}


class NodeSamples:
    """What one round of queries said about the nodes."""

    def __init__(self, taken: UsageSnapshot, nodes: Iterable[str], own: Iterable[str] = ()) -> None:
        self._taken = taken
        self._own = frozenset(own)
        """The names of queries that the user wrote."""
        self._without = sorted(name for name in nodes if name not in taken.nodes)
        self._lacking = {
            measured: sorted(name for name, load in taken.nodes.items() if getattr(load, measured) is None)
            for measured in Measured
        }
        self._by_prometheus = any(health.name != METRICS_API for health in taken.health)

    @property
    def incomplete(self) -> frozenset[str]:
        """Nodes without a value for CPU, for memory, or for both."""
        return frozenset(self._without).union(*self._lacking.values())

    @property
    def cpu_below_one(self) -> bool:
        """Whether no node uses more than one percent of its CPU, and some use some."""
        return below_one([load.cpu.percent for load in self._taken.nodes.values() if load.cpu is not None])

    def results(self, stale_after: float) -> Iterator[CheckResult]:
        old = sorted(
            name
            for name, load in self._taken.nodes.items()
            if stale_after and load.time is not None and self._taken.taken - load.time >= stale_after
        )
        # If no node has a sample, the findings about the queries say why.
        if self._without and self._taken.nodes:
            yield warn(
                f"{named(self._without)}: no sample; such nodes count as the median of the others",
                "run node-exporter there, let Prometheus scrape it, and give the target the label node"
                if self._by_prometheus
                else MEASURED_BY_THE_API,
            )
        for measured, names in self._lacking.items():
            if 0 < len(names) < len(self._taken.nodes):
                yield warn(
                    f"{named(names)}: no sample of {_CALLED[measured]}; for these nodes it counts as the "
                    "median of the others",
                    self._where_to_look(measured),
                )
        if old:
            yield warn(
                f"{named(old)}: the last sample is older than {stale_after:g} s and no longer counts",
                "look at the target's state in Prometheus (up == 0), and at node-exporter there"
                if self._by_prometheus
                else MEASURED_BY_THE_API,
            )
        if self._taken.nodes and not old and not self.incomplete:
            yield good(f"every node has a fresh sample ({len(self._taken.nodes)})")

    def _where_to_look(self, measured: Measured) -> str:
        health = self._taken.of(measured)
        if health is None:
            return MEASURED_BY_THE_API
        if measured in self._own:
            return f"make the query of usage.queries.{measured} answer for them, too: {health.query}"
        return (
            f"find out why {health.query} answers for other nodes but not for these: node-exporter there must "
            f"run with {_COLLECTORS[measured]}"
        )


def named(names: Sequence[str]) -> str:
    """Some of the names, and how many more."""
    more = f" and {len(names) - _SOME} more" if len(names) > _SOME else ""
    return ", ".join(names[:_SOME]) + more
