"""The doctor on samples: every finding names the rule, the label or the query to write."""

import json
import time
from collections.abc import Mapping

import pytest
from tests.cluster.usage.fake import CPU, MEMORY, TIME, contested, vector
from tests.doctor.examining_load import CALM, NAMES, cluster_of, examined, samples, say
from tests.scheduler.pretending import P95, pretending

from colocate.cluster.resources import NODES as CLIENT_NODES
from colocate.cluster.usage import Preset, PrometheusSettings, Statistic, UsageSettings, Window
from colocate.doctor.report import CheckResult, CheckVerdict
from colocate.model.values import Seconds


async def test_all_is_well() -> None:
    async with pretending(CALM) as prometheus:
        found = await samples(prometheus, *NAMES)
    assert {result.verdict for result in found} == {CheckVerdict.GOOD}
    assert found[-1].reason == "every node has a fresh sample (3)"


@pytest.mark.parametrize(
    ("query", "rule"), [(CPU, "node_cpu_usage_avg_5m"), (MEMORY, "node_mem_usage_avg_5m")]
)
async def test_a_rule_that_is_missing_is_told_word_by_word(query: str, rule: str) -> None:
    async with pretending(CALM) as prometheus:
        say(prometheus, query)
        found = await samples(prometheus, *NAMES)
    worst = max(found, key=lambda result: result.verdict)
    assert worst.verdict is CheckVerdict.BAD
    written = json.loads(worst.remedy[worst.remedy.index("{") :])
    assert written["record"] == rule
    assert "by (node, kubernetes_node, instance)" in written["expr"]


async def test_series_that_no_rule_makes_have_a_remedy_of_their_own() -> None:
    async with pretending(CALM) as prometheus, cluster_of(*NAMES) as client:
        own = {"cpu": "my_cpu"}
        usage = UsageSettings(
            prometheus=PrometheusSettings(url=prometheus.url), pods=True, queries=own, windows=()
        )
        found = await examined("samples", client, usage=usage)
    remedies = {
        result.reason.partition(":")[0]: result.remedy
        for result in found
        if result.verdict is CheckVerdict.BAD
    }
    assert remedies.keys() == {"cpu", "pod.cpu", "pod.memory"}
    assert remedies["cpu"] == "find out why the query of usage.queries.cpu returns nothing, or leave it out"
    assert "cAdvisor (container_cpu_usage_seconds_total" in remedies["pod.cpu"]
    assert "cAdvisor (container_memory_working_set_bytes" in remedies["pod.memory"]


async def with_own_queries(
    queries: dict[str, str], windows: tuple[Window, ...] | None = None
) -> list[CheckResult]:
    """What is found where all that is known of nodes is from queries of the user's own."""
    async with pretending({}) as prometheus, cluster_of(*NAMES) as client:
        for query in queries.values():
            value = time.time() if query.startswith("timestamp(") else 20
            prometheus.table.say(query, vector(dict.fromkeys(NAMES, value), time.time()))
        usage = UsageSettings(
            prometheus=PrometheusSettings(url=prometheus.url),
            preset=Preset.KUBE_PROMETHEUS_STACK,
            queries=queries,
            windows=windows,
            pods=False,
        )
        return await examined("samples", client, usage=usage)


@pytest.mark.parametrize(
    ("memory", "remedy"),
    [
        ('my_memory{job="x"}', 'write usage.queries.time: timestamp(my_memory{job="x"})'),
        (
            "100 * (1 - free / total)",
            "write usage.queries.time: timestamp(SERIES), with a series of every node",
        ),
    ],
)
async def test_the_times_of_ones_own_queries_are_asked_for_by_another(memory: str, remedy: str) -> None:
    found = await with_own_queries({"cpu": "my_cpu", "memory": memory})
    [times] = [result for result in found if result.reason.startswith("time: ")]
    assert times.verdict is CheckVerdict.WARN, "samples are there, and count as new as they come"
    assert "samples count from the time of the answer" in times.reason
    assert times.remedy.startswith(remedy)


