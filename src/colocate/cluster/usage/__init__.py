"""How busy nodes and pods really are, from Prometheus and from the metrics API. No decisions here.

`UsagePoller` asks and publishes; `presets` says what; `rules` prints what Prometheus needs for it.
"""

from colocate.cluster.usage.directory import NODE_ADDRESSES, KnownNode, NodeShape
from colocate.cluster.usage.metrics_api import MetricsApi
from colocate.cluster.usage.poller import METRICS_API, PollSettings, UsagePoller
from colocate.cluster.usage.presets import Preset, Queries, QuerySettings, Window, queries
from colocate.cluster.usage.prometheus import Prometheus, PrometheusSettings
from colocate.cluster.usage.rules import RELABELLING, SERVICE_MONITOR, rules
from colocate.cluster.usage.signals import Measured, Signal, Statistic
from colocate.cluster.usage.snapshot import SignalHealth, UsageSnapshot

__all__ = [
    "METRICS_API",
    "NODE_ADDRESSES",
    "RELABELLING",
    "SERVICE_MONITOR",
    "KnownNode",
    "Measured",
    "MetricsApi",
    "NodeShape",
    "PollSettings",
    "Preset",
    "Prometheus",
    "PrometheusSettings",
    "Queries",
    "QuerySettings",
    "Signal",
    "SignalHealth",
    "Statistic",
    "UsagePoller",
    "UsageSnapshot",
    "Window",
    "queries",
    "rules",
]
