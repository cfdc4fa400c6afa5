"""One answer to a scheduler: a score per candidate, and a small record from which the why can be told later.

The record holds the terms of a few nodes and no list of candidates, so that thousands of records can be kept. All
candidates are kept beside it for as long as memory allows: names as they came, decoded only for an explanation,
scores as bytes, and terms in a log that answers share. Terms never change: a node gets new ones when a fact of it
changes. The table logs them as they are made, and begins another log when all change at once, so the length of the
log at the time of an answer tells what each node was judged by. `explanation` puts all this into words.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from colocate.load.demand import Demand
from colocate.load.settings import Mix
from colocate.load.table import LoadTable
from colocate.load.terms import NodeTerms
from colocate.model.load import PodFacts

TERMS_SIZE = 1024
"""Bytes that the terms of one node take, about."""
_NAME_SIZE = 100
"""Bytes that a name takes as a string, about."""


class PackedNames(msgspec.Struct, frozen=True, gc=False):
    """The names of candidates as encoded bytes, and the function that decodes them."""

    data: bytes
    unpack: Callable[[bytes], Sequence[str]]

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.data)

    def read(self) -> Sequence[str]:
        """In the order of the question."""
        return self.unpack(self.data)


class Listed(msgspec.Struct, frozen=True, gc=False):
    """The names of candidates as strings."""

    names: Sequence[str] = ()

    @property
    def size(self) -> int:
        return _NAME_SIZE * len(self.names)

    def read(self) -> Sequence[str]:
        return self.names


CandidateNames = PackedNames | Listed


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """All candidates of an answer, and how they were judged."""

    names: CandidateNames = Listed()
    scores: bytes = b""
    log: list[NodeTerms] = []
    """Shared with other answers, and longer by now. Empty once it was dropped to save memory."""
    logged: int = 0
    """The length of the log when the answer was given."""

    @property
    def size(self) -> int:
        """Bytes, without the log."""
        return self.names.size + len(self.scores)

    def by_name(self) -> dict[str, int]:
        """All scores."""
        return dict(zip(self.names.read(), self.scores, strict=True))

    def terms(self) -> Mapping[str, NodeTerms]:
        """The terms that nodes were judged by; empty where they were dropped."""
        return {terms.name: terms for terms in self.log[: self.logged]}


HIGHEST = 100
"""No policy gives a node more."""
_MOST_BEST = 16


class PodDecision(msgspec.Struct, frozen=True, gc=False):
    """What was answered for one pod."""

    uid: str
    key: str
    at: float
    mix: Mix
    demand: Demand
    candidates: int
    best: tuple[str, ...]
    """The candidates with the highest score, unless they are too many to name."""
    best_count: int
    top: tuple[NodeTerms, ...]
    """A few nodes, the best first."""
    scores: tuple[int, ...]
    """The scores of the nodes in `top`."""

    @property
    def refused(self) -> bool:
        """Whether the filter has left no candidate to choose from."""
        return self.candidates > 0 and not self.best_count

    @property
    def score(self) -> int:
        """The highest."""
        return self.scores[0] if self.scores else 0

    def followed(self, node: str) -> bool | None:
        """Whether a scheduler that chose `node` followed; None where too many nodes were equal to say, or all were
        refused."""
        if self.refused:
            return None
        if node in self.best:
            return True
        return False if len(self.best) == self.best_count else None


class ScoreAnswer(msgspec.Struct, frozen=True, gc=False):
    """The scores, in the order of the candidates, and their record."""

    scores: list[int]
    decision: PodDecision
    candidates: Candidates
    """All of them; the decision names a few."""


def decide(
    table: LoadTable,
    pod: PodFacts,
    names: Sequence[str],
    now: float,
    *,
    mix: Mix | None = None,
    keep: int = 3,
    assume: bool = True,
    kept_as: PackedNames | None = None,
    vouched_by: str = "",
) -> ScoreAnswer:
    """Judge all candidates. With `assume` the pod counts on the best of them, until it is seen bound.

    A shadow, a comparison and an offline score assume nothing. `kept_as` are the names as encoded bytes, which take
    less memory. `vouched_by` is the caller if the API server has not shown the pod; see the ledger.
    """
    table.advance(now)
    table.withdraw(pod.uid)
    demand = table.demand(pod)
    mix = mix or table.settings.policy
    scores = table.scores(mix, demand, names)
    packed = bytes(scores)
    best_count, best, top = _best(packed, names, keep)
    decision = PodDecision(
        pod.uid,
        pod.key,
        now,
        mix,
        demand,
        len(names),
        best,
        best_count,
        tuple([table.terms(names[index]) for index in top]),
        tuple([scores[index] for index in top]),
    )
    judged = Candidates(kept_as or Listed(names), packed, table.log, len(table.log))
    if assume and len(best) == best_count:
        table.assume(pod.uid, best, demand, now, vouched_by)
    return ScoreAnswer(scores, decision, judged)


def refused_everywhere(table: LoadTable, pod: PodFacts, candidates: int, now: float, mix: Mix) -> ScoreAnswer:
    """The record of a pod that the filter refused on all its candidates; there is nothing to score."""
    decision = PodDecision(pod.uid, pod.key, now, mix, table.demand(pod), candidates, (), 0, (), ())
    return ScoreAnswer([], decision, Candidates())


def _best(packed: bytes, names: Sequence[str], keep: int) -> tuple[int, tuple[str, ...], list[int]]:
    """The number of best candidates, their names (unless too many), and the places of the first `keep`.

    Scores are 0 to 100: searching bytes for one value after the other is fast for thousands of them.
    """
    found = (score for score in range(HIGHEST, -1, -1) if score in packed)
    best_count = 0
    best: tuple[str, ...] = ()
    top: list[int] = []
    for score in found:
        if not top:
            best_count = packed.count(score)
            if best_count <= _MOST_BEST:
                best = tuple(names[index] for index in _where(packed, score, best_count))
        top += _where(packed, score, keep - len(top))
        if len(top) >= keep:
            break
    return best_count, best, top


def _where(packed: bytes, score: int, most: int) -> list[int]:
    found: list[int] = []
    start = 0
    while len(found) < most and (start := packed.find(score, start)) >= 0:
        found.append(start)
        start += 1
    return found