async def test_statistics_of_ones_own_queries_are_asked_for_by_others() -> None:
    found = await with_own_queries({"cpu": "my_cpu", "memory": "100 * used / total"})
    [plain] = [result for result in found if "plain averages" in result.reason]
    windows, _, asked = plain.remedy.partition(", and to usage.queries: ")
    assert windows == "add to usage.windows: {statistic: p95, span: 1h}, {statistic: deviation, span: 15m}"
    assert json.loads(asked) == {
        "cpu.p95.1h": "quantile_over_time(0.95, (my_cpu)[1h:1m])",
        "memory.p95.1h": "quantile_over_time(0.95, (100 * used / total)[1h:1m])",
        "cpu.deviation.15m": "stddev_over_time((my_cpu)[15m:15s])",
        "memory.deviation.15m": "stddev_over_time((100 * used / total)[15m:15s])",
    }


async def test_what_is_to_be_written_beside_ones_own_queries_is_enough() -> None:
    own = {"cpu": "my_cpu", "memory": "my_memory"}
    stated = (Window(Statistic.P95, Seconds(3600)), Window(Statistic.DEVIATION, Seconds(900)))
    asked: dict[str, str] = {}
    for result in await with_own_queries(own, stated):
        if result.verdict is CheckVerdict.BAD:
            _, _, remedy = result.remedy.partition("add to usage.queries: ")
            asked |= json.loads(remedy)
        elif result.verdict is CheckVerdict.WARN:
            _, _, remedy = result.remedy.partition("write usage.queries.time: ")
            asked["time"] = remedy.partition(";")[0]
    assert asked.keys() == {
        "cpu.p95.1h",
        "cpu.deviation.15m",
        "memory.p95.1h",
        "memory.deviation.15m",
        "time",
    }
    found = await with_own_queries(own | asked, stated)
    assert {result.verdict for result in found} == {CheckVerdict.GOOD}


async def test_a_label_of_ones_own_query_is_not_mended_by_a_rule() -> None:
    async with pretending(CALM) as prometheus, cluster_of(*NAMES) as client:
        say(prometheus, "my_cpu", {"host": "rack 7"})
        usage = UsageSettings(
            prometheus=PrometheusSettings(url=prometheus.url),
            pods=False,
            queries={"cpu": "my_cpu"},
            windows=(),
        )
        found = await examined("samples", client, usage=usage)
    [dropped] = [result for result in found if "belong to no node here" in result.reason]
    assert dropped.remedy == (
        "let the query of usage.queries.cpu keep the label node, "
        "or put the label that names the node into usage.labels"
    )


async def test_a_rule_that_drops_the_label_is_told_how_to_keep_it() -> None:
    async with pretending(CALM) as prometheus:
        say(prometheus, CPU, {})
        found = await samples(prometheus, *NAMES)
    [dropped] = [result for result in found if "belong to no node here" in result.reason]
    assert dropped.reason.startswith("cpu: 1 of 1 series")
    assert "keep the label node" in dropped.remedy
    assert "by (node, kubernetes_node, instance)" in dropped.remedy


async def test_an_instance_that_is_no_address_of_a_node_is_told_the_label_to_add() -> None:
    async with pretending(CALM) as prometheus:
        say(prometheus, MEMORY, {"instance": "192.168.7.7:9100"})
        found = await samples(prometheus, *NAMES)
    [stranger] = [result for result in found if "192.168.7.7" in result.reason]
    assert '"target_label": "node"' in stranger.remedy
    assert "__meta_kubernetes_pod_node_name" in stranger.remedy


async def test_peaks_that_are_plain_averages_are_told() -> None:
    async with pretending(CALM) as prometheus, cluster_of(*NAMES) as client:
        asked = UsageSettings(prometheus=PrometheusSettings(url=prometheus.url), pods=False, windows=())
        found = await examined("samples", client, usage=asked)
    [plain] = [result for result in found if result.verdict is CheckVerdict.WARN]
    assert plain.reason == "p95 and deviation are not queried, so peaks are plain averages"
    assert plain.remedy == (
        "add to usage.windows: {statistic: p95, span: 1h}, {statistic: deviation, span: 15m}"
    )


