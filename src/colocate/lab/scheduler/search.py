"""Searches for nodes that fit; on a large cluster it stops when it has enough to compare. Pure."""

from collections.abc import Sequence
from itertools import chain

import msgspec

from colocate.lab.scheduler.cluster import ClusterNode
from colocate.lab.scheduler.facts import SchedulablePod
from colocate.lab.scheduler.filters import Rejection, check

_ALWAYS_ALL = 100
"""Up to this many nodes, all are compared."""
_LEAST_PERCENT = 5


class Found(msgspec.Struct, frozen=True, eq=False):
    """The nodes that fit, and the rejections of the others that were checked."""

    feasible: list[ClusterNode]
    rejections: dict[str, Rejection]


def enough(nodes: int, percentage: int = 0) -> int:
    """How many nodes to find before scoring; the share falls as the cluster grows."""
    if nodes < _ALWAYS_ALL or percentage >= 100:
        return nodes
    share = percentage or max(_LEAST_PERCENT, 50 - nodes // 125)
    return max(_ALWAYS_ALL, nodes * share // 100)


class Search:
    """Continues where the last search stopped, so that every node is considered in turn."""

    def __init__(self) -> None:
        self._start = 0

    def find(
        self, pod: SchedulablePod, nodes: Sequence[ClusterNode], percentage: int, ignored: frozenset[str]
    ) -> Found:
        """Search for nodes that fit. If none does, every node was checked."""
        wanted = enough(len(nodes), percentage)
        start = self._start % len(nodes)
        found = Found([], {})
        looked_at = 0
        for one in chain(nodes[start:], nodes[:start]):
            looked_at += 1
            rejection = check(pod, one.node, one.account_for(pod), ignored)
            if rejection is not None:
                found.rejections[one.node.name] = rejection
                continue
            found.feasible.append(one)
            if len(found.feasible) >= wanted:
                break
        self._start = (start + looked_at) % len(nodes)
        return found
