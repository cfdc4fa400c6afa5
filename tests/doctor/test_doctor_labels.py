"""The doctor on series of no node: what it says to do makes them join."""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.prometheus import Metrics

from colocate.clock import SystemClock
from colocate.cluster.usage import (
    METRICS_API,
    KnownNode,
    Preset,
    Prometheus,
    PrometheusSettings,
    SignalHealth,
    UsageSettings,
)
from colocate.cluster.usage.directory import Directory
from colocate.cluster.usage.node_series import Counts
from colocate.cluster.usage.settings import NODE_LABELS
from colocate.doctor.strangers import LabelRemedies

SHORT = KnownNode("a", ("10.0.0.1",)), KnownNode("b", ("10.0.0.2",))
LONG = KnownNode("a.example.com", ("10.0.0.1",)), KnownNode("b.example.com", ("10.0.0.2",))
POD = "10.244.1.7:9100"
"""The address of a node-exporter that is not on the host's network."""

Labels = Mapping[str, str]


def health(
    *strangers: Labels, name: str = "memory", query: str = "", missing: int = 2, joined: int = 0
) -> SignalHealth:
    counts = Counts(series=len(strangers) + joined, unknown=len(strangers), missing=missing, joined=joined)
    return SignalHealth(name, query, counts=counts, strangers=strangers)


def remedy(
    nodes: tuple[KnownNode, ...], usage: UsageSettings, one: SignalHealth, *others: SignalHealth
) -> str:
    return LabelRemedies(usage, Directory(nodes), (one, *others)).of(one)


def joined(nodes: tuple[KnownNode, ...], labels: Labels, looked_at: tuple[str, ...]) -> str | None:
    return Directory(nodes).of(labels, looked_at)


def relabelled(labels: Labels, rule: Mapping[str, Any]) -> Labels:
    """As Prometheus does it, and prometheus-operator has it do."""
    [source] = rule.get("source_labels") or rule["sourceLabels"]
    match = re.fullmatch(rule["regex"], labels.get(source, ""))
    assert match is not None
    text = match.expand(rule.get("replacement", "$1").replace("$", "\\"))
    return {**labels, rule.get("target_label") or rule["targetLabel"]: text}


def rule_in(said: str) -> dict[str, Any]:
    rule: dict[str, Any] = json.loads(said[said.index("{") : said.index("}") + 1])
    return rule


@pytest.mark.parametrize(
    "labels",
    [
        {"node": "a"},
        {"kubernetes_node": "a"},
        {"kubernetes_node": "10.0.0.1", "instance": POD},
        {"instance": "a"},
        {"instance": "a:9100"},
        {"instance": "10.0.0.1"},
        {"node": "rack-7", "instance": "10.0.0.1:9100"},
    ],
)
def test_what_joins_needs_no_remedy(labels: Labels) -> None:
    assert joined(SHORT, labels, NODE_LABELS) == "a"


@pytest.mark.parametrize("preset", Preset)
@pytest.mark.parametrize(
    ("labels", "label"),
    [
        ({"nodename": "a", "instance": POD}, "nodename"),
        ({"host": "a"}, "host"),
        ({"exported_instance": "10.0.0.1:9100", "instance": "prometheus:9090"}, "exported_instance"),
        ({"exported_node": "a", "node": "rack-7", "instance": POD}, "exported_node"),
        ({"host_ip": "10.0.0.1", "instance": POD}, "host_ip"),
    ],
)
def test_a_label_that_says_the_node_and_is_not_looked_at_is_to_be_named(
    preset: Preset, labels: Labels, label: str
) -> None:
    said = remedy(SHORT, UsageSettings(preset=preset), health(labels))
    assert said == (
        f"write usage.labels: [node, kubernetes_node, instance, {label}] in the configuration of the scheduler"
    )
    assert joined(SHORT, labels, NODE_LABELS) is None
    assert joined(SHORT, labels, (*NODE_LABELS, label)) == "a"


