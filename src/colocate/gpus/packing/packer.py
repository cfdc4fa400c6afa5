"""Finds the best place for a pod in a whole cluster, and remembers what it has worked out.

Between two pods of one kind few nodes have changed: only those are looked at again. That makes a look at a thousand
nodes as quick as one at a dozen.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
import numpy as np

from colocate.gpus.packing.fleet import Flags, Fleet, Floats, Ints, PackRequest
from colocate.gpus.packing.mix import Mix
from colocate.gpus.packing.policies import (
    Expected,
    PackingPolicy,
    Places,
    fitting,
    left,
    places,
    potential,
    tie,
)

_KINDS_KEPT = 128


class Ranking(msgspec.Struct, gc=False, eq=False):
    """How good each row of the fleet is for one kind of pod, and which GPUs it would take there."""

    scores: Floats
    """Least is best; infinity where it does not fit."""
    gpus: Flags
    seen: int = -1
    """The last change of the fleet that it knows."""

    def best(self) -> int | None:
        row = int(np.argmin(self.scores))
        return row if np.isfinite(self.scores[row]) else None

    def chosen(self, row: int) -> tuple[int, ...]:
        """The columns of the GPUs that a pod would take."""
        return tuple(int(column) for column in np.nonzero(self.gpus[row])[0])


class Packer:
    """One policy over one fleet."""

    def __init__(self, fleet: Fleet, policy: PackingPolicy, mix: Mix | None = None) -> None:
        self.fleet = fleet
        self.policy = policy
        self._mix = mix or Mix()
        self._kept: OrderedDict[PackRequest, Ranking] = OrderedDict()
        self._shape = -1
        self._expected = Expected()
        self._potential: Floats = np.zeros(0)
        self._potential_seen = -1

    def expect(self, mix: Mix) -> None:
        """From now on these pods are expected."""
        self._mix = mix
        if self.policy.looks_ahead:
            self._shape = -1

    def rank(self, request: PackRequest) -> Ranking:
        """Every node of the fleet, judged for such a pod."""
        self._follow_shape()
        fleet = self.fleet
        ranking = self._kept.get(request)
        if ranking is None:
            rows, width = fleet.size.shape
            ranking = Ranking(np.full(rows, np.inf), np.zeros((rows, width), np.bool_))
            self._kept[request] = ranking
            if len(self._kept) > _KINDS_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(request)
        if ranking.seen != fleet.changes:
            self._look(ranking, request, np.nonzero(fleet.changed > ranking.seen)[0])
            ranking.seen = fleet.changes
        return ranking

    def scores(self, ranking: Ranking, names: Sequence[str]) -> Floats:
        """The scores of these nodes; infinity for one that is not in the fleet."""
        rows = self.fleet.rows
        numbers = np.array([rows.get(name, -1) for name in names], np.int64)
        return np.where(numbers >= 0, ranking.scores[numbers], np.inf)

    def _follow_shape(self) -> None:
        if self._shape == self.fleet.shape_changes:
            return
        self._shape = self.fleet.shape_changes
        self._kept.clear()
        self._expected = Expected.on(self.fleet, self._mix)
        self._potential = np.zeros(len(self.fleet.cpu))
        self._potential_seen = -1

    def _look(self, ranking: Ranking, request: PackRequest, rows: Ints) -> None:
        ranking.scores[rows] = np.inf
        rows, usable = fitting(self.fleet, rows, request)
        if not len(rows):
            return
        found = places(self.policy, self.fleet, rows, usable, request)
        if self.policy.looks_ahead:
            scores = self._growth(rows, found)
        else:
            scores = left(self.fleet, found.after)
            if self.policy is PackingPolicy.SPREAD:
                scores = -scores
        # The best place of each row.
        order = np.lexsort((scores, found.row))
        numbers = found.row[order]
        first = np.ones(len(numbers), np.bool_)
        first[1:] = numbers[1:] != numbers[:-1]
        best = order[first]
        ranking.scores[rows[found.row[best]]] = scores[best]
        ranking.gpus[rows[found.row[best]]] = found.gpus[best]

    def _growth(self, rows: Ints, found: Places) -> Floats:
        """By how much what is as good as lost would grow in each place."""
        fleet = self.fleet
        if self._potential_seen != fleet.changes:
            stale = np.nonzero(fleet.changed > self._potential_seen)[0]
            self._potential[stale] = potential(self.policy, self._expected, fleet.rooms(stale))
            self._potential_seen = fleet.changes
        after = potential(self.policy, self._expected, found.after)
        growth: Floats = after - self._potential[rows][found.row] + tie(fleet, found.after)
        return growth
