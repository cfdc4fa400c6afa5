"""oversell: prefer nodes whose pods request much and use little, as if those nodes were larger than they are.

A node's requested share is divided by the ratio by which it could be overcommitted, given what its pods really
use. The share only changes the score: no node takes a pod that would not fit by its requests.
"""

from colocate.load.arithmetic import clamp
from colocate.load.demand import Demand
from colocate.load.policies.parts import Part
from colocate.load.settings import OversellSettings
from colocate.load.terms import NodeTerms, ResourceTerms


class Oversell:
    def __init__(self, settings: OversellSettings) -> None:
        self._settings = settings

    def score(self, node: NodeTerms, pod: Demand) -> int:
        cpu, memory = self._shares(node, pod)
        return int(100 * (1 - max(cpu, memory)))

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[Part, ...]:
        cpu, memory = self._ratios(node)
        shares = self._shares(node, pod)
        return (
            Part("requested CPU", _percent(node.cpu), " %"),
            Part("ratio of CPU", cpu),
            Part("CPU with this pod looks like", 100 * shares[0], " %"),
            Part("requested memory", _percent(node.memory), " %"),
            Part("ratio of memory", memory),
            Part("memory with this pod looks like", 100 * shares[1], " %"),
        )

    def _shares(self, node: NodeTerms, pod: Demand) -> tuple[float, float]:
        cpu, memory = self._ratios(node)
        return _share(node.cpu, pod.request.cpu, cpu), _share(node.memory, pod.request.memory, memory)

    def _ratios(self, node: NodeTerms) -> tuple[float, float]:
        settings = self._settings
        return (
            min(self._ratio(node.cpu, settings.cpu_target, settings.cpu_floor), settings.most),
            min(self._ratio(node.memory, settings.memory_target, settings.memory_floor), settings.most),
        )

    def _ratio(self, terms: ResourceTerms, target: float, floor: float) -> float:
        # What is only supposed is nothing to shrink by.
        if not terms.measured:
            return 1.0
        return overcommit_ratio(terms.requested, terms.used, terms.room, target, floor)


def overcommit_ratio(requested: float, used: float, room: float, target: float, floor: float) -> float:
    """How many times its size the node may be requested before it is used beyond `target`.

    The pods to come are taken to use what those that are there use of their requests, and at least `floor`.
    """
    if requested <= 0 or room <= 0:
        return 1.0
    load = clamp(used / requested, floor, 1)
    return max(1.0, ((room * target - used) / load + requested) / room)


def _share(terms: ResourceTerms, request: int, ratio: float) -> float:
    return min((terms.requested + request) / (terms.room * ratio), 1.0) if terms.room else 1.0


def _percent(terms: ResourceTerms) -> float:
    return 100 * terms.requested / terms.room if terms.room else 100.0
