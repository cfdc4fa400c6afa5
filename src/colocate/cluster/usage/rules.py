"""What to add to Prometheus so that nodes are found: recording rules, and a label by relabelling. Pure text."""

from collections.abc import Sequence

from colocate.cluster.usage.presets import NODE_LABELS, Preset
from colocate.cluster.usage.signals import duration

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


def rules(
    preset: Preset,
    average_seconds: float = 300.0,
    interval: float = 30.0,
    labels: Sequence[str] = NODE_LABELS,
) -> str:
    """The rule file that a preset needs; empty where it needs none, or where its source brings them along.

    Both rules keep every label that may say the node, so that they join by any.
    """
    if preset is not Preset.SEED:
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