def test_of_several_such_labels_it_is_the_one_that_tells_nodes_apart() -> None:
    series = [{"cluster": "a", "host": name} for name in ("a", "b")]
    assert "instance, host]" in remedy(SHORT, UsageSettings(), health(*series))


@pytest.mark.parametrize("preset", Preset)
@pytest.mark.parametrize(
    ("nodes", "labels", "source"),
    [
        (SHORT, {"instance": "a.example.com"}, "instance"),
        (SHORT, {"instance": "a.example.com:9100"}, "instance"),
        (SHORT, {"node": "a.example.com", "instance": POD}, "node"),
        (SHORT, {"kubernetes_node": "a.example.com", "instance": POD}, "kubernetes_node"),
        (SHORT, {"nodename": "a.example.com"}, "nodename"),
        (LONG, {"instance": "a:9100"}, "instance"),
        (LONG, {"instance": "a"}, "instance"),
        (LONG, {"nodename": "a", "instance": POD}, "nodename"),
        (LONG, {"exported_instance": "a:9100", "instance": "prometheus:9090"}, "exported_instance"),
    ],
)
def test_a_name_with_a_domain_too_many_or_too_few_is_to_be_relabelled(
    preset: Preset, nodes: tuple[KnownNode, ...], labels: Labels, source: str
) -> None:
    said = remedy(nodes, UsageSettings(preset=preset), health(labels))
    where, rule = said[: said.index("{")], rule_in(said)
    if preset is Preset.KUBE_PROMETHEUS_STACK:
        assert where == "add this to the metricRelabelings of node-exporter's ServiceMonitor: "
        assert rule["sourceLabels"] == [source]
    else:
        assert where == "add this to the metric_relabel_configs of node-exporter's scrape: "
        assert rule["source_labels"] == [source]
    dropped = preset is Preset.REAL_USAGE and "node" not in labels
    kept = ", and keep the label in the rules: by (node, kubernetes_node, instance)"
    assert said.endswith(kept if dropped else "}")
    assert joined(nodes, labels, NODE_LABELS) is None
    assert joined(nodes, relabelled(labels, rule), NODE_LABELS) == nodes[0].name


@pytest.mark.needs("prometheus", "node-exporter")
@pytest.mark.parametrize(("nodes", "instance"), [(SHORT, "a.example.com:9100"), (LONG, "a:9100")])
async def test_a_real_prometheus_does_as_it_is_told(
    nodes: tuple[KnownNode, ...], instance: str, tmp_path: Path
) -> None:
    rule = rule_in(remedy(nodes, UsageSettings(), health({"instance": instance})))
    async with Metrics(tmp_path / "metrics", node_label="", relabelling=[rule]) as metrics:
        await metrics.node("a", labels={"instance": instance})
        prometheus = Prometheus(PrometheusSettings(url=metrics.url), SystemClock())
        try:
            async with asyncio.timeout(30):
                asked = "memory", "node_mem_usage_avg_5m"
                while not (said := list(await prometheus.query(*asked))):  # noqa: ASYNC110 -- it announces nothing
                    await asyncio.sleep(0.05)
        finally:
            await prometheus.close()
    assert [series.labels["node"] for series in said if series] == [nodes[0].name]


def test_a_name_that_might_be_of_two_nodes_is_not_respelt() -> None:
    twins = KnownNode("a.eu.example.com"), KnownNode("a.us.example.com")
    assert "__meta_kubernetes_pod_node_name" in remedy(twins, UsageSettings(), health({"instance": "a:9100"}))
    assert "__meta_kubernetes_pod_node_name" in remedy(
        twins, UsageSettings(), health({"instance": "a.asia.example.com"})
    )


def test_what_one_query_drops_is_seen_in_another() -> None:
    usage = UsageSettings(preset=Preset.NODE_EXPORTER)
    cpu, memory = health({"instance": POD}, name="cpu"), health({"instance": POD, "nodename": "a"})
    assert remedy(SHORT, usage, cpu, memory) == remedy(SHORT, usage, memory)
    long = health({"instance": POD, "nodename": "a.example.com"})
    assert '"source_labels": ["nodename"]' in remedy(SHORT, usage, cpu, long)


