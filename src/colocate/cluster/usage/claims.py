"""Which of the series that claim a node counts, and what to do about series that disagree. Pure.

Any pod that is scraped can publish a series that names a node. So the highest claim counts, not the freshest: a
tenant may make a node look busy, which people notice, but never idle. The value of a series changes only with its
scrapes; the last one counts until it expires, even if the series is gone. Of expired claims the freshest counts.

People must decide which of two series is false. A matcher keeps the one whose label most nodes share, if there is
such a label; otherwise either may be left out.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest

import msgspec

from colocate.cluster.usage.answers import LONGEST_LABEL, Series
from colocate.cluster.usage.directory import Directory

Labels = Mapping[str, str]

_MOST = 8
"""The number of claims kept for a node, the highest. Leaving out the rest cannot make it look less busy."""
_DELAY = 30.0
"""Seconds by which the time of one scrape may differ on our clock between two answers: a query may have waited."""
_SEEN = 120.0
"""Seconds within which a series must have been scraped to be reported as disagreeing."""
_AGREE = 5.0
"""Percentage points by which two true series may differ: replicas scrape at different moments."""
_EXAMPLES = 5
_TELLING = ("job", "namespace", "service", "container", "endpoint")
"""Labels that tell exporters apart and nodes not, the best first."""
_COMPARED = 12
"""Labels of two series that are compared with all others, the most telling first: a series may have thousands."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """A value of one node, and when it was so."""

    value: float
    time: float
    """Seconds since the epoch, on our clock."""
    scraped: float = 0.0
    """Seconds since the epoch, on Prometheus' clock; 0 where that is not known."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What one series says of one node."""

    series: int
    """The identity of its labels."""
    sample: Sample
    since: float = 0.0
    """When it was first seen, on our clock; 0 if it was in the first answer."""


def identity(labels: Mapping[str, str]) -> int:
    """A number for the labels of a series, valid within this process."""
    return hash(frozenset(labels.items()))


Claims = Mapping[str, tuple[Claim, ...]]
"""By node."""


def highest(claims: Collection[Claim]) -> tuple[Claim, ...]:
    """The claims to keep."""
    if len(claims) <= _MOST:
        return tuple(claims)
    return tuple(sorted(claims, key=_by_value)[-_MOST:])


def updated(kept: Claims | None, found: Claims, now: float, expiry: float) -> dict[str, tuple[Claim, ...]]:
    """The kept claims, replaced by found ones of a newer or unknown scrape.

    Rules over a window drain when their exporter has gone: their values go on changing, CPU towards 100 percent,
    and mean nothing.
    """
    if kept is None:
        return dict(found)
    return {
        node: _of_node(kept.get(node, ()), found.get(node, ()), now, expiry)
        for node in dict.fromkeys((*kept, *found))
    }


def counting(claims: Collection[Claim], now: float, expiry: float) -> Sample:
    """The sample that counts for a node."""
    fresh = [claim for claim in claims if now - claim.sample.time < expiry]
    return (max(fresh, key=_by_value) if fresh else max(claims, key=_by_time)).sample


def disagreeing(claims: Claims, found: Claims, now: float) -> Iterator[tuple[str, Claim, Claim]]:
    """Nodes with two series that disagree while both are scraped, with the highest and the lowest claim.

    The series that an exporter leaves behind when it restarts elsewhere does not count: the two were never scraped
    at the same time.
    """
    for node, answered in found.items():
        if len(answered) < 2:
            continue
        there = {claim.series for claim in answered}
        live = [
            claim
            for claim in claims.get(node, ())
            if claim.series in there and now - claim.sample.time < _SEEN
        ]
        if len(live) < 2:
            continue
        high, low = max(live, key=_by_value), min(live, key=_by_value)
        together = high.sample.time > low.since and low.sample.time > high.since
        if together and high.sample.value - low.sample.value > _AGREE:
            yield node, high, low


def _of_node(
    kept: tuple[Claim, ...], found: tuple[Claim, ...], now: float, expiry: float
) -> tuple[Claim, ...]:
    known = {claim.series: claim for claim in kept}
    for claim in found:
        before = known.get(claim.series)
        if before is None:
            known[claim.series] = msgspec.structs.replace(claim, since=now)
        elif _is_news(claim.sample, before.sample, now):
            known[claim.series] = msgspec.structs.replace(claim, since=before.since)
    if len(known) == 1:
        return tuple(known.values())
    fresh = [claim for claim in known.values() if now - claim.sample.time < expiry]
    return highest(fresh or [max(known.values(), key=_by_time)])


