"""What a policy is, and what it tells of a score."""

from typing import Protocol

import msgspec

from colocate.load.demand import Demand
from colocate.load.terms import NodeTerms


class ScorePart(msgspec.Struct, frozen=True):
    """One number that went into a score."""

    name: str
    value: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}{self.unit}"


class NodePolicy(Protocol):
    """Judges a node by itself."""

    def score(self, node: NodeTerms, pod: Demand) -> int:
        """From 0 to 100."""

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[ScorePart, ...]:
        """The numbers that the score came from."""
