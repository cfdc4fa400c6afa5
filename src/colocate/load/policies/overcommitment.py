"""low-risk-overcommitment: how likely pods that may use more than they request will find it missing.

Half of the risk is what limits promise beyond the node, half is how likely the measured load exceeds what is
requested, by a beta distribution with the load's mean and deviation. The riskier of CPU and memory counts.
"""

import math
from functools import lru_cache

from colocate.load.demand import Demand
from colocate.load.policies.beta import max_variance, probability_below
from colocate.load.policies.risk_balancing import deviation, mu_sigma
from colocate.load.settings import OvercommitmentSettings
from colocate.load.terms import NodeTerms, ResourceTerms, ScorePart
from colocate.model.go import clamp, go_round

_VARIANCE_ALLOWED = 0.99
"""Of the greatest possible: at that itself, no distribution can be fitted."""


class LowRiskOvercommitment:
    def __init__(self, settings: OvercommitmentSettings) -> None:
        self._smoothing = math.sqrt(settings.smoothing_window)
        self._cpu_weight = settings.cpu_limit_weight
        self._memory_weight = settings.memory_limit_weight

    def score(self, node: NodeTerms, pod: Demand) -> int:
        # A pod that promises nothing cannot be overcommitted: this policy has no opinion on it.
        if pod.best_effort or not node.known:
            return 0
        return go_round((1 - max(self._risks(node, pod))) * 100)

    def parts(self, node: NodeTerms, pod: Demand) -> tuple[ScorePart, ...]:
        cpu, memory = self._risks(node, pod)
        return (
            ScorePart("requested CPU", node.cpu.requested, "m"),
            ScorePart("limits of CPU", node.cpu.limits, "m"),
            ScorePart("risk of CPU", 100 * cpu, " %"),
            ScorePart("risk of memory", 100 * memory, " %"),
        )

    def _risks(self, node: NodeTerms, pod: Demand) -> tuple[float, float]:
        return (
            self.risk(node.cpu, pod.request.cpu, pod.limit.cpu, self._cpu_weight),
            self.risk(node.memory, pod.request.memory, pod.limit.memory, self._memory_weight),
        )

    def risk(self, terms: ResourceTerms, request: int, limit: int, limit_weight: float) -> float:
        load = 0.0
        if terms.known:
            mu, sigma = mu_sigma(terms.used, deviation(terms), 0, terms.room)
            load = load_risk(
                mu, sigma * self._smoothing, min(terms.requested, terms.room), terms.limits, terms.room
            )
        promised = limit_risk(min(terms.requested + request, terms.room), terms.limits + limit, terms.room)
        return clamp(limit_weight * promised + (1 - limit_weight) * load, 0, 1)


def limit_risk(requested: int, limits: int, room: int) -> float:
    """The share of what is promised beyond requests that the node does not have."""
    return (limits - room) / (limits - requested) if limits > room else 0.0


@lru_cache(maxsize=32_768)  # The dear part, and the same for every pod while the node stays as it is.
def load_risk(mu: float, sigma: float, requested: int, limits: int, room: int) -> float:
    """How likely the load exceeds what is requested, given that it cannot exceed the limits."""
    if room <= 0:
        return 0.0
    sigma = min(sigma, math.sqrt(max_variance(mu) * _VARIANCE_ALLOWED))
    below, fitted = probability_below(mu, sigma, clamp(requested / room, 0, 1))
    if limits < room and requested <= limits:
        if limits == 0:
            below = 1.0
        elif fitted is not None:
            within_limits = fitted.below(limits / room)
            if within_limits > 0:
                below = clamp(below / within_limits, 0, 1)
    return 1 - below
