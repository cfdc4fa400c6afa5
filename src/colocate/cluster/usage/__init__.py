"""How busy nodes and pods really are, from Prometheus and from the metrics API. No decisions here.

`settings` is the section `usage` of the scheduler's configuration, `presets` turns it into queries and into the
recording rules that Prometheus needs for them, and `UsagePoller` asks and publishes.
"""

from colocate.cluster.usage.directory import NODE_ADDRESSES, KnownNode
from colocate.cluster.usage.metrics_api import MetricsApi
from colocate.cluster.usage.poller import EXPIRY, METRICS_API, UsagePoller
from colocate.cluster.usage.presets import RELABELLING, SERVICE_MONITOR, queries, rules
from colocate.cluster.usage.prometheus import Prometheus
from colocate.cluster.usage.settings import Preset, PrometheusSettings, UsageSettings, Window
from colocate.cluster.usage.signals import Measured, Signal, Statistic
from colocate.cluster.usage.snapshot import SignalHealth, UsageSnapshot

__all__ = [
    "EXPIRY",
    "METRICS_API",
    "NODE_ADDRESSES",
    "RELABELLING",
    "SERVICE_MONITOR",
    "KnownNode",
    "Measured",
    "MetricsApi",
    "Preset",
    "Prometheus",
    "PrometheusSettings",
    "Signal",
    "SignalHealth",
    "Statistic",
    "UsagePoller",
    "UsageSettings",
    "UsageSnapshot",
    "Window",
    "queries",
    "rules",
]
