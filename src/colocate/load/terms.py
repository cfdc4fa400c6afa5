"""What the policies read of a node: one frozen record, made from its size, samples, pods and ledger entries.

It is made when a fact of that node changes. No other node is looked at, except the typical one, the median of the
nodes with fresh samples, which stands in for missing samples. `NodePolicy` is what reads the terms.
"""

import statistics
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from colocate.load.demand import Demand
from colocate.load.ledger import NONE_UNSEEN, Unseen
from colocate.load.pods import NOT_MEASURED_BY_POD, NOTHING_PLACED, PodsMeasured, PodTotals, percents
from colocate.load.settings import BalancedSettings, LoadSettings, MissingFilter, MissingScore
from colocate.model.go import go_round
from colocate.model.load import (
    NO_SAMPLES,
    NOTHING,
    Aggregation,
    Amount,
    NodeFacts,
    NodeLoad,
    Usage,
    UsageThresholds,
)


class Level(msgspec.Struct, frozen=True):
    """How loaded one resource is, in percent of the capacity."""

    percent: float
    deviation: float
    peak: float


HALF = Level(50.0, 0.0, 50.0)
"""Assumed where nothing at all is measured: nodes then differ by what the ledger knows."""


class Typical(msgspec.Struct, frozen=True):
    """The median, of each number by itself."""

    cpu: Level | None
    """None where the resource is measured nowhere, and the other one is."""
    memory: Level | None
    size: NodeFacts


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
    """Percent of the capacity in use; the typical node's where `known` but not `measured`."""
    deviation: float = 0.0
    peak: float = 0.0
    """A percent that is seldom exceeded: the greater of percentile and deviation."""
    measured: bool = False
    """Whether `percent` comes from a fresh sample of this node."""
    sampled: bool = False
    """Whether there is a sample of this node, fresh or not."""
    known: bool = False
    """Whether there is a percentage to judge by, measured or supposed."""
    ledger: int = 0
    """What counts for pods that the samples do not show yet, in millicores or bytes."""
    requested: int = 0
    limits: int = 0
    used: float = 0.0
    """`percent` in millicores or bytes, plus `ledger`."""
    occupied: float = 100.0
    """The peak in percent of the room, and less than 100 while the node itself has anything free."""
    per_unit: float = 0.0
    """The percent of the room that one millicore or byte takes."""
    swing: int = 0
    """The standard deviation of the pods' use."""


class AwareTerms(msgspec.Struct, frozen=True, gc=False):
    """A node's use as Koordinator computes it, with pods that are not in the samples yet."""

    score: Amount = NOTHING
    filter: Amount = NOTHING
    """Without the least that each pod counts for: no node is refused for the number of its pods."""
    prod: Amount = NOTHING
    unseen: Amount = NOTHING
    """The part of `filter` for pods that are not in the samples yet."""
    unseen_prod: Amount = NOTHING
    """The part of `prod` for pods that are not in the samples yet."""


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
    """Millicores of those pods, as target-load-packing predicts them."""
    aware: AwareTerms = AwareTerms()

    @property
    def known(self) -> bool:
        return self.cpu.known or self.memory.known


Levels = tuple[Level | None, Level | None]
"""How loaded CPU and memory are by fresh samples."""

NOT_MEASURED: Levels = (None, None)


