"""What is asked of a metrics source: use, deviation and percentiles, of CPU and memory, of nodes and pods. Pure.

A node's values are percents of its capacity. A pod's are millicores and bytes.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum

import msgspec

from colocate.model.load import Aggregation

_SEVERAL = 2
"""Nodes below which nothing is told of ratios: a single node proves nothing, and leaves no choice."""
_UNITS = ((3600.0, "h"), (60.0, "m"), (1.0, "s"))


class Measured(StrEnum):
    """What is used up."""

    CPU = "cpu"
    MEMORY = "memory"


class Statistic(StrEnum):
    """What is made of the values of a window."""

    USE = "use"
    """The use by which nodes are judged: the average of a short window."""
    DEVIATION = "deviation"
    AVERAGE = "avg"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    POD = "pod"
    """The use of every pod, to see how far estimates are off."""


class Signal(msgspec.Struct, frozen=True):
    """One thing to know of every node, or of every pod: one query."""

    measured: Measured
    statistic: Statistic = Statistic.USE
    window: float = 0.0
    """Seconds; 0 where the source has a window of its own."""

    def __str__(self) -> str:
        match self.statistic:
            case Statistic.USE:
                return str(self.measured)
            case Statistic.POD:
                return f"pod.{self.measured}"
        return f"{self.measured}.{self.statistic}.{duration(self.window)}"

    @property
    def aggregation(self) -> Aggregation | None:
        """The fact that this becomes; None where it is not one of the aggregations."""
        try:
            return Aggregation(self.statistic)
        except ValueError:
            return None


CPU = Signal(Measured.CPU)
MEMORY = Signal(Measured.MEMORY)
POD_CPU = Signal(Measured.CPU, Statistic.POD)
POD_MEMORY = Signal(Measured.MEMORY, Statistic.POD)


def duration(seconds: float) -> str:
    """Seconds as Prometheus writes them: 1h, 5m, 90s, 500ms."""
    for unit, letter in _UNITS:
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:.0f}{letter}"
    return f"{max(1.0, seconds * 1000):.0f}ms"


def ratios(percents: Mapping[Signal, Collection[float]]) -> dict[Signal, bool]:
    """Whether values that should be percents look like ratios, from 0 to 1: a rule may lack its `100 *`.

    Memory decides: what a machine runs before its first pod takes more than one percent of its memory, so several
    nodes below that are ratios, or idle machines of terabytes, where one needless warning does no harm. CPU cannot
    decide, as idle nodes stay below one percent for hours; it counts as a ratio where memory is one, and is left out
    where memory has no answer. Deviations are small by nature, and are left out.
    """
    low = {
        signal: below_one(values)
        for signal, values in percents.items()
        if signal.statistic is not Statistic.DEVIATION
    }
    return {
        signal: so and (signal.measured is Measured.MEMORY or low[MEMORY])
        for signal, so in low.items()
        if signal.measured is Measured.MEMORY or MEMORY in low
    }


def below_one(percents: Collection[float]) -> bool:
    """Whether several nodes are used, and none by more than one percent."""
    return len(percents) >= _SEVERAL and 0 < max(percents) <= 1
