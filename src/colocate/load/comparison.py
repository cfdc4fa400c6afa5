"""Two policies over the same facts: where they would put a pod, and how far their orders agree."""

from collections.abc import Sequence

import msgspec

from colocate.load.decision import decide
from colocate.load.settings import Mix
from colocate.load.table import LoadTable
from colocate.load.tolerations import ClosedNode
from colocate.model.load import PodFacts


class Compared(msgspec.Struct, frozen=True):
    """One node by both."""

    node: str
    first: int
    second: int


class PolicyComparison(msgspec.Struct, frozen=True):
    pod: str
    first: Mix
    second: Mix
    nodes: tuple[Compared, ...]
    """All candidates, those on which the two differ most first."""
    agree: bool
    """Whether some node is best by both."""
    agreement: float | None
    """Of the pairs of nodes that either tells apart, the share that both put in the same order; None where neither
    tells any apart."""
    closed: tuple[ClosedNode, ...] = ()
    """Nodes that do not take the pod, and are no candidates."""


def compare(
    table: LoadTable, pod: PodFacts, names: Sequence[str], first: Mix, second: Mix, now: float
) -> PolicyComparison:
    """Nothing is assumed: the table stays as it is."""
    one = decide(table, pod, names, now, mix=first, assume=False).scores
    other = decide(table, pod, names, now, mix=second, assume=False).scores
    nodes = [Compared(*each) for each in zip(names, one, other, strict=True)]
    best = (max(one, default=0), max(other, default=0))
    return PolicyComparison(
        pod.key,
        first,
        second,
        tuple(sorted(nodes, key=lambda node: (-abs(node.first - node.second), node.node))),
        any((node.first, node.second) == best for node in nodes),
        _agreement(one, other),
    )


def _agreement(one: Sequence[int], other: Sequence[int]) -> float | None:
    """By values rather than nodes: of thousands of nodes, some hundred pairs of scores are different."""
    counts: dict[tuple[int, int], int] = {}
    for pair in zip(one, other, strict=True):
        counts[pair] = counts.get(pair, 0) + 1
    apart = alike = 0
    distinct = sorted(counts)
    for index, (first, second) in enumerate(distinct):
        for later_first, later_second in distinct[index + 1 :]:
            pairs = counts[first, second] * counts[later_first, later_second]
            apart += pairs
            if (first - later_first) * (second - later_second) > 0:
                alike += pairs
    return alike / apart if apart else None
