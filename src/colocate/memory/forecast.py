"""How much memory is kept from colocated pods: what online work is expected to use, and the safety.

Every forecast has `expect`, and says in `remembers` how many seconds of the past it needs. To add one, add a struct
to the union `Forecast`.

The safety is never sold, so that the kubelet does not evict before the agent acts. It has three parts: the kubelet's
eviction threshold; the unused part of the kubelet's reserves (the used part already counts as use); and the
operator's margin above both. Where the kubelet's threshold is unknown, it may be all that the kubelet keeps from
pods: use by the system is then not deducted from it.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec

from colocate.memory.usage import MemoryUsage, OnlinePod, counted
from colocate.model.figures import amount
from colocate.model.memory import Bytes, KubeletReserves

_SLOTS = 288

DEFAULT_EVICTION = 100 << 20
"""The kubelet's own default for memory.available on Linux."""


class Safety(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the safety, and why."""

    eviction: Bytes
    reserved: Bytes
    """All that the kubelet keeps from pods, including its eviction threshold."""
    unfilled: Bytes
    """The unused part of its reserves."""
    margin: Bytes
    reasons: tuple[str, ...]

    @property
    def total(self) -> Bytes:
        return self.eviction + self.unfilled + self.margin


def safety_of(
    reserves: KubeletReserves, hugepages: Bytes, capacity: Bytes, system: Bytes, share: float
) -> Safety:
    """The safety, with the operator's `share` of the capacity as its margin."""
    knows_allocatable = reserves.capacity is not None and reserves.allocatable is not None
    kept_from_pods = (reserves.capacity or 0) - (reserves.allocatable or 0) if knows_allocatable else 0
    known = [each for each in (reserves.eviction_hard, reserves.eviction_soft) if each is not None]
    at_most = 0 if _was_asked(reserves) else kept_from_pods - hugepages
    eviction = max(known, default=max(DEFAULT_EVICTION, at_most))
    named = (reserves.kube_reserved or 0) + (reserves.system_reserved or 0) + hugepages + eviction
    # A soft threshold or a patched allocatable appears in only one of the two, so the larger counts.
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
    """A sentence about the reserves without the eviction threshold, and what the system uses of them."""
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
    """Whether the kubelet gave its configuration, even one without a threshold."""
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


class Peak(msgspec.Struct, frozen=True):
    """The most that online work used in one slot of time."""

    since: float
    online: Bytes


class Expectation(msgspec.Struct, frozen=True):
    """What a forecast expects."""

    online: Bytes
    safety: Bytes
    margin: Bytes
    """The part of the safety above all reserves: online work may use it for a while."""
    reasons: tuple[str, ...]


class Instant(msgspec.Struct, frozen=True, tag_field="kind", tag="instant"):
    """Expects what online work uses now."""

    @property
    def remembers(self) -> float:
        return 0.0

    def expect(self, usage: MemoryUsage, safety: Safety, history: Sequence[Peak]) -> Expectation:
        reason = f"Expected online: {amount(usage.online)}, the same as now (forecast instant)."
        return Expectation(usage.online, safety.total, safety.margin, (reason,))


class WindowMax(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="window-max"):
    """Expects the most that online work used in a window of the past."""

    window: float = 24 * 3600.0
    """Length of the window in seconds."""

    @property
    def remembers(self) -> float:
        return self.window

    def expect(self, usage: MemoryUsage, safety: Safety, history: Sequence[Peak]) -> Expectation:
        online = max([usage.online, *(peak.online for peak in history)])
        reason = (
            f"Expected online: {amount(online)}, the maximum of the last {_hours(self.window)}{self._known(history)} "
            f"(forecast window-max); now {amount(usage.online)}."
        )
        return Expectation(online, safety.total, safety.margin, (reason,))

    def _known(self, history: Sequence[Peak]) -> str:
        """How much of the window the agent saw, where that is not all of it."""
        seen = history[-1].since - history[0].since if history else 0.0
        if seen >= self.window * (1 - 1 / _SLOTS):
            return ""
        return f", of which the agent saw {_hours(seen)}" if seen else ", of which the agent saw only now"


def _hours(seconds: float) -> str:
    return f"{round(seconds / 3600, 2):g} h"


class KoordinatorPolicy(StrEnum):
    """What Koordinator counts for an online pod."""

    USAGE = "usage"
    REQUEST = "request"
    MAX_USAGE_REQUEST = "maxUsageRequest"

    def of(self, pod: OnlinePod) -> Bytes:
        if self is KoordinatorPolicy.REQUEST:
            return pod.request
        return max(counted(pod), pod.request) if self is KoordinatorPolicy.MAX_USAGE_REQUEST else counted(pod)


class Koordinator(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="koordinator"):
    """Koordinator's batch-memory: capacity - margin - system - online pods, by one of its policies."""

    policy: KoordinatorPolicy = KoordinatorPolicy.USAGE
    threshold: float = 65.0
    """Percentage of the capacity that may be in use; the rest is its margin."""

    @property
    def remembers(self) -> float:
        return 0.0

    def expect(self, usage: MemoryUsage, safety: Safety, history: Sequence[Peak]) -> Expectation:
        system = max(usage.system, safety.reserved)
        pods = sum(self.policy.of(pod) for pod in usage.online_pods)
        margin = int(usage.capacity * (100 - self.threshold) / 100)
        # The eviction threshold is never sold, however small the margin.
        kept = max(margin, safety.eviction + safety.margin)
        reasons = (
            f"Expected online: {amount(system)} for the system (the larger of {amount(usage.system)} used and "
            f"{amount(safety.reserved)} reserved) and {amount(pods)} for online pods by {self.policy} "
            "(forecast koordinator).",
            f"Its margin is {100 - self.threshold:g} % of {amount(usage.capacity)}: {amount(margin)}; the node "
            f"keeps {amount(kept)}.",
        )
        return Expectation(system + pods, kept, kept - safety.eviction, reasons)


Forecast: TypeAlias = Instant | WindowMax | Koordinator


def remember(history: Sequence[Peak], online: Bytes, now: float, seconds: float) -> tuple[Peak, ...]:
    """The history with the present added; about 300 peaks at most."""
    if not seconds:
        return ()
    slot = seconds / _SLOTS
    # Keep a slot until its end has left the window.
    kept = [peak for peak in history if now - peak.since <= seconds + slot]
    if kept and now - kept[-1].since < slot:
        kept[-1] = Peak(kept[-1].since, max(kept[-1].online, online))
    else:
        kept.append(Peak(now, online))
    return tuple(kept)
