"""What to write so that a query answers, in percent: a rule, a scrape, or another query. Pure."""

import json
import re
from collections.abc import Iterable

from colocate.cluster.usage import METRICS_API, Measured, Preset, Signal, SignalHealth, UsageSettings, Window
from colocate.cluster.usage.presets import TIME, over_time
from colocate.cluster.usage.signals import duration
from colocate.doctor.node_samples import MEASURED_BY_THE_API
from colocate.doctor.strangers import LabelRemedies

_SELECTOR = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*({[^{}]*})?")
"""A query that is only the name of a series, so that its timestamps can be queried."""


class QueryRemedies:
    """Remedies for queries without usable series."""

    def __init__(self, usage: UsageSettings, signals: Iterable[Signal], labels: LabelRemedies) -> None:
        self._usage = usage
        self._signals = {str(signal): signal for signal in signals}
        self._labels = labels

    def of_none(self, name: str) -> str:
        """How to get series for a signal that has none."""
        if name == METRICS_API:
            return MEASURED_BY_THE_API
        if name in self._usage.queries:
            instead = 'write "" there' if name == TIME else "leave it out"
            return f"find out why the query of usage.queries.{name} returns nothing, or {instead}"
        if name == TIME and self.by_the_way:
            return self._time()
        if name.startswith("pod."):
            series = (
                "container_cpu_usage_seconds_total"
                if name == "pod.cpu"
                else "container_memory_working_set_bytes"
            )
            return (
                f"let Prometheus scrape cAdvisor ({series}, at /metrics/cadvisor of every kubelet), or write "
                f"usage.pods: false"
            )
        if own := self._own([self._signals[name]] if name in self._signals else ()):
            return f"add to usage.queries: {own}"
        match self._usage.preset:
            case Preset.REAL_USAGE:
                return f"add this recording rule to Prometheus: {self._labels.rule(name)}"
            case Preset.NODE_EXPORTER:
                return "let Prometheus scrape node-exporter on every node"
            case Preset.KUBE_PROMETHEUS_STACK:
                return (
                    "install the recording rules of kube-prometheus-stack for node-exporter, or choose another "
                    "preset"
                )

    def of_some(self, health: SignalHealth) -> str:
        """How to get series for the nodes that have none."""
        if health.name == TIME and self.by_the_way:
            return self._time()
        return f"find out why {health.query} answers for other nodes but not for these"

    def of_ratios(self, health: SignalHealth) -> str:
        """How to turn ratios into percent."""
        if health.name in self._usage.queries:
            return f"ask in usage.queries.{health.name} for 100 * ({health.query})"
        return f"let the recording rule multiply by 100, as this one does: {self._labels.rule(health.name)}"

    def of_windows(self, missing: Iterable[Window]) -> str:
        """How to query statistics over windows."""
        missing = list(missing)
        said = ", ".join(f"{{statistic: {one.statistic}, span: {duration(one.span)}}}" for one in missing)
        own = self._own(
            Signal(measured, one.statistic, float(one.span)) for one in missing for measured in Measured
        )
        return f"add to usage.windows: {said}{f', and to usage.queries: {own}' if own else ''}"

    @property
    def by_the_way(self) -> bool:
        """Whether the preset's query for times uses a series that no other query needs."""
        return Measured.MEMORY in self._usage.queries and TIME not in self._usage.queries

    def _time(self) -> str:
        memory = self._usage.queries[Measured.MEMORY].strip()
        if _SELECTOR.fullmatch(memory):
            how = f"timestamp({memory})"
        else:
            how = "timestamp(SERIES), with a series of every node that your queries are made from"
        return f'write usage.queries.time: {how}; or "" to leave it at that'

    def _own(self, signals: Iterable[Signal]) -> str:
        """Queries for statistics of the user's own queries: the preset's would use other series."""
        queries = self._usage.queries
        asked = {
            str(signal): over_time(signal, queries[signal.measured])
            for signal in signals
            if signal.measured in queries and str(signal) not in queries
        }
        return json.dumps(asked) if asked else ""
