"""Which PromQL answers which signal: three presets, and a user's own queries over them. Pure.

Every query is an instant query for all nodes at once, over series that its preset promises. `rules` prints the
recording rules that a preset needs.
"""

from collections.abc import Sequence

import msgspec

from colocate.cluster.usage.settings import NODE_LABELS, Preset, UsageSettings
from colocate.cluster.usage.signals import Measured, Signal, Statistic, duration
from colocate.errors import UserError

_OVER_TIME = {Statistic.DEVIATION: "stddev_over_time", Statistic.AVERAGE: "avg_over_time"}
_QUANTILES = {Statistic.P50: 50, Statistic.P90: 90, Statistic.P95: 95, Statistic.P99: 99}
RELABELLING = """\
# In the scrape configuration of node-exporter (kubernetes_sd_configs with role pod, endpoints or endpointslice):
relabel_configs:
  - source_labels: [__meta_kubernetes_pod_node_name]
    target_label: node
"""
SERVICE_MONITOR = """\
# In the ServiceMonitor or PodMonitor of node-exporter (prometheus-operator):
relabelings:
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
"""


class Query(msgspec.Struct, frozen=True):
    signal: Signal
    promql: str
    recorded: bool = False
    """Whether its unit is up to the user: a recording rule, or a query of the user's own."""


class Queries(msgspec.Struct, frozen=True):
    """What is asked in one round."""

    signals: tuple[Query, ...]
    time: str
    """Answers with the time of each node's last sample; empty where samples count as old as their answer."""
    labels: tuple[str, ...]


TIME = "time"
"""The name of the query for times, among those of signals."""


def signals(settings: UsageSettings) -> tuple[Signal, ...]:
    """The signals that the settings want."""
    wanted = [Signal(measured) for measured in Measured]
    for window in settings.windows or ():
        if window.statistic in (Statistic.USE, Statistic.POD) or window.span <= 0:
            raise UserError(
                f"windows: {window.statistic} over {window.span:g} s cannot be asked for; give one of "
                f"{', '.join([*_OVER_TIME, *_QUANTILES])} and a number of seconds"
            )
        wanted += [Signal(measured, window.statistic, float(window.span)) for measured in Measured]
    if settings.pods:
        wanted += [Signal(measured, Statistic.POD) for measured in Measured]
    return tuple(dict.fromkeys(wanted))


def queries(settings: UsageSettings) -> Queries:
    """The PromQL for every signal that the settings want."""
    wanted = {str(signal): signal for signal in signals(settings)}
    if unknown := settings.queries.keys() - wanted.keys() - {TIME}:
        raise UserError(
            f"queries: {', '.join(sorted(unknown))} is not one of the signals; these are "
            f"{', '.join([*wanted, TIME])}"
        )
    preset = _Promql(settings)
    return Queries(
        tuple(
            Query(signal, settings.queries.get(name) or preset.of(signal), _is_recorded(settings, signal))
            for name, signal in wanted.items()
        ),
        settings.queries.get(TIME, preset.time),
        settings.labels,
    )


def _is_recorded(settings: UsageSettings, signal: Signal) -> bool:
    of_node = signal.statistic is not Statistic.POD
    return of_node and (settings.preset is Preset.REAL_USAGE or bool(settings.queries.get(str(signal))))


