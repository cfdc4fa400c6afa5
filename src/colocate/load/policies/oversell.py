"""oversell: prefer nodes whose pods request much and use little, as if those nodes were larger than they are.

A node's requested share is divided by the ratio by which it could be overcommitted, given what its pods really
use. The share only changes the score: no node takes a pod that would not fit by its requests. All is reckoned in
whole numbers: a float would lose a point where the score is one.
"""

from fractions import Fraction
from typing import NamedTuple

from colocate.load.demand import Demand
from colocate.load.settings import OversellSettings
from colocate.load.terms import NodeTerms, ResourceTerms, ScorePart


class Quotient(NamedTuple):
    """A number as two whole ones. Never reduced, which is what a Fraction takes its time for."""

    over: int
    under: int

    def __float__(self) -> float:
        return self.over / self.under


_ONE = Quotient(1, 1)
_KEPT = 20_000
"""Nodes whose ratios are kept: more than a cluster has."""
_NONE_KEPT = None, (_ONE, _ONE)


class Oversell:
    def __init__(self, settings: OversellSettings) -> None:
        self._cpu = written(settings.cpu_target), written(settings.cpu_floor)
        self._memory = written(settings.memory_target), written(settings.memory_floor)
        self._most = written(settings.most)
        self._kept: dict[str, tuple[NodeTerms, tuple[Quotient, Quotient]]] = {}
        """Ratios by node, with the terms that they follow from."""

    def score(self, node: NodeTerms, pod: Demand) -> int:
        cpu, memory = self._ratios(node)
        return min(_left(node.cpu, pod.request.cpu, cpu), _left(node.memory, pod.request.memory, memory))

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[ScorePart, ...]:
        cpu, memory = self._ratios(node)
        return (
            ScorePart("requested CPU", _percent(node.cpu), " %"),
            ScorePart("ratio of CPU", float(cpu)),
            ScorePart("CPU with this pod looks like", _looks(node.cpu, pod.request.cpu, cpu), " %"),
            ScorePart("requested memory", _percent(node.memory), " %"),
            ScorePart("ratio of memory", float(memory)),
            ScorePart(
                "memory with this pod looks like", _looks(node.memory, pod.request.memory, memory), " %"
            ),
        )

    def _ratios(self, node: NodeTerms) -> tuple[Quotient, Quotient]:
        """Whatever the pod, and so worked out once for a node until its terms are others."""
        terms, ratios = self._kept.get(node.name, _NONE_KEPT)
        if terms is not node:
            ratios = self._ratio(node.cpu, *self._cpu), self._ratio(node.memory, *self._memory)
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[node.name] = node, ratios
        return ratios

    def _ratio(self, terms: ResourceTerms, target: Quotient, floor: Quotient) -> Quotient:
        # What is only supposed is nothing to shrink by.
        if not terms.measured:
            return _ONE
        over, under = terms.percent.as_integer_ratio()
        used = Quotient(over * terms.capacity + 100 * under * terms.ledger, 100 * under)
        ratio = overcommit_ratio(terms.requested, used, terms.room, target, floor)
        return self._most if _less(self._most, ratio) else ratio


def overcommit_ratio(
    requested: int, used: Quotient, room: int, target: Quotient, floor: Quotient
) -> Quotient:
    """How many times its size the node may be requested before it is used beyond `target`.

    The pods to come are taken to use what those that are there use of their requests, and at least `floor`.
    """
    if requested <= 0 or room <= 0:
        return _ONE
    load = Quotient(used.over, used.under * requested)
    if _less(_ONE, load):
        load = _ONE
    elif _less(load, floor):
        load = floor
    # (room × target − used) / load + requested, as one quotient.
    free = room * target.over * used.under - used.over * target.under
    under = used.under * target.under * load.over
    ratio = Quotient(free * load.under + requested * under, under * room)
    return _ONE if _less(ratio, _ONE) else ratio


def written(setting: float) -> Quotient:
    """A setting as it is written: 0.6 is six tenths."""
    return Quotient(*Fraction(str(setting)).as_integer_ratio())


def _less(one: Quotient, other: Quotient) -> bool:
    return one.over * other.under < other.over * one.under


def _left(terms: ResourceTerms, request: int, ratio: Quotient) -> int:
    """What is left of the node as it looks, in whole percents."""
    looks = terms.room * ratio.over
    asked = (terms.requested + request) * ratio.under
    return (looks - asked) * 100 // looks if asked < looks else 0


def _looks(terms: ResourceTerms, request: int, ratio: Quotient) -> float:
    """The node's requested share with this ratio, in percent."""
    looks = terms.room * ratio.over
    return min(100 * (terms.requested + request) * ratio.under / looks, 100.0) if looks else 100.0


def _percent(terms: ResourceTerms) -> float:
    return 100 * terms.requested / terms.room if terms.room else 100.0
