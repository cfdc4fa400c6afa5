"""What is asked of Prometheus follows from the policies in use; one that would be hollow is refused."""

import pytest

from colocate.cluster.usage import queries
from colocate.config.file import build_document
from colocate.errors import UserError
from colocate.scheduler.settings import SCHEDULER

URL = "usage: {prometheus: {url: 'http://p:9090'}"


def signals(text: str) -> list[str]:
    config = build_document(SCHEDULER, f"version: 1\n{text}".encode(), "scheduler.yaml", {}).config
    return [str(query.signal) for query in queries(config.asked()).signals]


def memory(text: str) -> list[str]:
    return [name for name in signals(text) if name.startswith("memory")]


def test_by_default_the_use_of_nodes_and_of_pods_is_asked_for() -> None:
    assert sorted(signals(f"{URL}}}")) == ["cpu", "memory", "pod.cpu", "pod.memory"]


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (f"{URL}}}\nact: [taints]", True),
        (f"{URL}}}\nload: {{policy: 'oversell=1,balanced=1'}}", True),
        (f"{URL}}}\nload: {{policy: load-aware}}", False),
        (f"{URL}, pods: true}}\nload: {{policy: load-aware}}", True),
        (f"{URL}, pods: false}}", False),
        ("usage: {metricsApi: true}", False),
    ],
)
def test_pods_are_asked_for_where_nodes_are_judged_by_them(text: str, asked: bool) -> None:
    assert ("pod.cpu" in signals(text)) is asked


@pytest.mark.parametrize(
    ("load", "asked"),
    [
        ("policy: mem-real-usage", []),
        ("policy: load-aware", []),
        ("policy: load-variation-risk-balancing", ["deviation.15m"]),
        ("policy: 'mem-real-usage=2,low-risk-overcommitment=1'", ["deviation.15m"]),
        ("{policy: mem-real-usage, policies: {other: balanced}}", []),
        ("balanced: {aggregation: p99, window: 1800}", ["p99.30m"]),
        ("balanced: {deviations: 1, aggregation: p95}", ["p95.1h", "deviation.15m"]),
        ("{policy: load-aware, loadAware: {aggregation: p90, window: 300}}", ["p90.5m"]),
        (
            "{policy: load-aware, filter: {enabled: true, thresholds: "
            "{aggregated: {cpu: 65}, aggregation: p50, window: 600}}}",
            ["p50.10m"],
        ),
    ],
)
def test_what_else_is_judged_by_is_asked_for(load: str, asked: list[str]) -> None:
    written = load if load.startswith("{") else f"{{{load}}}"
    assert memory(f"{URL}}}\nload: {written}") == ["memory", *(f"memory.{one}" for one in asked)]


def test_taints_alone_need_none() -> None:
    assert memory(f"{URL}}}\nact: [taints]") == ["memory"]
    assert memory(f"{URL}}}\nact: [extender, taints]") == memory(f"{URL}}}")


def test_what_is_stated_is_asked_for_instead() -> None:
    assert memory(f"{URL}, windows: []}}") == ["memory"]
    assert memory(f"{URL}, windows: [{{statistic: p99, span: 2h}}]}}") == ["memory", "memory.p99.2h"]


def test_of_queries_of_ones_own_nothing_is_derived() -> None:
    assert memory(f"{URL}, queries: {{cpu: my_cpu}}}}") == ["memory"]
    percentile = "load: {balanced: {aggregation: p95}}"
    assert "cpu.p95.1h" in signals(f"{URL}, queries: {{cpu.p95.1h: my_percentile}}}}\n{percentile}")


@pytest.mark.parametrize(
    ("usage", "load", "sentence"),
    [
        (
            f"{URL}, windows: []}}",
            "{policy: load-variation-risk-balancing}",
            "load-variation-risk-balancing judges by a deviation, which is not among them; add "
            "{statistic: deviation, span: 15m}",
        ),
        (
            f"{URL}, windows: [{{statistic: p95, span: 1h}}]}}",
            "{policies: {a: load-aware}, loadAware: {aggregation: p95, window: 300}}",
            "load.loadAware judges by the p95 over 5m, which is not among them; add {statistic: p95, span: 5m}",
        ),
        (
            f"{URL}, windows: [{{statistic: p95, span: 1h}}]}}",
            "{balanced: {aggregation: p95, window: 300}}",
            "load.balanced judges by the p95 over 5m",
        ),
        (
            f"{URL}, queries: {{cpu: my_cpu}}}}",
            "{policy: low-risk-overcommitment}",
            "low-risk-overcommitment judges by a deviation",
        ),
        (
            "usage: {metricsApi: true}",
            "{policy: low-risk-overcommitment}",
            "which the metrics API does not have; add usage.prometheus.url",
        ),
        (
            f"{URL}, pods: false}}",
            "{filter: {enabled: true, thresholds: {prod: {memory: 50}}}}",
            "load.filter.thresholds.prod: it judges by what prod pods use, which Colocate does not ask for yet; "
            "write usage.pods: true",
        ),
        (
            f"{URL}, pods: false}}",
            "{policies: {a: load-aware}, loadAware: {byProdUsage: true}}",
            "load.loadAware.byProdUsage: it judges by what prod pods use",
        ),
        (
            "usage: {metricsApi: true, pods: true}",
            "{policy: load-aware, loadAware: {byProdUsage: true}}",
            "which Colocate does not read from the metrics API; add usage.prometheus.url and usage.pods: true",
        ),
    ],
)
def test_a_policy_that_would_be_hollow_is_refused(usage: str, load: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        signals(f"{usage}\nload: {load}")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("usage", "load"),
    [
        (f"{URL}, pods: false}}", "{loadAware: {byProdUsage: true}}"),
        (f"{URL}, pods: false}}", "{filter: {thresholds: {prod: {memory: 50}}}}"),
        (f"{URL}, pods: false}}", "{filter: {enabled: true, thresholds: {prod: {cpu: 0}}}}"),
        (f"{URL}, pods: true}}", "{filter: {enabled: true, thresholds: {prod: {memory: 50}}}}"),
    ],
)
def test_what_prod_pods_use_must_be_asked_for_only_where_something_judges_by_it(
    usage: str, load: str
) -> None:
    assert ("pod.memory" in signals(f"{usage}\nload: {load}")) is ("pods: true" in usage)