def _by_value(claim: Claim) -> tuple[float, float, int]:
    return claim.sample.value, claim.sample.time, claim.series


def _by_time(claim: Claim) -> tuple[float, float, int]:
    return claim.sample.time, claim.sample.value, claim.series


def _is_news(found: Sample, kept: Sample, now: float) -> bool:
    if not found.scraped or found.scraped > kept.scraped:
        return True
    if found.scraped == kept.scraped:
        return False
    # An older scrape comes from a replica that lags; unless its age says it is younger, or the kept one lies in
    # the future, as after a clock was set back.
    return found.time > kept.time + _DELAY or kept.time > now + _DELAY


class SeriesCollision(msgspec.Struct, frozen=True):
    """Two series of one node that disagree."""

    node: str
    counted: float
    """Percent: the higher."""
    counted_labels: Labels
    other: float
    other_labels: Labels
    matcher: str
    """To be added to usage.matchers, or to the query; where either series may be the stranger's, one for each."""
    certain: bool
    """Whether the matcher keeps what most nodes have in common."""


def collisions(
    disputes: Sequence[tuple[str, Claim, Claim]],
    answer: Iterable[Series | None],
    directory: Directory,
    labels: Sequence[str],
) -> tuple[SeriesCollision, ...]:
    """Some of the disputes, with the labels of both sides from the answer that they were found in."""
    some = disputes[:_EXAMPLES]
    wanted = {claim.series for _, *claims in some for claim in claims}
    found = {
        number: series
        for series in answer
        if series is not None and (number := identity(series.labels)) in wanted
    }
    pairs = [(node, high, low) for node, high, low in some if high.series in found and low.series in found]
    apart = {
        (name, one.get(name, ""))
        for _, high, low in pairs
        for name in _apart(found[high.series].labels, found[low.series].labels, labels)
        for one in (found[high.series].labels, found[low.series].labels)
    }
    shared = _shared(answer, directory, labels, apart)
    return tuple(
        SeriesCollision(
            node,
            high.sample.value,
            found[high.series].shown_labels,
            low.sample.value,
            found[low.series].shown_labels,
            *_matcher(
                found[high.series].labels, found[low.series].labels, labels, shared, len(directory.nodes)
            ),
        )
        for node, high, low in pairs
    )


def _shared(
    answer: Iterable[Series | None],
    directory: Directory,
    labels: Sequence[str],
    wanted: set[tuple[str, str]],
) -> dict[tuple[str, str], int]:
    """How many nodes have a series with each of these labels."""
    nodes: dict[tuple[str, str], set[str]] = {one: set() for one in wanted}
    names = {name for name, _ in wanted}
    for series in answer:
        if series is None or (node := directory.of(series.labels, labels)) is None:
            continue
        for name in names:
            if (has := nodes.get((name, series.labels.get(name, "")))) is not None:
                has.add(node)
    return {one: len(found) for one, found in nodes.items()}


def _matcher(
    high: Labels, low: Labels, labels: Sequence[str], shared: Mapping[tuple[str, str], int], nodes: int
) -> tuple[str, bool]:
    """The matcher, and whether it is sure which of the two it keeps."""
    names = _apart(high, low, labels)
    for name in names:
        mine, theirs = ((name, one.get(name, "")) for one in (high, low))
        kept = max(mine, theirs, key=lambda one: shared.get(one, 0))
        if shared.get(mine, 0) != shared.get(theirs, 0) and 2 * shared.get(kept, 0) > nodes:
            return _with(name, "=", kept[1]), True
    name = names[0]
    return f"{_with(name, '!=', low.get(name, ''))} or {_with(name, '!=', high.get(name, ''))}", False


def _apart(high: Labels, low: Labels, labels: Sequence[str]) -> list[str]:
    """The names of labels in which two series differ, the most telling first."""
    names = [name for name in {**high, **low} if high.get(name) != low.get(name)]
    return nsmallest(_COMPARED, names, key=lambda name: (_place(name), name in labels, name))


def _place(name: str) -> int:
    return _TELLING.index(name) if name in _TELLING else len(_TELLING)


def _with(name: str, operator: str, text: str) -> str:
    return f"{name[:LONGEST_LABEL]}{operator}{json.dumps(text[:LONGEST_LABEL])}"
