"""What a policy is, and what it tells of a score."""

from typing import Protocol

import msgspec

from colocate.load.demand import Demand
from colocate.load.terms import NodeTerms


class Part(msgspec.Struct, frozen=True):
    """One number that went into a score."""

    name: str
    value: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}{self.unit}"


class Policy(Protocol):
    """Judges a node by itself."""

    def score(self, node: NodeTerms, pod: Demand) -> int:
        """From 0 to 100."""

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[Part, ...]:
        """The numbers that the score came from."""