class _Promql:
    """Writes queries with one preset's series."""

    def __init__(self, settings: UsageSettings) -> None:
        self._settings = settings
        self._matchers = settings.matchers
        self._by = ", ".join(settings.labels)

    @property
    def time(self) -> str:
        match self._settings.preset:
            case Preset.REAL_USAGE:
                series = self._select("node_mem_usage_avg_5m")
            case Preset.NODE_EXPORTER:
                series = self._select("node_memory_MemTotal_bytes")
            case Preset.KUBE_PROMETHEUS_STACK:
                series = self._select("instance:node_memory_utilisation:ratio")
        return f"timestamp({series})"

    def of(self, signal: Signal) -> str:
        if signal.statistic is Statistic.POD:
            return self._pod(signal.measured)
        match self._settings.preset:
            case Preset.REAL_USAGE:
                return self._real_usage(signal)
            case Preset.NODE_EXPORTER:
                return self._node_exporter(signal)
            case Preset.KUBE_PROMETHEUS_STACK:
                return self._kube_prometheus_stack(signal)

    def _real_usage(self, signal: Signal) -> str:
        cpu = signal.measured is Measured.CPU
        series = self._select("node_cpu_usage_avg_5m" if cpu else "node_mem_usage_avg_5m")
        return series if signal.statistic is Statistic.USE else _over_time(signal, series)

    def _kube_prometheus_stack(self, signal: Signal) -> str:
        average: float = self._settings.average
        if signal.measured is Measured.CPU:
            series = self._select("instance:node_cpu_utilisation:rate5m")
            average = 0
        else:
            series = self._select("instance:node_memory_utilisation:ratio")
        if signal.statistic is not Statistic.USE:
            return f"100 * {_over_time(signal, series)}"
        return f"100 * avg_over_time({series}[{duration(average)}])" if average else f"100 * {series}"

    def _node_exporter(self, signal: Signal) -> str:
        average = self._settings.average
        if signal.measured is Measured.CPU:
            idle = self._select("node_cpu_seconds_total", 'mode="idle"')
            rate = f"rate({idle}[{duration(average)}])" if average else f"irate({idle}[5m])"
            # Counters and clocks are read at different moments: an idle CPU may seem 101 % idle.
            busy = f"clamp_min(100 * (1 - avg by ({self._by}) ({rate})), 0)"
            if signal.statistic is Statistic.USE:
                return busy
            return _over_time(signal, busy, _step(signal))
        available = self._select("node_memory_MemAvailable_bytes")
        total = self._select("node_memory_MemTotal_bytes")
        if signal.statistic is Statistic.USE:
            now = f"avg_over_time({available}[{duration(average)}])" if average else available
            return f"100 * (1 - {now} / {total})"
        if signal.statistic is Statistic.DEVIATION:
            return f"100 * {_over_time(signal, available)} / {total}"
        # A high percentile of use is a low percentile of what is available.
        return f"100 * (1 - {_over_time(signal, available, inverted=True)} / {total})"

    def _pod(self, measured: Measured) -> str:
        # Without the cgroups of whole pods and of sandboxes.
        containers = 'container!~"|POD"'
        if measured is Measured.MEMORY:
            return _of_pods(self._select("container_memory_working_set_bytes", containers))
        series = self._select("container_cpu_usage_seconds_total", containers)
        window = duration(self._settings.average or 300)
        # A container that was started again has had two groups: each has its share of the window. Some cAdvisors
        # tell each CPU of a group by itself.
        return f"1000 * {_of_pods(f'sum without (id, name, cpu) (rate({series}[{window}]))')}"

    def _select(self, metric: str, *matchers: str) -> str:
        inside = ", ".join(one for one in (*matchers, self._matchers) if one)
        return f"{metric}{{{inside}}}" if inside else metric


def _of_pods(containers: str) -> str:
    """The sum over a pod's containers; where two replicas of Prometheus, or two jobs, tell of one, the greater."""
    return f"sum by (namespace, pod) (max by (namespace, pod, container) ({containers}))"


def over_time(signal: Signal, promql: str) -> str:
    """A signal over the window of what any query answers."""
    return _over_time(signal, f"({promql})", _step(signal))


def _step(signal: Signal) -> str:
    """The resolution of a subquery: some 60 points a window."""
    return duration(max(1.0, signal.window // 60))


def _over_time(signal: Signal, series: str, step: str = "", inverted: bool = False) -> str:
    span = f"[{duration(signal.window)}{f':{step}' if step else ''}]"
    if function := _OVER_TIME.get(signal.statistic):
        return f"{function}({series}{span})"
    percent = _QUANTILES[signal.statistic]
    return f"quantile_over_time({(100 - percent if inverted else percent) / 100:g}, {series}{span})"


def rules(
    preset: Preset,
    average_seconds: float = 300.0,
    interval: float = 30.0,
    labels: Sequence[str] = NODE_LABELS,
) -> str:
    """The rule file that a preset needs; empty where it needs none, or where its source brings them along.

    Both rules keep every label that may name the node, so that series join by any of them.
    """
    if preset is not Preset.REAL_USAGE:
        return ""
    window, by = duration(average_seconds), ", ".join(labels)
    return f"""\
groups:
  - name: colocate-node-usage
    interval: {duration(interval)}
    rules:
      - record: node_cpu_usage_avg_5m
        expr: >-
          clamp_min(100 * (1 - avg by ({by})
          (rate(node_cpu_seconds_total{{mode="idle"}}[{window}]))), 0)
      - record: node_mem_usage_avg_5m
        expr: >-
          100 * (1 - avg by ({by})
          (avg_over_time(node_memory_MemAvailable_bytes[{window}]))
          / avg by ({by}) (node_memory_MemTotal_bytes))
"""
