"""What the policies read of a node: one frozen record, made when a fact of that node changes."""

from enum import StrEnum

import msgspec

from colocate.model.load import NOTHING, Amount


class Freshness(StrEnum):
    FRESH = "fresh"
    EXPIRED = "expired"
    NEVER = "never sampled"


class ResourceTerms(msgspec.Struct, frozen=True, gc=False):
    """One resource of one node."""

    capacity: int
    room: int
    """What pods can have of it."""
    percent: float = 0.0
    """Of the capacity; that of the median node where it is known and not measured."""
    deviation: float = 0.0
    peak: float = 0.0
    """The percent that is likely exceeded seldom: by percentile or deviation, whichever is greater."""
    measured: bool = False
    """Whether a fresh sample of this node says so."""
    sampled: bool = False
    """Whether there is a sample of this node, fresh or not."""
    known: bool = False
    """Whether there is a percentage to judge by, measured or supposed."""
    ledger: int = 0
    """Counted for pods that the samples do not show yet."""
    requested: int = 0
    limits: int = 0
    used: float = 0.0
    """`percent`, in millicores or bytes, with the ledger's part."""
    occupied: float = 100.0
    """The peak in percent of the room, and less than 100 while the node itself has anything free."""
    per_unit: float = 0.0
    """The percent of the room that one millicore or byte is."""


class AwareTerms(msgspec.Struct, frozen=True, gc=False):
    """A node's use as Koordinator works it out, with pods that are not in the samples yet."""

    score: Amount = NOTHING
    filter: Amount = NOTHING
    """No node is refused for the number of its pods: what each counts for at least is not in it."""
    prod: Amount = NOTHING
    unseen: Amount = NOTHING
    """What is in `filter` for pods that are not in the samples yet."""
    unseen_prod: Amount = NOTHING
    """The same of `prod`."""


class NodeTerms(msgspec.Struct, frozen=True, gc=False):
    """One node."""

    name: str
    cpu: ResourceTerms
    memory: ResourceTerms
    freshness: Freshness = Freshness.NEVER
    sampled_at: float | None = None
    unseen_pods: float = 0.0
    """How many pods the ledger counts here; one that may go to either of two nodes is half a pod on each."""
    packing_ledger: int = 0
    """Millicores of those, as target-load-packing predicts them."""
    aware: AwareTerms = AwareTerms()

    @property
    def known(self) -> bool:
        return self.cpu.known or self.memory.known
