"""What is asked of a metrics source: use, deviation and percentiles, of CPU and memory, of nodes and pods. Pure.

A node's values are percents of its capacity. A pod's are millicores and bytes.
"""

from enum import StrEnum

import msgspec

from colocate.model.load import Aggregation

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