def node_terms(
    facts: NodeFacts,
    settings: LoadSettings,
    typical: Typical,
    *,
    load: NodeLoad = NO_SAMPLES,
    levels: Levels = NOT_MEASURED,
    sampled_at: float | None = None,
    unseen: Unseen = NONE_UNSEEN,
    placed: PodTotals = NOTHING_PLACED,
    pods: PodsMeasured = NOT_MEASURED_BY_POD,
) -> NodeTerms:
    capacity, room = facts.capacity, facts.room
    now_cpu, now_memory = percents(load, capacity, pods)
    by_number = min(unseen.pods * settings.ledger.least_percent, settings.ledger.least_percent_bound) / 100
    least = Amount(int(by_number * capacity.cpu), int(by_number * capacity.memory))
    counted = unseen.amount.at_least(least)
    cpu_level, memory_level = levels
    supposing = settings.staleness.score is MissingScore.NEUTRAL
    cpu = _resource(
        capacity.cpu,
        room.cpu,
        _by_pods(cpu_level, now_cpu, settings) or (typical.cpu if supposing else None),
        measured=cpu_level is not None,
        sampled=load.cpu is not None,
        ledger=counted.cpu,
        requested=placed.requested.cpu,
        limits=placed.limits.cpu,
        swing=pods.swing.cpu,
    )
    memory = _resource(
        capacity.memory,
        room.memory,
        _by_pods(memory_level, now_memory, settings) or (typical.memory if supposing else None),
        measured=memory_level is not None,
        sampled=load.memory is not None,
        ledger=counted.memory,
        requested=placed.requested.memory,
        limits=placed.limits.memory,
        swing=pods.swing.memory,
    )
    return NodeTerms(
        name=facts.name,
        cpu=cpu,
        memory=memory,
        freshness=_freshness(sampled_at, levels),
        sampled_at=sampled_at,
        unseen_pods=unseen.pods,
        packing_ledger=max(unseen.packing_cpu, least.cpu),
        aware=_aware(facts, settings, load, cpu, memory, counted, unseen, placed),
    )


def thresholds(facts: NodeFacts, settings: LoadSettings) -> UsageThresholds:
    """The node's own bounds, and the general ones where it states none."""
    general, own = settings.filter.thresholds, facts.thresholds
    if own is None:
        return general
    aggregated = own if own.over_window else general
    return UsageThresholds(
        usage=general.usage if own.usage is None or own.usage.empty else own.usage,
        prod=general.prod if own.prod is None or own.prod.empty else own.prod,
        aggregated=aggregated.aggregated,
        aggregation=aggregated.aggregation,
        window=aggregated.window,
    )


def _freshness(sampled_at: float | None, levels: Levels) -> Freshness:
    if levels != NOT_MEASURED:
        return Freshness.FRESH
    return Freshness.NEVER if sampled_at is None else Freshness.EXPIRED


def _resource(
    capacity: int,
    room: int,
    level: Level | None,
    *,
    measured: bool,
    sampled: bool,
    ledger: int,
    requested: int,
    limits: int,
    swing: int,
) -> ResourceTerms:
    loaded = level or Level(0.0, 0.0, 0.0)
    return ResourceTerms(
        capacity=capacity,
        room=room,
        percent=loaded.percent,
        deviation=loaded.deviation,
        peak=loaded.peak,
        measured=measured,
        sampled=sampled,
        known=level is not None,
        ledger=ledger,
        requested=requested,
        limits=limits,
        used=loaded.percent * capacity / 100 + ledger,
        occupied=_occupied(loaded.peak, capacity, room),
        per_unit=100 / room if room > 0 else 0.0,
        swing=swing,
    )


def _by_pods(level: Level | None, now: float | None, settings: LoadSettings) -> Level | None:
    """The level with the measured use of its pods as its peak, unless the settings choose another."""
    if level is None or now is None:
        return level
    longer = settings.balanced.aggregation is not None or settings.balanced.deviations > 0
    return Level(level.percent, level.deviation, max(now, level.peak) if longer else now)


def _occupied(peak: float, capacity: int, room: int) -> float:
    """The peak in percent of the room. Once the room is used up, what is left to the system still counts a little, so
    that the less full of two such nodes scores higher."""
    if room <= 0 or capacity <= 0:
        return 100.0
    left = (100 - peak) / 4 * min(room / capacity, 1.0)
    return min(peak * capacity / room, 100 - left, 100.0)


