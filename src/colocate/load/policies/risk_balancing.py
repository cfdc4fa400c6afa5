"""load-variation-risk-balancing: a node's risk is the mean of its load and of how much that load varies."""

import math

from colocate.load.demand import Demand
from colocate.load.settings import RiskBalancingSettings
from colocate.load.terms import NodeTerms, ResourceTerms, ScorePart
from colocate.model.go import clamp, go_round


class LoadVariationRiskBalancing:
    def __init__(self, settings: RiskBalancingSettings) -> None:
        self._margin = settings.margin
        self._sensitivity = settings.sensitivity

    def score(self, node: NodeTerms, pod: Demand) -> int:
        scores = []
        if node.cpu.known:
            scores.append(self._of(node.cpu, pod.request.cpu))
        if node.memory.known:
            scores.append(self._of(node.memory, pod.request.memory))
        return go_round(min(scores, default=0.0))

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[ScorePart, ...]:
        parts = []
        for name, terms, request in (
            ("CPU", node.cpu, pod.request.cpu),
            ("memory", node.memory, pod.request.memory),
        ):
            if terms.known:
                mu, sigma = mu_sigma(terms.used, deviation(terms), request, terms.room)
                parts += [
                    ScorePart(f"{name} with this pod", 100 * mu, " %"),
                    ScorePart(f"deviation of {name}", 100 * sigma, " %"),
                    ScorePart(f"score of {name}", self._of(terms, request)),
                ]
        return tuple(parts)

    def _of(self, terms: ResourceTerms, request: int) -> float:
        return risk_score(terms.used, deviation(terms), request, terms.room, self._margin, self._sensitivity)


def deviation(terms: ResourceTerms) -> float:
    """In millicores or bytes."""
    return terms.deviation * terms.capacity / 100


def mu_sigma(used: float, deviation: float, request: float, room: float) -> tuple[float, float]:
    """Load with the pod, and its deviation, as shares of the room."""
    if room <= 0:
        return 0.0, 0.0
    return clamp((used + request) / room, 0, 1), clamp(deviation / room, 0, 1)


def risk_score(
    used: float, deviation: float, request: float, room: float, margin: float, sensitivity: float
) -> float:
    """Not rounded: the lower of two resources counts, and is rounded then."""
    if room <= 0:
        return 0.0
    mu, sigma = mu_sigma(clamp(used, 0, room), deviation, max(request, 0), room)
    if sensitivity > 0:
        sigma = math.pow(sigma, 1 / sensitivity)
    elif sensitivity == 0:
        # Go's pow(sigma, +Inf): nothing but a deviation of the whole node is left of it.
        sigma = 1.0 if sigma == 1 else 0.0
    sigma = clamp(sigma * margin, 0, 1)
    return (1 - (mu + sigma) / 2) * 100
