"""oversell: prefer nodes whose pods request much and use little, as if those nodes were larger than they are.

A node's requested share is divided by the ratio by which it could be overcommitted, given what its pods really
use. The share only changes the score: no node takes a pod that would not fit by its requests. All is reckoned in
fractions: a float would lose a point where the score is a whole number.
"""

from fractions import Fraction
from functools import lru_cache

from colocate.load.demand import Demand
from colocate.load.policies.parts import Part
from colocate.load.settings import OversellSettings
from colocate.load.terms import NodeTerms, ResourceTerms


class Oversell:
    def __init__(self, settings: OversellSettings) -> None:
        self._settings = settings

    def score(self, node: NodeTerms, pod: Demand) -> int:
        cpu, memory = self._ratios(node)
        return min(_left(node.cpu, pod.request.cpu, cpu), _left(node.memory, pod.request.memory, memory))

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[Part, ...]:
        cpu, memory = self._ratios(node)
        return (
            Part("requested CPU", _percent(node.cpu), " %"),
            Part("ratio of CPU", float(cpu)),
            Part("CPU with this pod looks like", _looks(node.cpu, pod.request.cpu, cpu), " %"),
            Part("requested memory", _percent(node.memory), " %"),
            Part("ratio of memory", float(memory)),
            Part("memory with this pod looks like", _looks(node.memory, pod.request.memory, memory), " %"),
        )

    def _ratios(self, node: NodeTerms) -> tuple[Fraction, Fraction]:
        settings = self._settings
        return (
            self._ratio(node.cpu, settings.cpu_target, settings.cpu_floor),
            self._ratio(node.memory, settings.memory_target, settings.memory_floor),
        )

    def _ratio(self, terms: ResourceTerms, target: float, floor: float) -> Fraction:
        # What is only supposed is nothing to shrink by.
        if not terms.measured:
            return _AS_IT_IS
        return _bounded_ratio(
            terms.requested,
            terms.percent,
            terms.capacity,
            terms.ledger,
            terms.room,
            target,
            floor,
            self._settings.most,
        )


def overcommit_ratio(
    requested: int, used: Fraction, room: int, target: Fraction, floor: Fraction
) -> Fraction:
    """How many times its size the node may be requested before it is used beyond `target`.

    The pods to come are taken to use what those that are there use of their requests, and at least `floor`.
    """
    if requested <= 0 or room <= 0:
        return _AS_IT_IS
    load = max(min(used / requested, Fraction(1)), floor)
    return max(((room * target - used) / load + requested) / room, _AS_IT_IS)


_AS_IT_IS = Fraction(1)
"""The ratio of a node that is taken for no larger than it is."""


@lru_cache(maxsize=32_768)  # The dear part, and the same for every pod while the node stays as it is.
def _bounded_ratio(
    requested: int,
    percent: float,
    capacity: int,
    ledger: int,
    room: int,
    target: float,
    floor: float,
    most: float,
) -> Fraction:
    used = Fraction(percent) * capacity / 100 + ledger
    return min(overcommit_ratio(requested, used, room, written(target), written(floor)), written(most))


def written(setting: float) -> Fraction:
    """A setting as it is written: 0.6 is six tenths."""
    return Fraction(str(setting))


def _left(terms: ResourceTerms, request: int, ratio: Fraction) -> int:
    """What is left of the node as it looks, in whole percents."""
    looks = terms.room * ratio.numerator
    asked = (terms.requested + request) * ratio.denominator
    return (looks - asked) * 100 // looks if asked < looks else 0


def _looks(terms: ResourceTerms, request: int, ratio: Fraction) -> float:
    """The same node's requested share, in percent."""
    return min(100 * (terms.requested + request) / float(terms.room * ratio), 100.0) if terms.room else 100.0


def _percent(terms: ResourceTerms) -> float:
    return 100 * terms.requested / terms.room if terms.room else 100.0
