"""balanced: how far beyond hot a node is to be expected, and how much of it will be in use, once the pod is there.

Per resource, the level is the node's peak, the ledger's pods and the pod itself, as a percentage of what pods can
have; what is estimated never counts for all that is measured free. The use of pods swings about that: the overshoot
is how far it lies above hot in the mean of all that may come. The score falls with the overshoot of both resources
and, far less, with their levels: part their mean, part the greater alone, so that an idle CPU never makes up for full
memory. Absolute, and meaningful for a single node.

The pressure is the level and the swing together: what heat is told by, and, where overshoot counts for nothing, the
score, as what is left of it to 100.
"""

import math

from colocate.load.demand import Demand, taken
from colocate.load.settings import BalancedSettings
from colocate.load.terms import NodeTerms, ResourceTerms, ScorePart

_LOST = 1e-9
"""More percent than floats lose, and less than anybody measures: no point is lost with them."""
_LEVEL = 0.05
"""What one percent of the level counts for beside one percent of overshoot: it decides where neither is to be hot."""
_LEAST_SWING = 6.0
"""In percent: no node's use stands still."""
_ROOT_OF_2 = math.sqrt(2)
_ROOT_OF_2_PI = math.sqrt(2 * math.pi)


class Balanced:
    def __init__(self, settings: BalancedSettings) -> None:
        self._greater = settings.dominant_percent / 100
        self._deviations = settings.pod_deviations
        self._overshoot = settings.overshoot
        self._hot_cpu = settings.hot_cpu
        self._hot_memory = settings.hot_memory

    def score(self, node: NodeTerms, pod: Demand) -> int:
        if not self._overshoot:
            return int(100 - self.pressure(node, pod) + _LOST)
        cpu, memory = node.cpu, node.memory
        if not (cpu.known or memory.known):
            return 0
        of_cpu = _pressure(cpu, pod.estimate.cpu)
        of_memory = _pressure(memory, pod.estimate.memory)
        beyond = 0.0
        if cpu.known:
            beyond += _overshoot(of_cpu, self._swing(cpu, pod.swing.cpu), self._hot_cpu)
        if memory.known:
            beyond += _overshoot(of_memory, self._swing(memory, pod.swing.memory), self._hot_memory)
        level = self._of_both(cpu.known, of_cpu, memory.known, of_memory)
        return int(100 / (1 + self._overshoot * (beyond + _LEVEL * level)) + _LOST)

    def pressure(self, node: NodeTerms, pod: Demand) -> float:
        """From 0 to 100. A resource that is measured nowhere is left out; a node of which nothing is known
        is taken for full."""
        cpu, memory = node.cpu, node.memory
        return self._of_both(
            cpu.known,
            self._of(cpu, pod.estimate.cpu, pod.swing.cpu),
            memory.known,
            self._of(memory, pod.estimate.memory, pod.swing.memory),
        )

    def _of_both(self, cpu_known: bool, of_cpu: float, memory_known: bool, of_memory: float) -> float:
        if not cpu_known:
            return of_memory if memory_known else 100.0
        if not memory_known:
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
            *self._beyond(node, pod),
            ScorePart("pressure", self.pressure(node, pod), " %"),
        )

    def _beyond(self, node: NodeTerms, pod: Demand) -> tuple[ScorePart, ...]:
        if not self._overshoot:
            return ()
        each = (
            ("CPU", node.cpu, pod.estimate.cpu, pod.swing.cpu, self._hot_cpu),
            ("memory", node.memory, pod.estimate.memory, pod.swing.memory, self._hot_memory),
        )
        return tuple(
            ScorePart(
                f"overshoot of {name}",
                _overshoot(_pressure(terms, estimate), self._swing(terms, swing), hot)
                if terms.known
                else 0.0,
                " %",
            )
            for name, terms, estimate, swing, hot in each
        )


def _overshoot(level: float, swing: float, hot: float) -> float:
    """How far a use that is normally distributed about the level lies above hot in the mean, in percent."""
    deviation = math.hypot(swing, _LEAST_SWING)
    short = (hot - level) / deviation
    return deviation * (
        math.exp(-short * short / 2) / _ROOT_OF_2_PI - short * math.erfc(short / _ROOT_OF_2) / 2
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