@pytest.mark.parametrize(
    ("preset", "where"),
    [
        (Preset.NODE_EXPORTER, 'relabel_configs of node-exporter\'s scrape: {"source_labels"'),
        (Preset.KUBE_PROMETHEUS_STACK, 'relabelings of node-exporter\'s ServiceMonitor: {"sourceLabels"'),
    ],
)
def test_where_no_label_says_the_node_its_scrape_does(preset: Preset, where: str) -> None:
    said = remedy(SHORT, UsageSettings(preset=preset), health({"instance": POD}))
    assert said.startswith(f"add this to the {where}")
    assert said.endswith("}")


def test_a_rule_that_drops_every_label_is_to_keep_those_that_are_looked_at() -> None:
    said = remedy(SHORT, UsageSettings(labels=("node", "host")), health({"job": "node"}))
    assert said.startswith("keep the label node or host in the rules, as these do: {")
    assert "by (node, host)" in said


def test_a_label_that_is_added_is_to_be_looked_at() -> None:
    said = remedy(SHORT, UsageSettings(labels=("instance",)), health({"instance": POD}))
    assert said.endswith(
        ", and keep the label in the rules: by (node, instance), "
        "and write usage.labels: [node, instance] in the configuration of the scheduler"
    )


def test_a_query_of_ones_own_respells_by_itself() -> None:
    usage = UsageSettings(queries={"cpu": "my_cpu"})
    said = remedy(SHORT, usage, health({"instance": "a.example.com"}, name="cpu", query="my_cpu"))
    assert said == (
        'ask in usage.queries.cpu for label_replace(my_cpu, "node", "$1", "instance", "([^.:]+).*")'
    )


@pytest.mark.parametrize("preset", Preset)
@pytest.mark.parametrize("label", ["node", "kubernetes_node"])
def test_a_node_that_has_gone_needs_no_label_that_it_has(preset: Preset, label: str) -> None:
    found = health({label: "gone", "instance": POD}, missing=1, joined=1)
    assert remedy(SHORT, UsageSettings(preset=preset), found) == (
        "wait five minutes if these nodes were just deleted, leave out those of another cluster by usage.matchers, "
        f'such as cluster="prod", or correct {label} if it is another name of a node without a value'
    )


@pytest.mark.parametrize(
    ("labels", "joined"),
    [
        ([{"instance": POD}], 1),
        ([{"node": "gone"}, {"instance": POD}], 1),
        ([{"node": "machine-7"}], 0),
    ],
)
def test_series_that_do_not_say_their_node_need_a_label_however_many_do(
    labels: list[Labels], joined: int
) -> None:
    usage = UsageSettings(preset=Preset.NODE_EXPORTER)
    assert "__meta_kubernetes_pod_node_name" in remedy(
        SHORT, usage, health(*labels, missing=1, joined=joined)
    )


def test_a_node_that_has_gone_is_left_out_by_ones_own_query() -> None:
    usage = UsageSettings(queries={"memory": "my_memory"})
    said = remedy(SHORT, usage, health({"node": "gone"}, missing=1, joined=1))
    assert "leave out those of another cluster by usage.queries.memory, or" in said


@pytest.mark.parametrize(
    ("name", "queries", "said"),
    [
        ("memory", {}, 'leave these out by usage.matchers, such as cluster="prod"'),
        ("memory", {"memory": "my_memory"}, "leave these out by usage.queries.memory"),
        (METRICS_API, {}, "look again in a minute"),
        (
            "pod.cpu",
            {"pod.cpu": "my_pods"},
            "let the query of usage.queries.pod.cpu keep the labels namespace",
        ),
    ],
)
def test_what_is_of_no_node_for_other_reasons(name: str, queries: dict[str, str], said: str) -> None:
    found = health({"node": "gone", "nodename": "a"}, name=name, missing=0)
    assert said in remedy(SHORT, UsageSettings(queries=queries), found)
