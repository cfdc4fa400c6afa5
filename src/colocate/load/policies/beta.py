"""The beta distribution: how likely a load of known mean and deviation stays below a share of the node."""

import math
from typing import Self

import msgspec

_SMALLEST = 5e-324
_TINY = 1e-300
_STEPS = 10_000


class Beta(msgspec.Struct, frozen=True):
    """A beta distribution. With a parameter that is not positive it is none, and nothing is likely."""

    alpha: float
    beta: float

    @classmethod
    def of(cls, alpha: float, beta: float) -> Self | None:
        """None where no distribution has these parameters."""
        return cls(alpha, beta) if alpha > 0 and beta > 0 else None

    @classmethod
    def matching(cls, mean: float, second_moment: float) -> Self | None:
        """The distribution with these moments; None where there is none on [0, 1]."""
        variance = second_moment - mean * mean
        if not 0 <= mean <= 1 or variance < 0 or variance >= max_variance(mean):
            return None
        size = max(mean * (1 - mean) / variance - 1, _SMALLEST) if variance else math.inf
        return cls(mean * size, (1 - mean) * size)

    @property
    def _exists(self) -> bool:
        return self.alpha > 0 and self.beta > 0

    @property
    def moments(self) -> tuple[float, float, float]:
        """E[X], E[X²], E[X³]."""
        total = self.alpha + self.beta
        first = self.alpha / total
        second = first * (self.alpha + 1) / (total + 1)
        return first, second, second * (self.alpha + 2) / (total + 2)

    def below(self, x: float) -> float:
        """The probability of a value of at most x; 0 where nothing is defined: beyond [0, 1], for one."""
        if not self._exists or not 0 < x <= 1:
            return 0.0
        if x == 1:
            return 1.0
        if not math.isfinite(self.alpha + self.beta):
            return 0.0
        front = math.exp(self.alpha * math.log(x) + self.beta * math.log1p(-x) - self._log_complete())
        # The fraction converges quickly on one side of the mean only; the other side is its complement.
        if x < (self.alpha + 1) / (self.alpha + self.beta + 2):
            return min(1.0, front * _continued_fraction(self.alpha, self.beta, x) / self.alpha)
        return max(0.0, 1 - front * _continued_fraction(self.beta, self.alpha, 1 - x) / self.beta)

    def _log_complete(self) -> float:
        return math.lgamma(self.alpha) + math.lgamma(self.beta) - math.lgamma(self.alpha + self.beta)


def max_variance(mean: float) -> float:
    """The greatest variance of anything on [0, 1] with this mean."""
    return mean * (1 - mean) if 0 < mean < 1 else 0.0


def probability_below(mu: float, sigma: float, threshold: float) -> tuple[float, Beta | None]:
    """How likely a load of that mean and deviation is at most `threshold`, and by which distribution."""
    second_moment = sigma * sigma + mu * mu
    # A deviation so small that it is lost next to the mean is none: nothing could be fitted to it.
    if mu == 0 or second_moment == mu * mu:
        return (1.0 if mu <= threshold else 0.0), None
    fitted = Beta.matching(mu, second_moment)
    return (0.0, None) if fitted is None else (fitted.below(threshold), fitted)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, evaluated from the front (Lentz's method)."""
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    for step in range(1, _STEPS):
        even = step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1))
        for term in (even, odd):
            d = 1 / _not_zero(1 + term * d)
            c = _not_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