async def test_two_series_that_claim_one_node_are_told_with_the_matcher_to_add() -> None:
    async with pretending(CALM) as prometheus:
        prometheus.table.say(MEMORY, contested("a", 95, 0, time.time(), {"b": 40, "c": 50}))
        found = await samples(prometheus, *NAMES)
    [told] = [result for result in found if "two series" in result.reason]
    assert told.verdict is CheckVerdict.WARN
    assert told.reason == (
        'memory: a: two series differ, 95 % {"node": "a", "job": "node-exporter"} and 0 % '
        '{"node": "a", "job": "tenant"}; the higher counts'
    )
    assert told.remedy == (
        r'write usage.matchers: "job=\"node-exporter\"" if job="node-exporter" is your own exporter'
    )


async def test_a_node_without_a_sample_is_named() -> None:
    async with pretending(CALM) as prometheus:
        found = await samples(prometheus, *NAMES, "d")
    [missing] = [result for result in found if "no sample" in result.reason]
    assert missing.verdict is CheckVerdict.WARN
    assert missing.reason.startswith("d: ")
    assert "node-exporter" in missing.remedy


async def test_of_many_nodes_without_a_sample_some_are_named_and_the_others_counted() -> None:
    async with pretending(CALM) as prometheus:
        found = await samples(prometheus, *NAMES, *"defghijk")
    [missing] = [result for result in found if "no sample" in result.reason]
    assert missing.reason.startswith("d, e, f, g, h and 3 more: no sample; ")


@pytest.mark.parametrize(
    ("query", "what", "collector"),
    [(CPU, "CPU", "--collector.cpu"), (MEMORY, "memory", "--collector.meminfo")],
)
async def test_a_node_without_a_sample_of_one_resource_is_named(
    query: str, what: str, collector: str
) -> None:
    async with pretending(CALM) as prometheus:
        say(prometheus, query, {"node": "a"})
        found = await samples(prometheus, *NAMES)
    [missing] = [result for result in found if result.verdict is not CheckVerdict.GOOD]
    assert missing.verdict is CheckVerdict.WARN
    assert (
        missing.reason == f"b, c: no sample of {what}; for these nodes it counts as the median of the others"
    )
    assert query in missing.remedy
    assert collector in missing.remedy
    assert not any("fresh samples" in result.reason for result in found)


async def test_a_resource_that_no_node_has_is_told_once() -> None:
    async with pretending(CALM) as prometheus:
        say(prometheus, CPU)
        found = await samples(prometheus, *NAMES)
    [missing] = [result for result in found if result.verdict is not CheckVerdict.GOOD]
    assert missing.reason == f"cpu: {CPU} returns no series"
    assert not any("fresh samples" in result.reason for result in found)


async def test_a_statistic_that_some_nodes_lack_is_told() -> None:
    async with pretending(CALM) as prometheus:
        say(prometheus, P95[1], {"node": "a"})
        found = await samples(prometheus, *NAMES, "d")
    [lacking] = [result for result in found if result.reason.startswith("memory.p95.1h: ")]
    assert lacking.reason == "memory.p95.1h: b, c have no value, but other nodes have"
    assert P95[1] in lacking.remedy


