"""How much memory online work is expected to use, from what it uses and used.

Every forecast has `expect` and says in `remembers` how many seconds of the past it wants to be given. A new one is a
struct more in the union `Forecast`.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec

from colocate.memory.figures import amount
from colocate.memory.safety import Safety
from colocate.memory.usage import OnlinePod, Usage, counted
from colocate.model.memory import Bytes

_SLOTS = 288


class Peak(msgspec.Struct, frozen=True):
    """The most that online work used in a slot of time."""

    since: float
    online: Bytes


class Expectation(msgspec.Struct, frozen=True):
    """What to count on."""

    online: Bytes
    safety: Bytes
    margin: Bytes
    """The part of the safety that is above anybody's reserves: what online work may eat into for a while."""
    reasons: tuple[str, ...]


class Instant(msgspec.Struct, frozen=True, tag_field="kind", tag="instant"):
    """What is used now will be used."""

    @property
    def remembers(self) -> float:
        return 0.0

    def expect(self, usage: Usage, safety: Safety, history: Sequence[Peak]) -> Expectation:
        reason = f"Expected online: {amount(usage.online)}, the same as now (forecast instant)."
        return Expectation(usage.online, safety.total, safety.margin, (reason,))


class WindowMax(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="window-max"):
    """What was used at most in a window of the past will be used."""

    window: float = 24 * 3600.0
    """Seconds."""

    @property
    def remembers(self) -> float:
        return self.window

    def expect(self, usage: Usage, safety: Safety, history: Sequence[Peak]) -> Expectation:
        online = max([usage.online, *(peak.online for peak in history)])
        reason = (
            f"Expected online: {amount(online)}, the maximum of the last {_hours(self.window)}{self._known(history)} "
            f"(forecast window-max); now {amount(usage.online)}."
        )
        return Expectation(online, safety.total, safety.margin, (reason,))

    def _known(self, history: Sequence[Peak]) -> str:
        """How much of the window was seen, where that is not all of it."""
        seen = history[-1].since - history[0].since if history else 0.0
        if seen >= self.window * (1 - 1 / _SLOTS):
            return ""
        return f", of which the agent saw {_hours(seen)}" if seen else ", of which the agent saw only now"


def _hours(seconds: float) -> str:
    return f"{round(seconds / 3600, 2):g} h"


class Policy(StrEnum):
    """By what Koordinator counts an online pod."""

    USAGE = "usage"
    REQUEST = "request"
    MAX_USAGE_REQUEST = "maxUsageRequest"

    def of(self, pod: OnlinePod) -> Bytes:
        if self is Policy.REQUEST:
            return pod.request
        return max(counted(pod), pod.request) if self is Policy.MAX_USAGE_REQUEST else counted(pod)


class Koordinator(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="koordinator"):
    """Koordinator's batch-memory: capacity - margin - system - online pods, by one of its policies."""

    policy: Policy = Policy.USAGE
    threshold: float = 65.0
    """Percentage of the capacity that may be in use; the rest is its margin."""

    @property
    def remembers(self) -> float:
        return 0.0

    def expect(self, usage: Usage, safety: Safety, history: Sequence[Peak]) -> Expectation:
        system = max(usage.system, safety.reserved)
        pods = sum(self.policy.of(pod) for pod in usage.online_pods)
        margin = int(usage.capacity * (100 - self.threshold) / 100)
        # What the kubelet evicts by is never sold, however small a margin was asked for.
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
    """The past with the present: at most some three hundred peaks, however often one looks."""
    if not seconds:
        return ()
    slot = seconds / _SLOTS
    # A slot is kept until its end, not its start, has left the window.
    kept = [peak for peak in history if now - peak.since <= seconds + slot]
    if kept and now - kept[-1].since < slot:
        kept[-1] = Peak(kept[-1].since, max(kept[-1].online, online))
    else:
        kept.append(Peak(now, online))
    return tuple(kept)
