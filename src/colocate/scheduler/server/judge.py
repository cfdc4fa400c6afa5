"""What the server asks of a judge: a score for every candidate, or a reason against it.

The decision is made from what is known already: a judge neither waits nor does I/O. It hears of the pod and the
candidates, of HTTP only who asks.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from colocate.wire.extender_questions import Asked


class Sieved(msgspec.Struct, frozen=True):
    """The candidates that a pod must not go to, each with a reason; all others pass."""

    failed: Mapping[str, str] = {}
    unresolvable: Mapping[str, str] = {}
    """Those where not even preemption would help."""


class Judge(Protocol):
    """Decides. A fault of it costs the request that it happens in, and no other."""

    def most_candidates(self) -> int:
        """About how many nodes one question may be: far more than there are would keep all others waiting."""

    def prioritize(self, asked: Asked, caller: str) -> Sequence[int]:
        """A score for each of `asked.names`, in their order. `caller` is the address that asks."""

    def filter(self, asked: Asked, caller: str) -> Sieved:
        """Which of `asked.names` are out of the question."""

    def unready(self) -> Sequence[str]:
        """Why it cannot judge yet, a sentence each; nothing where it can."""
