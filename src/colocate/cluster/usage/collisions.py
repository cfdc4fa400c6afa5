"""Nodes of which two series say different things: what each says, and the matcher that leaves one of them out. Pure.

Which of the two is a stranger is for people to say. A matcher keeps the one whose label most nodes have in common,
where there is such a label; where there is none, either may be left out.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest

import msgspec

from colocate.cluster.usage.answers import LONGEST_LABEL, Series
from colocate.cluster.usage.claims import Claim, identity
from colocate.cluster.usage.directory import Directory

Labels = Mapping[str, str]

_EXAMPLES = 5
_TELLING = ("job", "namespace", "service", "container", "endpoint")
"""Labels that tell exporters apart and nodes not, the best first."""
_COMPARED = 12
"""Labels of two series that are looked at in all others, the most telling first: whoever writes a series may write
thousands."""


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
