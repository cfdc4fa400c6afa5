"""Where samples come from, and how they are asked for: the section `usage` of the scheduler's configuration."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from colocate.cluster.usage.signals import Statistic
from colocate.model.ranges import Range
from colocate.model.values import Seconds, Section, Size

NODE_LABELS = ("node", "kubernetes_node", "instance")
_RULES_OF_THE_STACK = 300.0
"""Seconds over which kube-prometheus-stack's rule for CPU averages."""
_LAST_VALUE = 60.0
"""Seconds until a sample without an average shows a pod."""

UpToHour = Annotated[
    Seconds,
    Range(
        0,
        3600,
        more_than_least=True,
        refusal="{:g}s is out of range; choose more than 0s and at most 1h",
    ),
]


class Preset(StrEnum):
    """Which series hold the values."""

    REAL_USAGE = "real-usage"
    """Two recording rules, node_cpu_usage_avg_5m and node_mem_usage_avg_5m, in percent. See `rules`."""
    NODE_EXPORTER = "node-exporter"
    """node-exporter as it is. No rules; long windows of CPU cost Prometheus a subquery."""
    KUBE_PROMETHEUS_STACK = "kube-prometheus-stack"
    """The recording rules that kube-prometheus and its Helm chart bring along."""

    @classmethod
    def _missing_(cls, value: object) -> "Preset | None":
        """Read the former name of `real-usage`, too."""
        return cls.REAL_USAGE if value == "seed" else None


class PrometheusSettings(Section, frozen=True):
    """Where Prometheus is, how to log in, and how long to wait. Files are read again when they change."""

    url: str = ""
    """May have a path, where Prometheus is behind a prefix."""
    token_file: Path | None = None
    """A bearer token."""
    username: str = ""
    password_file: Path | None = None
    certificate_authority: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    server_name: str = ""
    """The name in Prometheus' certificate, where it is not the host of the address."""
    insecure: bool = False
    """Check no certificate, and send credentials in the clear."""
    proxy: str = ""
    """The proxy that the environment names, unless stated."""
    timeout: UpToHour = Seconds(10)
    """For one query."""
    longest_answer: Size = Size(8 << 20)
    """15 000 nodes with all labels of an operator's are some 6 MB. An answer about pods may be four times as long."""


class Window(Section, frozen=True):
    """One more statistic to ask for, of CPU and of memory."""

    statistic: Statistic
    span: Seconds


class UsageSettings(Section, frozen=True):
    """Where samples come from."""

    prometheus: PrometheusSettings = PrometheusSettings()
    metrics_api: bool = False
    """Fill in nodes that are missing from Prometheus, or ask the metrics API alone where there is no Prometheus."""
    interval: UpToHour = Seconds(15)
    """From one round to the next, up to a tenth more by chance."""
    preset: Preset = Preset.REAL_USAGE
    average: Seconds = Seconds(300)
    """The window of a node's use; 0 for the last value. Recording rules have their own: state it here."""
    shown_after: Seconds | None = None
    """How long after its binding a pod is wholly in the samples; the window of the average unless stated."""
    windows: tuple[Window, ...] | None = None
    """Deviations, averages and percentiles over longer windows; those that the policies in use need, unless
    stated."""
    pods: bool | None = None
    """Ask for the use of every pod, so that nodes are judged by the pods that are there now, and new pods by what
    their owners' pods use: cAdvisor's metrics, some 200 bytes a pod and answer. Unless stated, where `balanced` or
    taints are in use, and Prometheus is asked."""
    pods_interval: UpToHour = Seconds(60)
    """From one question about pods to the next: the answer of a large cluster is long."""
    matchers: str = ""
    """Goes into every selector of the preset, such as `cluster="prod"` where Prometheus knows several."""
    labels: tuple[str, ...] = NODE_LABELS
    """Labels that may name the node of a series: by its name, or by an address with or without a port."""
    queries: Mapping[str, str] = {}
    """PromQL by the name of a signal, such as `cpu`, in place of the preset's; `time` for the samples' times."""

    @property
    def window(self) -> float:
        """Seconds by which a sample must be younger than a binding to show the whole pod."""
        if self.shown_after is not None:
            return float(self.shown_after)
        if self.preset is Preset.KUBE_PROMETHEUS_STACK:
            return max(float(self.average), _RULES_OF_THE_STACK)
        return float(self.average) or _LAST_VALUE
