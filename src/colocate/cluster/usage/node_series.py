"""Which node a series names, whether its value is sound, and when it was scraped. Pure.

A series belongs to the node that the first matching label names. `claims` decides which of several series of one node
counts. `node_loads` joins the samples of all signals into one load per node.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

import msgspec

from colocate.cluster.usage.answers import Series
from colocate.cluster.usage.claims import Claim, Claims, Sample, SeriesCollision, highest, identity
from colocate.cluster.usage.directory import Directory
from colocate.cluster.usage.signals import Measured, Signal, Statistic
from colocate.model.load import Aggregate, Amount, NodeLoad, PodUsage, Usage

_ROUNDING = -1.0
"""Percents from this to 0 are taken as 0: counters and clocks are read at different moments. Below, they are
refused."""
_GREATEST = 1e6
"""Percent: a greater value is in another unit."""
_GREATEST_OF_POD = 1e15
"""A petabyte."""
_LATE = 300.0
"""Seconds by which a deviation or an aggregate may be older than the use beside which it stands."""
_EXAMPLES = 5
_MANY = 64
"""Series of one node that are collected before only the highest are kept."""


class Counts(msgspec.Struct, frozen=True):
    """How many series of an answer were used, and why others were not."""

    series: int = 0
    joined: int = 0
    """Nodes that have a value."""
    missing: int = 0
    """Nodes that have none."""
    unknown: int = 0
    """Series of no node that we know."""
    duplicate: int = 0
    """Series of a node that has another."""
    not_a_number: int = 0
    infinite: int = 0
    """Infinite, or greater than any possible value."""
    negative: int = 0
    malformed: int = 0
    """Series that could not be read."""
    contested: int = 0
    """Nodes with two series that disagree."""


class Joined(msgspec.Struct, frozen=True):
    """One answer, by node; answers about pods and from the metrics API have only samples."""

    claims: Claims = {}
    samples: Mapping[str, Sample] = {}
    """The highest of each node."""
    counts: Counts = Counts()
    missing: tuple[str, ...] = ()
    """The nodes that have no value."""
    strangers: tuple[Mapping[str, str], ...] = ()
    """The labels of some series of no node that we know."""
    collisions: tuple[SeriesCollision, ...] = ()
    """Some of the nodes that are contested."""


LATEST = 1e11
"""A time, in seconds since the epoch, that no clock shows."""
_REMEMBERED = 600.0
"""Seconds for which the scrape time of a series that is gone is remembered: longer than rules outlive their
series."""
_SERIES_OF_A_NODE = 4
"""Remembered series per node on average; of more, the latest are kept."""


class Scrape(NamedTuple):
    """When something was scraped, on our clock and, where it is known, on Prometheus'."""

    time: float
    stamp: float = 0.0


class Times:
    """When series were last scraped, from the answer of the query for times.

    Only ages are taken from Prometheus, as its clock may differ from ours. A series that is missing from the answer
    was last scraped when an earlier answer said so: rules over a window outlive their exporter for a while.
    """

    def __init__(
        self,
        answer: Iterable[Series | None],
        directory: Directory,
        labels: Sequence[str],
        now: float,
        before: "Times | None" = None,
    ) -> None:
        self._labels = labels
        self._now = Scrape(now)
        self._by_labels: dict[tuple[str, ...], Scrape] = {}
        self._by_node: dict[str, Scrape] = {}
        if before is not None:
            recent = now - _REMEMBERED
            remembered = ((key, one) for key, one in before._by_labels.items() if one.time > recent)
            most = _SERIES_OF_A_NODE * (len(directory.nodes) + 1)
            self._by_labels = dict(nlargest(most, remembered, key=lambda one: one[1]))
            self._by_node = {node: one for node, one in before._by_node.items() if node in directory.nodes}
        by_labels: dict[tuple[str, ...], Scrape] = {}
        by_node: dict[str, Scrape] = {}
        for series in answer:
            if series is None or not math.isfinite(series.value) or not math.isfinite(series.time):
                continue
            if (node := directory.of(series.labels, labels)) is None:
                continue
            # An exporter may set its own timestamps; none is later than the evaluation.
            stamp = min(series.value, series.time)
            scrape = Scrape(max(0.0, now - (series.time - stamp)), stamp)
            key = self._key(series)
            by_labels[key] = max(scrape, by_labels.get(key, scrape))
            by_node[node] = max(scrape, by_node.get(node, scrape))
        self._by_labels |= by_labels
        self._by_node |= by_node

    def of(self, series: Series, node: str) -> Scrape:
        """When this series was scraped, else its node; now where neither is known."""
        return self._by_labels.get(self._key(series)) or self._by_node.get(node, self._now)

    def _key(self, series: Series) -> tuple[str, ...]:
        return tuple(series.labels.get(label, "") for label in self._labels)


