"""The typical node: what a node without a fresh sample is supposed to be like, the median of those that have one."""

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from colocate.load.settings import BalancedSettings
from colocate.model.load import Amount, NodeFacts, Usage


class Level(msgspec.Struct, frozen=True):
    """How loaded one resource is, in percent of the capacity."""

    percent: float
    deviation: float
    peak: float


HALF = Level(50.0, 0.0, 50.0)
"""Supposed where nothing at all is measured: pods still part from each other by what the ledger knows."""


class Typical(msgspec.Struct, frozen=True):
    """The median, of each number by itself."""

    cpu: Level | None
    """None where the resource is measured nowhere, and the other one is."""
    memory: Level | None
    size: NodeFacts


def level(usage: Usage, settings: BalancedSettings) -> Level:
    """The peak is a percentile, or the average and its deviation, whichever is more, as the settings want."""
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
    # The lower median: a size that a node really has.
    return Amount(
        statistics.median_low([each.cpu for each in amounts]) if amounts else 0,
        statistics.median_low([each.memory for each in amounts]) if amounts else 0,
    )
