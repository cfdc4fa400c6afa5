"""What to write so that a query answers, and in percent: a rule, a scrape, or a query of one's own. Pure."""

from colocate.apps.doctor.node_samples import MEASURED_BY_THE_API
from colocate.apps.doctor.strangers import Remedies
from colocate.apps.scheduler.sections import Usage
from colocate.cluster.usage import METRICS_API, Preset, SignalHealth


def what_makes(name: str, usage: Usage, remedies: Remedies) -> str:
    """What brings the series of a signal about."""
    if name == METRICS_API:
        return MEASURED_BY_THE_API
    if name in usage.queries:
        return f"see why the query of usage.queries.{name} answers nothing, or leave it out"
    if name.startswith("pod."):
        series = (
            "container_cpu_usage_seconds_total" if name == "pod.cpu" else "container_memory_working_set_bytes"
        )
        return (
            f"let Prometheus scrape cAdvisor ({series}, at /metrics/cadvisor of every kubelet), or write "
            f"usage.pods: false"
        )
    match usage.preset:
        case Preset.SEED:
            return f"add this recording rule to Prometheus: {remedies.rule(name)}"
        case Preset.NODE_EXPORTER:
            return "let Prometheus scrape node-exporter on every node"
        case Preset.KUBE_PROMETHEUS_STACK:
            return "install the recording rules of kube-prometheus-stack for node-exporter, or choose another preset"


def what_makes_percents(health: SignalHealth, usage: Usage, remedies: Remedies) -> str:
    """What makes percents of a signal's ratios."""
    if health.name in usage.queries:
        return f"ask in usage.queries.{health.name} for 100 * ({health.query})"
    return f"let the recording rule multiply by 100, as this one does: {remedies.rule(health.name)}"