def join(
    answer: Iterable[Series | None],
    directory: Directory,
    labels: Sequence[str],
    times: Times,
    greatest: float = _GREATEST,
) -> Joined:
    """Join the series of an answer with nodes; values beyond `greatest` are refused."""
    found: dict[str, list[Claim]] = {}
    strangers: list[Mapping[str, str]] = []
    count = dict.fromkeys(Counts.__struct_fields__, 0)
    for series in answer:
        count["series"] += 1
        if series is None:
            count["malformed"] += 1
        elif (node := directory.of(series.labels, labels)) is None:
            count["unknown"] += 1
            if len(strangers) < _EXAMPLES:
                strangers.append(series.shown_labels)
        elif fault := fault_of(series.value, greatest):
            count[fault] += 1
        else:
            claims = found.setdefault(node, [])
            count["duplicate"] += bool(claims)
            sample = Sample(max(0.0, series.value), *times.of(series, node))
            claims.append(Claim(identity(series.labels), sample))
            if len(claims) > _MANY:
                claims[:] = highest(claims)
    missing = [name for name in directory.nodes if name not in found]
    count |= {"joined": len(found), "missing": len(missing)}
    return Joined(
        {node: highest(claims) for node, claims in found.items()},
        {node: max((claim.sample for claim in claims), key=_by_value) for node, claims in found.items()},
        Counts(**count),
        tuple(missing),
        tuple(strangers),
    )


def _by_value(sample: Sample) -> tuple[float, float]:
    return sample.value, sample.time


def fault_of(value: float, greatest: float = _GREATEST) -> str:
    """What is wrong with a value, as a field of Counts; empty where it is sound."""
    if math.isnan(value):
        return "not_a_number"
    if value > greatest or value == -math.inf:
        return "infinite"
    return "negative" if value < _ROUNDING else ""


def join_pods(answer: Iterable[Series | None], now: float) -> Joined:
    """The samples of an answer, by namespace/name; of two for one pod the higher."""
    samples: dict[str, Sample] = {}
    count = dict.fromkeys(Counts.__struct_fields__, 0)
    for series in answer:
        count["series"] += 1
        if series is None:
            count["malformed"] += 1
            continue
        namespace, pod = series.labels.get("namespace"), series.labels.get("pod")
        if not namespace or not pod:
            count["unknown"] += 1
        elif fault := fault_of(series.value, _GREATEST_OF_POD):
            count[fault] += 1
        else:
            key = f"{namespace}/{pod}"
            known = samples.get(key)
            count["duplicate"] += known is not None
            samples[key] = Sample(max(0.0, series.value, known.value if known else 0.0), now)
    count["joined"] = len(samples)
    return Joined(samples=samples, counts=Counts(**count))


def pod_usages(cpu: Mapping[str, Sample], memory: Mapping[str, Sample]) -> dict[str, PodUsage]:
    """The use of pods with samples of both CPU and memory."""
    return {
        key: PodUsage(
            Amount(round(sample.value), round(memory[key].value)), min(sample.time, memory[key].time)
        )
        for key, sample in cpu.items()
        if key in memory
    }


def node_loads(samples: Mapping[Signal, Mapping[str, Sample]]) -> dict[str, NodeLoad]:
    """The samples of all signals, by node."""
    names = dict.fromkeys(name for signal in samples for name in samples[signal])
    use: dict[Measured, dict[str, Usage]] = {measured: _usages(measured, samples) for measured in Measured}
    found = {name: NodeLoad(use[Measured.CPU].get(name), use[Measured.MEMORY].get(name)) for name in names}
    return {name: load for name, load in found.items() if load.cpu or load.memory}


def _usages(measured: Measured, samples: Mapping[Signal, Mapping[str, Sample]]) -> dict[str, Usage]:
    further = [
        (signal, by_node)
        for signal, by_node in samples.items()
        if signal.measured is measured and signal.statistic not in (Statistic.USE, Statistic.POD)
    ]
    return {
        name: _usage(sample, [(signal, by_node[name]) for signal, by_node in further if name in by_node])
        for name, sample in samples.get(Signal(measured), {}).items()
    }


def _usage(use: Sample, further: list[tuple[Signal, Sample]]) -> Usage:
    deviation, aggregates = 0.0, []
    for signal, sample in further:
        if sample.time < use.time - _LATE:
            # Its query has failed for a while: it is too old to stand beside the use.
            continue
        if (kind := signal.aggregation) is None:
            deviation = sample.value
        else:
            aggregates.append(Aggregate(kind, signal.window, sample.value))
    return Usage(use.value, use.time, deviation, tuple(aggregates))
