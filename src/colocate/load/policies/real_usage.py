"""mem-real-usage and cpu-real-usage: the least used candidate gets 100, the most used 0, the rest in between.

Scores are relative to the candidates of one request, in integers, of percentages that are truncated first.
Where all are equally used, all get 0.
"""

from collections.abc import Sequence

from colocate.load.demand import taken
from colocate.load.terms import NodeTerms, ResourceTerms, ScorePart


class RealUsage:
    """Ranks candidates by one resource."""

    def value(self, node: NodeTerms) -> int | None:
        """Whole percents, with what the ledger's pods take of the rest; None without a fresh sample: a supposed
        value must not move the scores of others."""
        terms = self._resource(node)
        return int(terms.percent + _ledger_percent(terms)) if terms.measured else None

    def parts(self, node: NodeTerms) -> tuple[ScorePart, ...]:
        terms = self._resource(node)
        return (
            ScorePart("used", terms.percent, " %"),
            ScorePart("unseen pods", _ledger_percent(terms), " %"),
        )

    def _resource(self, node: NodeTerms) -> ResourceTerms:
        raise NotImplementedError


class MemRealUsage(RealUsage):
    def _resource(self, node: NodeTerms) -> ResourceTerms:
        return node.memory


class CpuRealUsage(RealUsage):
    def _resource(self, node: NodeTerms) -> ResourceTerms:
        return node.cpu


def min_max(values: Sequence[int | None]) -> list[int]:
    """The scores of candidates with these values; one without a value gets the middle."""
    known = {value for value in values if value is not None}
    low, high = min(known, default=0), max(known, default=0)
    if low == high:
        return [0] * len(values)
    scores: dict[int | None, int] = {value: 100 - (value - low) * 100 // (high - low) for value in known}
    scores[None] = 50
    return [scores[value] for value in values]


def _ledger_percent(terms: ResourceTerms) -> float:
    return taken(100 - terms.percent, terms.ledger * 100 / terms.capacity) if terms.capacity else 0.0
