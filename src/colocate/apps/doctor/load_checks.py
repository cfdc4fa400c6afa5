"""Scheduling by real load: whether samples come, are fresh and join; each finding with the rule or label to add."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator

import msgspec

from colocate.apps.doctor.check import Patient, Section, check
from colocate.apps.doctor.node_samples import NodeSamples, named
from colocate.apps.doctor.query_remedies import what_makes, what_makes_percents
from colocate.apps.doctor.report import Result, bad, good, warn
from colocate.apps.doctor.strangers import Remedies
from colocate.apps.scheduler.addresses import without_login
from colocate.apps.scheduler.sections import Usage
from colocate.apps.scheduler.settings import Act, SchedulerConfig
from colocate.apps.scheduler.windows import needs, windows
from colocate.cluster.client import Client
from colocate.cluster.usage import (
    METRICS_API,
    NODE_ADDRESSES,
    KnownNode,
    Measured,
    MetricsApi,
    Preset,
    Prometheus,
    SignalHealth,
    UsagePoller,
    UsageSnapshot,
    queries,
)
from colocate.cluster.usage.directory import Directory
from colocate.cluster.usage.presets import TIME
from colocate.cluster.usage.prometheus import asking_for
from colocate.cluster.usage.signals import duration

_CLOCKS_APART = 30.0


@check(Section.LOAD, "samples")
async def samples(patient: Patient) -> AsyncIterator[Result]:
    """One round of questions, as the scheduler asks them, and what came of it."""
    assert patient.scheduling is not None
    config = patient.scheduling.config
    usage = config.usage
    if not usage.prometheus.url and not usage.metrics_api:
        yield bad(
            "nothing says where samples come from",
            "add usage.prometheus.url, or usage.metricsApi: true, to the configuration of the scheduler",
        )
        return
    if not isinstance(patient.cluster, Client):
        yield bad(
            f"without the cluster nobody knows its nodes: {patient.cluster}", "name it with --kubeconfig"
        )
        return
    nodes = [node.known for node in await patient.client.list(NODE_ADDRESSES)]
    taken = await _one_round(patient, config, nodes)
    remedies = Remedies(usage, Directory(nodes), taken.health)
    sampled = NodeSamples(taken, (node.name for node in nodes), usage.queries)
    found = (said for health in taken.health for said in _of_signal(health, usage, remedies, sampled))
    for result in _told_once(found):
        yield result
    for result in _of_windows(config):
        yield result
    for result in _of_addresses_and_clocks(taken, remedies):
        yield result
    for result in sampled.results(config.load.staleness.after):
        yield result


async def _one_round(patient: Patient, config: SchedulerConfig, nodes: list[KnownNode]) -> UsageSnapshot:
    usage = config.usage
    prometheus = Prometheus(usage.prometheus.settings(), patient.clock) if usage.prometheus.url else None
    metrics_api = MetricsApi(patient.client, usage.prometheus.timeout) if usage.metrics_api else None
    try:
        poller = UsagePoller(queries(config.asked()), lambda: nodes, patient.clock, prometheus, metrics_api)
        return await poller.once()
    finally:
        if prometheus is not None:
            await prometheus.close()


class _Said(msgspec.Struct, frozen=True):
    """What is found of one signal."""

    signal: str
    result: Result
    cause: str = ""
    """What may have the same effect on others; without it, they share what is word by word the same."""


def _told_once(found: Iterable[_Said]) -> Iterator[Result]:
    """What several signals share is told of all of them, with the remedy of the first."""
    alike: dict[object, list[_Said]] = {}
    for said in found:
        alike.setdefault(said.cause or said.result, []).append(said)
    for first, *others in alike.values():
        names = ", ".join(said.signal for said in (first, *others))
        yield msgspec.structs.replace(first.result, reason=f"{names}: {first.result.reason}")


def _of_signal(
    health: SignalHealth, usage: Usage, remedies: Remedies, sampled: NodeSamples
) -> Iterator[_Said]:
    counts, name = health.counts, health.name
    if health.error:
        where = "the metrics API" if name == METRICS_API else without_login(usage.prometheus.url)
        cause = health.error.removeprefix(f"cannot {asking_for(name)}: ")
        yield _Said(name, bad(cause, f"see that {where} answers this: {health.query}"), cause)
        return
    if not counts.series:
        remedy = what_makes(name, usage, remedies)
        yield _Said(name, bad(f"no series answers {health.query}", remedy), remedy)
        return
    for result in _of_series(health, usage, remedies, sampled):
        yield _Said(name, result)


def _of_series(
    health: SignalHealth, usage: Usage, remedies: Remedies, sampled: NodeSamples
) -> Iterator[Result]:
    counts, name = health.counts, health.name
    if counts.unknown:
        labels = dict(health.strangers[0]) if health.strangers else {}
        yield warn(
            f"{counts.unknown} of {counts.series} series are of no node here: {json.dumps(labels)}",
            remedies.of(health),
        )
    odd = {kind: getattr(counts, kind) for kind in ("not_a_number", "infinite", "negative", "malformed")}
    for kind, number in odd.items():
        if number:
            yield warn(f"{number} series are {kind.replace('_', ' ')}", f"look at {health.query}")
    for said in health.warnings:
        yield warn(f"Prometheus says: {said}", f"look at {health.query}")
    # Of the other nodes it is said that they lack a sample.
    lacking = sorted(set(health.missing) - sampled.incomplete)
    if counts.joined and lacking and name != METRICS_API:
        yield warn(
            f"{named(lacking)} have no value, and other nodes have",
            f"see why {health.query} answers for those and not for these",
        )
    if health.ratio:
        found = (
            "its memory: this looks like a ratio, from 0 to 1"
            if name.startswith(Measured.MEMORY)
            else "its CPU, and memory looks like a ratio, too"
        )
        remedy = what_makes_percents(health, usage, remedies)
        yield bad(f"no node uses more than 1 % of {found}", remedy)
    elif name != TIME and counts.joined and not counts.missing and not counts.unknown:
        yield good(f"every one of {counts.joined} nodes has a value{_hint(name, usage, sampled)}")


def _hint(name: str, usage: Usage, sampled: NodeSamples) -> str:
    """What to think of CPU that is hardly used, where its unit is a matter of others: it may well be so."""
    recorded = usage.preset is Preset.SEED or name in usage.queries
    if name != Measured.CPU or not recorded or not sampled.cpu_below_one:
        return ""
    return ", and none is above 1 %: right for idle nodes, and for busy ones a ratio in the place of percents"


def _of_windows(config: SchedulerConfig) -> Iterator[Result]:
    """What the policies would judge by, and nobody asks for."""
    usage = config.usage
    there = windows(usage, config.load) if usage.prometheus.url else ()
    missing = [need.window for need in needs(config.load) if not need.met(there)]
    if missing and Act.EXTENDER in config.act:
        said = ", ".join(f"{{statistic: {one.statistic}, span: {duration(one.span)}}}" for one in missing)
        yield warn(
            f"{' and '.join(one.statistic for one in missing)} are not asked for: peaks are plain averages",
            f"add to usage.windows: {said}" if usage.prometheus.url else "add usage.prometheus.url",
        )


def _of_addresses_and_clocks(taken: UsageSnapshot, remedies: Remedies) -> Iterator[Result]:
    if taken.ambiguous:
        yield warn(
            f"{named(taken.ambiguous)}: several nodes have this address, so nothing joins by it",
            remedies.relabelling(),
        )
    if taken.clock_offset is not None and abs(taken.clock_offset) > _CLOCKS_APART:
        yield warn(
            f"Prometheus' clock is {taken.clock_offset:+.0f} s from this machine's",
            "let both be set by NTP: samples seem older or younger than they are",
        )
