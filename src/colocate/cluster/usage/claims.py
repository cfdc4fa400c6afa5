"""Who says what of a node: every series that claims it, each with its last sample, and which of them counts. Pure.

Anybody whose pod is scraped can have a series that names a node. So the highest claim counts, not the freshest: a
stranger may make a node look busy, which is seen, and never idle. What one series says changes with its scrapes and
with nothing else; what it said last counts until it has expired, whether it is still there or not. Of expired ones
the freshest counts. Nobody is taken for the owner of a node here.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

_MOST = 8
"""Claims that are kept of a node, the highest. A flood of others can only make it look busier."""
_DELAY = 30.0
"""Seconds by which the time of one scrape may differ on our clock, from one answer to the next: a query may have
waited for its turn."""
_SEEN = 120.0
"""Seconds within which a series must have been scraped to be told of as one that disagrees."""
_AGREE = 5.0
"""Percent points by which two that tell the truth may differ: replicas scrape at different moments."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """A value of one node, and when it was so."""

    value: float
    time: float
    """Seconds since the epoch, on our clock."""
    scraped: float = 0.0
    """The same on Prometheus' clock, as it says itself; 0 where that is not known."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What one series says of one node."""

    series: int
    """The identity of its labels."""
    sample: Sample
    since: float = 0.0
    """When it was first seen, on our clock; 0 where it was there when we began."""


def identity(labels: Mapping[str, str]) -> int:
    """Stands for the labels of a series, as long as this process lives."""
    return hash(frozenset(labels.items()))


Claims = Mapping[str, tuple[Claim, ...]]
"""By node."""


def highest(claims: Collection[Claim]) -> tuple[Claim, ...]:
    """As many as are kept."""
    if len(claims) <= _MOST:
        return tuple(claims)
    return tuple(sorted(claims, key=_by_value)[-_MOST:])


def updated(kept: Claims | None, found: Claims, now: float, expiry: float) -> dict[str, tuple[Claim, ...]]:
    """The claims that were kept, with those in their place that are of a newer scrape, or of nobody knows which.

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
    """What counts of a node."""
    fresh = [claim for claim in claims if now - claim.sample.time < expiry]
    return (max(fresh, key=_by_value) if fresh else max(claims, key=_by_time)).sample


def disagreeing(claims: Claims, found: Claims, now: float) -> Iterator[tuple[str, Claim, Claim]]:
    """Nodes of which two series say different things, both of them still scraped, with the highest and the lowest.

    What an exporter leaves behind when it restarts elsewhere is none: it was never scraped beside its successor.
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
    # An older scrape, as of a replica that lags; unless it is younger by its age, or what is kept is from the
    # future: then a clock was set back.
    return found.time > kept.time + _DELAY or kept.time > now + _DELAY