def _aware(
    facts: NodeFacts,
    settings: LoadSettings,
    load: NodeLoad,
    cpu: ResourceTerms,
    memory: ResourceTerms,
    counted: Amount,
    unseen: Unseen,
    placed: PodTotals,
) -> AwareTerms:
    def used(ledger: Amount, aggregation: Aggregation | None, window: float, expired: bool) -> Amount:
        of_cpu = load.cpu if cpu.measured or expired else None
        of_memory = load.memory if memory.measured or expired else None
        return Amount(
            _aware_used(cpu, of_cpu, aggregation, window, ledger.cpu, placed.estimates.cpu, alone=alone),
            _aware_used(
                memory, of_memory, aggregation, window, ledger.memory, placed.estimates.memory, alone=alone
            ),
        )

    alone = settings.load_aware.estimates_alone
    bounds = thresholds(facts, settings)
    by_last = settings.staleness.filter is MissingFilter.LAST_SAMPLE
    to_score = (counted, settings.load_aware.aggregation, settings.load_aware.window, False)
    to_filter = (unseen.amount, bounds.aggregation if bounds.over_window else None, bounds.window, by_last)
    score = used(*to_score)
    return AwareTerms(
        score=score,
        filter=score if to_filter == to_score else used(*to_filter),
        prod=placed.prod_usage + placed.prod_guessed + unseen.prod,
        unseen=unseen.amount,
        unseen_prod=placed.prod_guessed + unseen.prod,
    )


def _aware_used(
    terms: ResourceTerms,
    usage: Usage | None,
    aggregation: Aggregation | None,
    window: float,
    ledger: int,
    estimates: int,
    *,
    alone: bool,
) -> int:
    """The measured use, or the typical node's where no sample counts, plus the ledger. Where the aggregation is
    missing, at least the estimates of all pods, or with `alone` these only."""
    percent, least = terms.percent if usage is None else usage.percent, 0
    if usage is not None and aggregation is not None:
        aggregated = usage.over(aggregation, window)
        if aggregated is not None:
            percent = aggregated
        elif window and alone:
            return estimates
        elif window:
            least = estimates
    return max(go_round(percent * terms.capacity / 100) + ledger, least)


def level(usage: Usage, settings: BalancedSettings) -> Level:
    """The peak is the greater of the percentile and the average plus deviations, as the settings choose."""
    peak = usage.percent + settings.deviations * usage.deviation
    if usage.aggregates and settings.aggregation is not None:
        peak = max(peak, usage.over(settings.aggregation, settings.window) or 0.0)
    return Level(usage.percent, usage.deviation, peak)


def typical(cpu: Sequence[Level], memory: Sequence[Level], nodes: Iterable[NodeFacts]) -> Typical:
    sizes = list(nodes)
    nothing_measured = not cpu and not memory
    size = NodeFacts("", _size([node.capacity for node in sizes]), _size([node.room for node in sizes]))
    return Typical(
        HALF if nothing_measured else _median(cpu), HALF if nothing_measured else _median(memory), size
    )


def _median(levels: Sequence[Level]) -> Level | None:
    if not levels:
        return None
    return Level(
        statistics.median(each.percent for each in levels),
        statistics.median(each.deviation for each in levels),
        statistics.median(each.peak for each in levels),
    )


def _size(amounts: Sequence[Amount]) -> Amount:
    # The lower median is the size of a real node.
    return Amount(
        statistics.median_low([each.cpu for each in amounts]) if amounts else 0,
        statistics.median_low([each.memory for each in amounts]) if amounts else 0,
    )


class ScorePart(msgspec.Struct, frozen=True):
    """One number that went into a score."""

    name: str
    value: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}{self.unit}"


class NodePolicy(Protocol):
    """Scores a node by itself."""

    def score(self, node: NodeTerms, pod: Demand) -> int:
        """From 0 to 100."""

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[ScorePart, ...]:
        """The numbers that the score came from."""
