"""Series that belong to no node here: the setting, rule or relabelling that would join them. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import yaml

from colocate.cluster.usage import (
    METRICS_API,
    RELABELLING,
    SERVICE_MONITOR,
    Preset,
    SignalHealth,
    UsageSettings,
    rules,
)
from colocate.cluster.usage.claims import SeriesCollision
from colocate.cluster.usage.directory import Directory, host_of

Labels = Mapping[str, str]

_FIRST_PART = "([^.:]+).*"
"""A regular expression of Prometheus (anchored): a host name without domain and port."""


class Respelling(msgspec.Struct, frozen=True):
    """A label that spells a node's name with another domain, or without its domain."""

    label: str
    domain: str = ""
    """What to append to the first part."""

    @property
    def promql(self) -> str:
        return f'"node", "$1{self.domain}", "{self.label}", "{_FIRST_PART}"'

    def rule(self, *, operator: bool) -> str:
        """The relabelling for Prometheus, or for prometheus-operator."""
        source, target = ("sourceLabels", "targetLabel") if operator else ("source_labels", "target_label")
        rule: dict[str, object] = {source: [self.label], "regex": _FIRST_PART, target: "node"}
        return json.dumps(rule | ({"replacement": f"$1{self.domain}"} if self.domain else {}))


class LabelRemedies:
    """Builds remedies from one round of queries."""

    def __init__(self, usage: UsageSettings, nodes: Directory, told: Iterable[SignalHealth]) -> None:
        self._usage = usage
        self._nodes = nodes
        self._seen = [
            labels for health in told if not self._is_own(health.name) for labels in health.strangers
        ]
        self._with_domain: dict[str, list[str]] = {}
        for name in nodes.nodes:
            first, _, domain = name.partition(".")
            if domain:
                self._with_domain.setdefault(first, []).append(name)

    def of(self, health: SignalHealth) -> str:
        """What to do about series of a signal that belong to no node here."""
        name, series = health.name, health.strangers
        if name == METRICS_API:
            return "look again in a minute: metrics-server forgets deleted nodes"
        if name.startswith("pod."):
            whose = f"the query of usage.queries.{name}" if self._is_own(name) else "cAdvisor's scrape"
            return f"let {whose} keep the labels namespace and pod"
        left_out_by = (
            f"usage.queries.{name}" if self._is_own(name) else 'usage.matchers, such as cluster="prod"'
        )
        if not health.counts.missing:
            return (
                f"every node has other series; leave these out by {left_out_by}, unless their nodes were just "
                "deleted"
            )
        if label := self._saying(series):
            return self._heeding((*self._usage.labels, label))
        respelling = self._respelling(series)
        if health.counts.joined and not respelling and (label := self._naming(series)):
            return (
                "wait five minutes if these nodes were just deleted, leave out those of another cluster by "
                f"{left_out_by}, or correct {label} if it is another name of a node without a value"
            )
        if self._is_own(name):
            return self._own_query(health, respelling)
        if self._usage.preset is Preset.NODE_EXPORTER and (label := self._saying(self._seen)):
            # Some queries of this preset keep only the labels of usage.labels; the other queries show which labels
            # exist.
            return self._heeding((*self._usage.labels, label))
        if self._usage.preset is Preset.REAL_USAGE and not respelling and not self._kept(series):
            labels = " or ".join(self._usage.labels)
            return f"keep the label {labels} in the rules, as these do: {self.rule('cpu')}, {self.rule('memory')}"
        return self.relabelling(respelling or self._respelling(self._seen), series)

    def of_collision(self, health: SignalHealth, collision: SeriesCollision) -> str:
        """What leaves out the foreign one of two series for one node."""
        matcher = collision.matcher
        if self._is_own(health.name):
            return f"leave out the one that is not yours, by {matcher} in usage.queries.{health.name}"
        if not collision.certain:
            return f"leave out the one that is not yours: add {matcher} to usage.matchers"
        both = f"{self._usage.matchers},{matcher}" if self._usage.matchers else matcher
        return f"write usage.matchers: {json.dumps(both)} if {matcher} is your own exporter"

    def relabelling(self, respelling: Respelling | None = None, series: Sequence[Labels] = ()) -> str:
        """How to give series the label node, from their labels or from their scrape."""
        operator = self._usage.preset is Preset.KUBE_PROMETHEUS_STACK
        if respelling:
            what = respelling.rule(operator=operator)
            where = "metricRelabelings" if operator else "metric_relabel_configs"
        else:
            where = "relabelings" if operator else "relabel_configs"
            what = json.dumps(yaml.safe_load(SERVICE_MONITOR if operator else RELABELLING)[where][0])
        whose = "node-exporter's ServiceMonitor" if operator else "node-exporter's scrape"
        said = f"add this to the {where} of {whose}: {what}"
        if self._usage.preset is Preset.REAL_USAGE and not any("node" in labels for labels in series):
            said += f", and keep the label in the rules: by ({', '.join(self._labels)})"
        return said if "node" in self._usage.labels else f"{said}, and {self._heeding(self._labels)}"

    def rule(self, signal: str) -> str:
        """The recording rule of the preset `real-usage` for a signal."""
        made = yaml.safe_load(rules(Preset.REAL_USAGE, labels=self._usage.labels))["groups"][0]["rules"]
        wanted = "node_cpu_usage_avg_5m" if signal.startswith("cpu") else "node_mem_usage_avg_5m"
        return json.dumps(next(rule for rule in made if rule["record"] == wanted))

    @property
    def _labels(self) -> tuple[str, ...]:
        """The labels that are read, and `node`, which the remedies add."""
        labels = self._usage.labels
        return labels if "node" in labels else ("node", *labels)

    def _own_query(self, health: SignalHealth, respelling: Respelling | None) -> str:
        if respelling and "node" in self._usage.labels:
            return (
                f"ask in usage.queries.{health.name} for label_replace({health.query}, {respelling.promql})"
            )
        return (
            f"let the query of usage.queries.{health.name} keep the label node, or put the label that names "
            "the node into usage.labels"
        )

    def _heeding(self, labels: Sequence[str]) -> str:
        return f"write usage.labels: [{', '.join(labels)}] in the configuration of the scheduler"

    def _is_own(self, signal: str) -> bool:
        return signal in self._usage.queries

    def _kept(self, series: Iterable[Labels]) -> bool:
        """Whether a series has any of the labels that are read."""
        return any(label in labels for labels in series for label in self._usage.labels)

    def _naming(self, series: Sequence[Labels]) -> str:
        """A label that names the node of each series, as in series that join; `instance` is an address."""
        names = (label for label in self._usage.labels if label != "instance")
        return next((label for label in names if series and all(one.get(label) for one in series)), "")

    def _saying(self, series: Iterable[Labels]) -> str | None:
        """The label that names nodes and is not read; of several, the one that names the most."""
        said: dict[str, set[str]] = {}
        for labels in series:
            for label, text in labels.items():
                if label not in self._usage.labels and (node := self._nodes.find(text)) is not None:
                    said.setdefault(label, set()).add(node)
        return max(said, key=lambda label: len(said[label]), default=None)

    def _respelling(self, series: Iterable[Labels]) -> Respelling | None:
        for labels in series:
            for label in (*self._usage.labels, *labels):
                host = host_of(labels.get(label, ""))
                first, _, domain = host.partition(".")
                if domain and first in self._nodes.nodes:
                    return Respelling(label)
                if not domain and len(named := self._with_domain.get(first, [])) == 1:
                    return Respelling(label, named[0].removeprefix(first))
        return None
