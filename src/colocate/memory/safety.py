"""How much of a node is never sold, so that the kubelet has no reason to evict before anything here acts.

Three parts: the kubelet's eviction threshold; what is left unused of its reserves (what the system uses is counted as
use, not a second time); and the operator's margin above both.

Where the kubelet was not asked for its threshold, this may be as much as all that it keeps from pods: what the system
uses is then deducted from none of it.
"""

import msgspec

from colocate.memory.figures import amount
from colocate.model.memory import Bytes, KubeletReserves

DEFAULT_EVICTION = 100 << 20
"""The kubelet's own default for memory.available on Linux."""


class Safety(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept, and why."""

    eviction: Bytes
    reserved: Bytes
    """All that the kubelet keeps from pods, its eviction threshold included."""
    unfilled: Bytes
    """What of its reserves nothing uses yet."""
    margin: Bytes
    reasons: tuple[str, ...]

    @property
    def total(self) -> Bytes:
        return self.eviction + self.unfilled + self.margin


def keep(reserves: KubeletReserves, hugepages: Bytes, capacity: Bytes, system: Bytes, share: float) -> Safety:
    """From the kubelet's reserves, what the system uses of them, and the operator's share of the capacity."""
    knows_allocatable = reserves.capacity is not None and reserves.allocatable is not None
    kept_from_pods = (reserves.capacity or 0) - (reserves.allocatable or 0) if knows_allocatable else 0
    known = [each for each in (reserves.eviction_hard, reserves.eviction_soft) if each is not None]
    at_most = 0 if _was_asked(reserves) else kept_from_pods - hugepages
    eviction = max(known, default=max(DEFAULT_EVICTION, at_most))
    named = (reserves.kube_reserved or 0) + (reserves.system_reserved or 0) + hugepages + eviction
    # The soft threshold and an allocatable that somebody patched are in one of the two only: the larger is right.
    reserved = max(named, kept_from_pods)
    unfilled = max(0, reserved - eviction - system)
    margin = int(capacity * share)
    source = "" if known else _of_threshold(eviction)
    told = _of_allocatable(knows_allocatable, kept_from_pods)
    reasons = (
        f"The kubelet evicts below {amount(eviction)} available{source}.",
        f"It keeps {amount(reserved)} from pods{told}. {_of_reserve(reserved - eviction, system)}",
        f"The margin on top is {share:.0%} of {amount(capacity)}: {amount(margin)}.",
    )
    return Safety(eviction=eviction, reserved=reserved, unfilled=unfilled, margin=margin, reasons=reasons)


def _of_reserve(reserve: Bytes, system: Bytes) -> str:
    """What is kept of the reserves without the eviction threshold, after what the system uses of them."""
    if not reserve:
        return "That is the eviction threshold alone, so nothing more is kept for the system."
    if system >= reserve:
        return (
            f"The system already uses {amount(system)}, more than its reserve, so nothing more is kept for it."
            if system > reserve
            else f"The system uses {amount(system)}, all of its reserve, so nothing more is kept for it."
        )
    return (
        f"The system uses {amount(system)} of its reserve of {amount(reserve)}, so {amount(reserve - system)} "
        "more is kept for it."
    )


def _was_asked(reserves: KubeletReserves) -> bool:
    """Whether it told its configuration, be it one without a threshold."""
    return reserves.kube_reserved is not None or reserves.system_reserved is not None


def _of_threshold(eviction: Bytes) -> str:
    if eviction == DEFAULT_EVICTION:
        return ", its default, because the agent could not ask it"
    return (
        " or less: the agent could not ask it (that takes the right to get nodes/proxy), but its threshold is at "
        "most what it keeps from pods"
    )


def _of_allocatable(known: bool, kept_from_pods: Bytes) -> str:
    if not known:
        return " (the node's allocatable is unknown)"
    return "" if kept_from_pods else " (the node's allocatable is all of its capacity)"
