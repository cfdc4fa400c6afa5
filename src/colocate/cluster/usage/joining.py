"""Series to nodes: which node each is of, which values count, which of two for one node, and which are news. Pure.

A series is of the node that the first of the labels names which names any. Of several series for one node, the
one whose label comes first in that order counts, then the one whose own scrapes are known, then the fresher, then
the higher: of two exporters that disagree, the one that says busy is the safer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from colocate.cluster.usage.answers import Series
from colocate.cluster.usage.directory import Directory

_ROUNDING = -1.0
"""Percents down to this are zero, seen through two clocks; below, they are nonsense."""
_GREATEST = 1e6
"""No node is ten thousand times as busy as it can be: beyond, a query has lost its unit."""
_EXAMPLES = 5


class Sample(msgspec.Struct, frozen=True):
    """A value of one node, and when it was so."""

    value: float
    time: float
    """Seconds since the epoch, on our clock."""
    scraped: float = 0.0
    """The same on Prometheus' clock, as it says itself; 0 where that is not known."""


class Counts(msgspec.Struct, frozen=True):
    """What became of the series of an answer."""

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
    """Or far beyond what can be."""
    negative: int = 0
    malformed: int = 0
    """Series that could not be read."""


class Joined(msgspec.Struct, frozen=True):
    """The samples of one answer, by node."""

    samples: Mapping[str, Sample] = {}
    counts: Counts = Counts()
    missing: tuple[str, ...] = ()
    """The nodes that have no value."""
    strangers: tuple[Mapping[str, str], ...] = ()
    """The labels of some series of no node that we know."""


LATEST = 1e11
"""A time, in seconds since the epoch, that no clock shows."""
_REMEMBERED = 600.0
"""Seconds for which a series that is no longer scraped is told apart from others of its node; longer than rules go
on after it."""
_DELAY = 30.0
"""Seconds by which the time of one scrape may differ on our clock, from one answer to the next: a query may have
waited for its turn."""


class Scrape(NamedTuple):
    """When something was scraped, on our clock and, where it is known, on Prometheus'."""

    time: float
    stamp: float = 0.0


class Times:
    """When series were last scraped, from the answer of the query for times.

    Prometheus tells ages: its own clock may be another than ours. What is not in the answer was last scraped when
    an earlier one said so: rules over a window go on for a while after their exporter has gone.
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
            self._by_labels = {key: one for key, one in before._by_labels.items() if one.time > recent}
            self._by_node = {node: one for node, one in before._by_node.items() if node in directory.nodes}
        by_labels: dict[tuple[str, ...], Scrape] = {}
        by_node: dict[str, Scrape] = {}
        for series in answer:
            if series is None or not math.isfinite(series.value) or not math.isfinite(series.time):
                continue
            scrape = Scrape(max(0.0, now - max(0.0, series.time - series.value)), series.value)
            key = self._key(series)
            by_labels[key] = max(scrape, by_labels.get(key, scrape))
            if (node := node_of(series, directory, labels)[0]) is not None:
                by_node[node] = max(scrape, by_node.get(node, scrape))
        self._by_labels |= by_labels
        self._by_node |= by_node

    def of(self, series: Series, node: str) -> tuple[bool, Scrape]:
        """Whether scrapes of this very series are known, and when it, or at least its node, was scraped; now where
        neither is known."""
        own = self._by_labels.get(self._key(series))
        return own is not None, own or self._by_node.get(node, self._now)

    def _key(self, series: Series) -> tuple[str, ...]:
        return tuple(series.labels.get(label, "") for label in self._labels)


def node_of(series: Series, directory: Directory, labels: Sequence[str]) -> tuple[str | None, int]:
    """The node that a series is of, and the place in `labels` of the one that says so."""
    for place, label in enumerate(labels):
        text = series.labels.get(label)
        if text and (node := directory.find(text)) is not None:
            return node, place
    return None, len(labels)


def join(
    answer: Iterable[Series | None],
    directory: Directory,
    labels: Sequence[str],
    times: Times,
    greatest: float = _GREATEST,
) -> Joined:
    """The samples of an answer; a value beyond `greatest` is none."""
    best: dict[str, tuple[int, bool, Scrape, float]] = {}
    strangers: list[Mapping[str, str]] = []
    count = dict.fromkeys(Counts.__struct_fields__, 0)
    for series in answer:
        count["series"] += 1
        if series is None:
            count["malformed"] += 1
            continue
        node, place = node_of(series, directory, labels)
        if node is None:
            count["unknown"] += 1
            if len(strangers) < _EXAMPLES:
                strangers.append(series.labels)
        elif fault := fault_of(series.value, greatest):
            count[fault] += 1
        else:
            # The greatest of these is the one that counts.
            candidate = (-place, *times.of(series, node), max(0.0, series.value))
            count["duplicate"] += node in best
            best[node] = max(candidate, best.get(node, candidate))
    missing = [name for name in directory.nodes if name not in best]
    count |= {"joined": len(best), "missing": len(missing)}
    return Joined(
        {node: Sample(value, *scrape) for node, (_, _, scrape, value) in best.items()},
        Counts(**count),
        tuple(missing),
        tuple(strangers),
    )


def with_news(kept: Mapping[str, Sample], found: Mapping[str, Sample], now: float) -> dict[str, Sample]:
    """The samples that were kept, with those in their place that are of a newer scrape, or of nobody knows which.

    Rules over a window drain when their exporter has gone: their values go on changing, CPU towards 100 percent,
    and mean nothing.
    """
    news = {
        node: sample
        for node, sample in found.items()
        if node not in kept or _is_news(sample, kept[node], now)
    }
    return {**kept, **news}


def _is_news(found: Sample, kept: Sample, now: float) -> bool:
    if not found.scraped or found.scraped > kept.scraped:
        return True
    if found.scraped == kept.scraped:
        return False
    # An older scrape, as of a replica that lags; unless it is younger by its age, or what is kept is from the
    # future: then a clock was set back.
    return found.time > kept.time + _DELAY or kept.time > now + _DELAY


def fault_of(value: float, greatest: float = _GREATEST) -> str:
    """What is wrong with a value, as a field of Counts; empty where it is sound."""
    if math.isnan(value):
        return "not_a_number"
    if value > greatest or value == -math.inf:
        return "infinite"
    return "negative" if value < _ROUNDING else ""
