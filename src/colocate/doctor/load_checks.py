"""Samples for scheduling by load: whether they come, are fresh and join; with the rule or label to add."""

from collections.abc import AsyncIterator, Iterator

from colocate.cluster.client import Client
from colocate.cluster.usage import (
    NODE_ADDRESSES,
    KnownNode,
    MetricsApi,
    Prometheus,
    UsagePoller,
    UsageSnapshot,
    queries,
)
from colocate.cluster.usage.directory import Directory
from colocate.doctor.check import DoctorSection, Patient, check
from colocate.doctor.node_samples import NodeSamples, named
from colocate.doctor.query_remedies import QueryRemedies
from colocate.doctor.report import CheckResult, bad, warn
from colocate.doctor.signal_findings import SignalFindings, told_once
from colocate.doctor.strangers import LabelRemedies
from colocate.scheduler.settings import Act, SchedulerConfig
from colocate.scheduler.windows import needs, windows

_CLOCKS_APART = 30.0


@check(DoctorSection.LOAD, "samples")
async def samples(patient: Patient) -> AsyncIterator[CheckResult]:
    """The results of one round of queries, as the scheduler makes them."""
    assert patient.scheduling is not None
    config = patient.scheduling.config
    usage = config.usage
    if not usage.prometheus.url and not usage.metrics_api:
        yield bad(
            "no source of samples is configured",
            "add usage.prometheus.url, or usage.metricsApi: true, to the configuration of the scheduler",
        )
        return
    if not isinstance(patient.cluster, Client):
        yield bad(
            f"the nodes are unknown without the cluster: {patient.cluster}", "give it with --kubeconfig"
        )
        return
    nodes = [node.known for node in await patient.client.list(NODE_ADDRESSES)]
    taken = await _one_round(patient, config, nodes)
    remedies = LabelRemedies(usage, Directory(nodes), taken.health)
    signals = [query.signal for query in queries(config.asked()).signals]
    of_queries = QueryRemedies(usage, signals, remedies)
    sampled = NodeSamples(taken, (node.name for node in nodes), usage.queries)
    findings = SignalFindings(usage, sampled, remedies, of_queries)
    for result in told_once(said for health in taken.health for said in findings.of(health)):
        yield result
    for result in _of_windows(config, of_queries):
        yield result
    for result in _of_addresses_and_clocks(taken, remedies):
        yield result
    for result in sampled.results(config.load.staleness.after):
        yield result


async def _one_round(patient: Patient, config: SchedulerConfig, nodes: list[KnownNode]) -> UsageSnapshot:
    usage = config.usage
    prometheus = Prometheus(usage.prometheus, patient.clock) if usage.prometheus.url else None
    metrics_api = MetricsApi(patient.client, usage.prometheus.timeout) if usage.metrics_api else None
    try:
        poller = UsagePoller(config.asked(), lambda: nodes, patient.clock, prometheus, metrics_api)
        return await poller.once()
    finally:
        if prometheus is not None:
            await prometheus.close()


def _of_windows(config: SchedulerConfig, remedies: QueryRemedies) -> Iterator[CheckResult]:
    """Statistics that the policies use and the configuration does not query."""
    usage = config.usage
    there = windows(usage, config.load) if usage.prometheus.url else ()
    missing = [need.window for need in needs(config.load) if not need.met(there)]
    if missing and Act.EXTENDER in config.act:
        yield warn(
            f"{' and '.join(one.statistic for one in missing)} are not queried, so peaks are plain averages",
            remedies.of_windows(missing) if usage.prometheus.url else "add usage.prometheus.url",
        )


def _of_addresses_and_clocks(taken: UsageSnapshot, remedies: LabelRemedies) -> Iterator[CheckResult]:
    if taken.ambiguous:
        yield warn(
            f"{named(taken.ambiguous)}: several nodes have this address, so no series joins by it",
            remedies.relabelling(),
        )
    if taken.clock_offset is not None and abs(taken.clock_offset) > _CLOCKS_APART:
        yield warn(
            f"Prometheus' clock is {taken.clock_offset:+.0f} s from this machine's",
            "set both clocks by NTP: samples look older or newer than they are",
        )
