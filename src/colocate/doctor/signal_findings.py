"""Findings about each query: no answer, no series, unknown nodes, impossible values; with remedies. Pure."""

import json
from collections.abc import Iterable, Iterator

import msgspec

from colocate.cluster.usage import METRICS_API, Measured, Preset, SignalHealth, UsageSettings
from colocate.cluster.usage.presets import TIME
from colocate.cluster.usage.prometheus import asking_for
from colocate.doctor.node_samples import NodeSamples, named
from colocate.doctor.query_remedies import QueryRemedies
from colocate.doctor.report import CheckResult, bad, good, warn
from colocate.doctor.strangers import LabelRemedies
from colocate.scheduler.kube.configuration import without_login


class _Said(msgspec.Struct, frozen=True):
    """A finding about one signal."""

    signal: str
    result: CheckResult
    cause: str = ""
    """The common cause of findings about several signals; if empty, equal findings are merged."""


def told_once(found: Iterable[_Said]) -> Iterator[CheckResult]:
    """Merge findings with the same cause: all signals are named, with the remedy of the first."""
    alike: dict[object, list[_Said]] = {}
    for said in found:
        alike.setdefault(said.cause or said.result, []).append(said)
    for first, *others in alike.values():
        names = ", ".join(said.signal for said in (first, *others))
        yield msgspec.structs.replace(first.result, reason=f"{names}: {first.result.reason}")


class SignalFindings:
    """Builds findings from one round of queries."""

    def __init__(
        self, usage: UsageSettings, sampled: NodeSamples, strangers: LabelRemedies, queries: QueryRemedies
    ) -> None:
        self._usage = usage
        self._sampled = sampled
        self._strangers = strangers
        self._queries = queries

    def of(self, health: SignalHealth) -> Iterator[_Said]:
        name = health.name
        if health.error:
            where = "the metrics API" if name == METRICS_API else without_login(self._usage.prometheus.url)
            cause = health.error.removeprefix(f"cannot {asking_for(name)}: ")
            yield _Said(name, bad(cause, f"check that {where} answers this: {health.query}"), cause)
        elif not health.counts.series:
            yield self._without_series(health)
        else:
            for result in self._of_series(health):
                yield _Said(name, result)

    def _without_series(self, health: SignalHealth) -> _Said:
        found, remedy = f"{health.query} returns no series", self._queries.of_none(health.name)
        if health.name == TIME and self._queries.by_the_way:
            told = f"{found}: samples count from the time of the answer, even for a node that is no longer scraped"
            return _Said(TIME, warn(told, remedy))
        if health.name.startswith("pod.") and self._usage.pods is None:
            # Optional queries: without them pods are judged less exactly.
            without = f"{found}, so new pods are judged by what they request"
            return _Said(health.name, warn(without, remedy), remedy)
        return _Said(health.name, bad(found, remedy), remedy)

    def _of_series(self, health: SignalHealth) -> Iterator[CheckResult]:
        counts, name = health.counts, health.name
        if counts.unknown:
            labels = dict(health.strangers[0]) if health.strangers else {}
            yield warn(
                f"{counts.unknown} of {counts.series} series belong to no node here: {json.dumps(labels)}",
                self._strangers.of(health),
            )
        odd = {kind: getattr(counts, kind) for kind in ("not_a_number", "infinite", "negative", "malformed")}
        for kind, number in odd.items():
            if number:
                yield warn(f"{number} series are {kind.replace('_', ' ')}", f"look at {health.query}")
        for collision in health.collisions[:1]:
            more = f" and {counts.contested - 1} more" if counts.contested > 1 else ""
            yield warn(
                f"{collision.node}{more}: two series differ, {collision.counted:.0f} % "
                f"{json.dumps(dict(collision.counted_labels))} and {collision.other:.0f} % "
                f"{json.dumps(dict(collision.other_labels))}; the higher counts",
                self._strangers.of_collision(health, collision),
            )
        for said in health.warnings:
            yield warn(f"Prometheus says: {said}", f"look at {health.query}")
        # Nodes without any sample have a finding of their own.
        lacking = sorted(set(health.missing) - self._sampled.incomplete)
        if counts.joined and lacking and name != METRICS_API:
            yield warn(f"{named(lacking)} have no value, but other nodes have", self._queries.of_some(health))
        if health.ratio:
            found = (
                "its memory: this looks like a ratio, from 0 to 1"
                if name.startswith(Measured.MEMORY)
                else "its CPU, and memory looks like a ratio, too"
            )
            yield bad(f"no node uses more than 1 % of {found}", self._queries.of_ratios(health))
        elif name != TIME and counts.joined and not counts.missing and not counts.unknown:
            yield good(f"every node has a value ({counts.joined}){self._hint(name)}")

    def _hint(self, name: str) -> str:
        """A hint about CPU use near zero, if its unit cannot be told: it may be correct."""
        recorded = self._usage.preset is Preset.REAL_USAGE or name in self._usage.queries
        if name != Measured.CPU or not recorded or not self._sampled.cpu_below_one:
            return ""
        return (
            ", and none is above 1 %: right for idle nodes, but for busy nodes a ratio instead of percentages"
        )