def ratios_of(uses: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    return {name: (cpu / 100, memory / 100) for name, (cpu, memory) in uses.items()}


async def test_a_rule_that_records_ratios_is_told_the_one_that_records_percents() -> None:
    async with pretending(ratios_of(CALM | {"b": (10.0, 93.0)})) as prometheus:
        found = await samples(prometheus, *NAMES)
    told = {result.reason: result for result in found if result.verdict is CheckVerdict.BAD}
    cpu, memory = told.values()
    assert memory.reason == (
        "memory, memory.p95.1h: no node uses more than 1 % of its memory: this looks like a ratio, from 0 to 1"
    )
    assert (
        cpu.reason
        == "cpu, cpu.p95.1h: no node uses more than 1 % of its CPU, and memory looks like a ratio, too"
    )
    for result, record in ((cpu, "node_cpu_usage_avg_5m"), (memory, "node_mem_usage_avg_5m")):
        rule = json.loads(result.remedy[result.remedy.index("{") :])
        assert rule["record"] == record
        assert "100 * (1 - " in rule["expr"]


async def test_a_query_of_ones_own_that_answers_with_ratios_is_multiplied() -> None:
    async with pretending(CALM) as prometheus, cluster_of(*NAMES) as client:
        own = {"memory": "1 - free / total"}
        prometheus.table.say(own["memory"], vector({"a": 0.93, "b": 0.1, "c": 0.2}, time.time()))
        usage = UsageSettings(
            prometheus=PrometheusSettings(url=prometheus.url), pods=False, queries=own, windows=()
        )
        found = await examined("samples", client, usage=usage)
    [ratio] = [result for result in found if result.verdict is CheckVerdict.BAD]
    assert ratio.reason.startswith("memory: no node uses more than 1 % of its memory")
    assert ratio.remedy == "ask in usage.queries.memory for 100 * (1 - free / total)"


async def test_idle_nodes_are_no_alarm_and_whoever_reads_sees_that_they_are_idle() -> None:
    idle = dict.fromkeys(NAMES, (0.4, 12.0))
    async with pretending(idle) as prometheus, cluster_of(*NAMES) as client:
        found = await examined("samples", client, prometheus.url)
    assert {result.verdict for result in found} == {CheckVerdict.GOOD}
    assert found[0].reason == (
        "cpu: every node has a value (3), and none is above 1 %: right for idle nodes, but for busy nodes "
        "a ratio instead of percentages"
    )


async def test_samples_that_are_too_old_are_named() -> None:
    async with pretending(CALM) as prometheus:
        prometheus.table.say(
            TIME, vector({"a": time.time(), "b": time.time() - 600, "c": time.time()}, time.time())
        )
        found = await samples(prometheus, *NAMES)
    [old] = [result for result in found if "older than" in result.reason]
    assert old.reason.startswith("b: the last sample is older than 180 s")


async def test_a_prometheus_that_does_not_answer_is_told() -> None:
    async with cluster_of(*NAMES) as client:
        [found] = await examined("samples", client, "http://127.0.0.1:9")
    assert found.verdict is CheckVerdict.BAD
    names, _, cause = found.reason.partition(": ")
    assert {"cpu", "memory", "time"} < set(names.split(", ")), "once for all that it is asked"
    assert cause == "no connection to http://127.0.0.1:9: connection refused"


async def test_series_that_are_all_missing_for_the_same_reason_are_told_once() -> None:
    async with pretending({}) as prometheus, cluster_of(*NAMES) as client:
        usage = UsageSettings(prometheus=PrometheusSettings(url=prometheus.url), preset=Preset.NODE_EXPORTER)
        found = await examined("samples", client, usage=usage)
    [missing] = [result for result in found if result.verdict is CheckVerdict.BAD]
    assert missing.reason.startswith("cpu, memory, ")
    assert missing.remedy == "let Prometheus scrape node-exporter on every node"


async def by_the_metrics_api(**used: str) -> list[CheckResult]:
    """What is found where the metrics API is asked alone; it knows the nodes that use something."""
    async with cluster_of(*NAMES) as client:
        for name, memory in used.items():
            told = {"metadata": {"annotations": {"lab.colocate.dev/usage-memory": memory}}}
            await client.patch(CLIENT_NODES, name, told)
        return await examined("samples", client, usage=UsageSettings(metrics_api=True))


async def test_the_metrics_api_alone_is_enough() -> None:
    found = await by_the_metrics_api(a="1Gi", b="2Gi", c="3Gi")
    assert "metrics-api: every node has a value (3)" in [result.reason for result in found]
    assert found[-1].reason == "every node has a fresh sample (3)"


@pytest.mark.parametrize("used", [{"a": "1Gi"}, {}])
async def test_what_the_metrics_api_does_not_know_is_not_mended_by_a_prometheus(used: dict[str, str]) -> None:
    found = await by_the_metrics_api(**used)
    missing = [result for result in found if "no sample" in result.reason or "no series" in result.reason]
    assert missing
    for result in missing:
        assert "metrics-server" in result.remedy
        assert "rometheus" not in result.remedy


async def test_without_an_address_or_a_cluster_that_is_the_finding() -> None:
    async with cluster_of() as client:
        assert "usage.prometheus.url" in (await examined("samples", client))[0].remedy
    assert "--kubeconfig" in (await examined("samples", "nowhere", "http://127.0.0.1:9"))[0].remedy
