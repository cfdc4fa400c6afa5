"""balanced: how much of a node will be free, at its busy times, once the pod is there.

Per resource, the pressure is the node's peak, the ledger's pods and the pod itself, as a percentage of what
pods can have; what is estimated never counts for all that is measured free. The score is what is left to 100 of
both pressures: part their mean, part the greater alone, so that an idle CPU never makes up for full memory.
Absolute, and meaningful for a single node.
"""

import math

from colocate.load.demand import Demand, taken
from colocate.load.policies.parts import ScorePart
from colocate.load.settings import BalancedSettings
from colocate.load.terms import NodeTerms, ResourceTerms

_LOST = 1e-9
"""More percent than floats lose, and less than anybody measures: no point is lost with them."""


class Balanced:
    def __init__(self, settings: BalancedSettings) -> None:
        self._greater = settings.dominant_percent / 100
        self._deviations = settings.pod_deviations

    def score(self, node: NodeTerms, pod: Demand) -> int:
        return int(100 - self.pressure(node, pod) + _LOST)

    def pressure(self, node: NodeTerms, pod: Demand) -> float:
        """From 0 to 100. A resource that is measured nowhere is left out; a node of which nothing is known
        is taken for full."""
        cpu, memory = node.cpu, node.memory
        of_cpu = self._of(cpu, pod.estimate.cpu, pod.swing.cpu)
        of_memory = self._of(memory, pod.estimate.memory, pod.swing.memory)
        if not cpu.known:
            return of_memory if memory.known else 100.0
        if not memory.known:
            return of_cpu
        # The greater counts by itself and in the mean of both, (1 + its share) / 2 in all. Written as a step from
        # the lesser, two of 100 make 100 exactly: no share of a float is lost.
        greater, lesser = (of_cpu, of_memory) if of_cpu >= of_memory else (of_memory, of_cpu)
        return lesser + (greater - lesser) * (1 + self._greater) / 2

    def _of(self, terms: ResourceTerms, estimate: int, swing: int) -> float:
        level = _pressure(terms, estimate)
        return level + taken(100 - level, self._swing(terms, swing))

    def _swing(self, terms: ResourceTerms, swing: int) -> float:
        """In percent of what pods can have."""
        if not terms.swing and not swing:
            return 0.0
        return self._deviations * math.hypot(terms.swing, swing) * terms.per_unit

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[ScorePart, ...]:
        """All in percent of what pods can have, so that peak, unseen pods and this pod, less what is not counted of
        them, add up."""
        cpu, memory = node.cpu, node.memory
        return (
            ScorePart("peak CPU", _of_room(cpu), " %"),
            ScorePart("peak memory", _of_room(memory), " %"),
            ScorePart("CPU of unseen pods", cpu.ledger * cpu.per_unit, " %"),
            ScorePart("memory of unseen pods", memory.ledger * memory.per_unit, " %"),
            ScorePart("CPU of this pod", pod.estimate.cpu * cpu.per_unit, " %"),
            ScorePart("memory of this pod", pod.estimate.memory * memory.per_unit, " %"),
            ScorePart("estimated CPU not counted", _not_counted(cpu, pod.estimate.cpu), " %"),
            ScorePart("estimated memory not counted", _not_counted(memory, pod.estimate.memory), " %"),
            ScorePart("swing of CPU", self._swing(cpu, pod.swing.cpu), " %"),
            ScorePart("swing of memory", self._swing(memory, pod.swing.memory), " %"),
            ScorePart("pressure", self.pressure(node, pod), " %"),
        )


def _pressure(terms: ResourceTerms, estimate: int) -> float:
    occupied = terms.occupied
    return occupied + taken(100 - occupied, (terms.ledger + estimate) * terms.per_unit)


def _not_counted(terms: ResourceTerms, estimate: int) -> float:
    estimated = (terms.ledger + estimate) * terms.per_unit
    return estimated - taken(100 - terms.occupied, estimated)


def _of_room(terms: ResourceTerms) -> float:
    """The peak, which is measured in percent of the capacity."""
    return terms.peak * terms.capacity / 100 * terms.per_unit
