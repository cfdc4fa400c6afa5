"""Between which numbers each setting of judging makes sense. Beyond them scores would be no scores: refused."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from colocate.config.words import Problem
from colocate.load import LoadSettings
from colocate.model.load import Aggregation

_WEEK = 7 * 86400
_MOST_CPU = 1_000_000
"""Millicores: a thousand CPUs."""
_MOST_MEMORY = 1 << 50

_RANGES: dict[str, tuple[float, float]] = {
    "staleness.after": (0, _WEEK),
    "ledger.expiry": (0, _WEEK),
    "ledger.assumed_expiry": (0, _WEEK),
    "ledger.assumed_nodes": (0, 16),
    "ledger.vouched_pods": (0, 10_000),
    "ledger.least_percent": (0, 100),
    "ledger.least_percent_bound": (0, 100),
    "estimate.cpu_percent": (0, 1000),
    "estimate.memory_percent": (0, 1000),
    "estimate.default_cpu": (0, _MOST_CPU),
    "estimate.default_memory": (0, _MOST_MEMORY),
    "filter.thresholds.window": (0, _WEEK),
    "balanced.window": (0, _WEEK),
    "balanced.deviations": (0, 10),
    "balanced.pod_deviations": (0, 10),
    "balanced.dominant_percent": (0, 100),
    "balanced.overshoot": (0, 10),
    "balanced.hot_cpu": (1, 100),
    "balanced.hot_memory": (1, 100),
    "packing.target_percent": (1, 99),
    "packing.multiplier": (0, 100),
    "packing.default_cpu": (0, _MOST_CPU),
    "risk_balancing.margin": (0, 100),
    "risk_balancing.sensitivity": (0, 100),
    "overcommitment.smoothing_window": (1, 1_000_000),
    "overcommitment.cpu_limit_weight": (0, 1),
    "overcommitment.memory_limit_weight": (0, 1),
    "load_aware.cpu_weight": (0, 1000),
    "load_aware.memory_weight": (0, 1000),
    "load_aware.dominant_weight": (0, 1000),
    "load_aware.window": (0, _WEEK),
    "oversell.cpu_target": (0, 1),
    "oversell.memory_target": (0, 1),
    # What pods use is divided by: they are never taken to use nothing of their requests.
    "oversell.cpu_floor": (0.01, 1),
    "oversell.memory_floor": (0.01, 1),
    "oversell.most": (1, 100),
}
_PERCENT = (0, 100)
_THRESHOLDS = [
    f"filter.thresholds.{kind}.{resource}"
    for kind in ("usage", "prod", "aggregated")
    for resource in ("cpu", "memory")
]


def check_ranges(load: LoadSettings) -> None:
    """Raise a Problem for the first number that is out of its range."""
    for path, value, (least, most) in _stated(load):
        if not least <= value <= most:
            raise Problem(
                f"load.{_camel(path)}", f"{value:g} is out of range; choose {least:.15g} to {most:.15g}"
            )
    bounds = load.filter.thresholds
    if bounds.aggregated is not None and bounds.aggregation is None:
        raise Problem(
            "load.filter.thresholds.aggregated",
            f"this needs an aggregation; add aggregation: one of {', '.join(Aggregation)}",
        )
    if load.balanced.window and load.balanced.aggregation is None:
        raise Problem(
            "load.balanced.window",
            f"this needs an aggregation; add aggregation: one of {', '.join(Aggregation)}",
        )
    aware = load.load_aware
    if not (aware.cpu_weight or aware.memory_weight or aware.dominant_weight):
        raise Problem("load.loadAware", "all weights are 0, so every node would get 0; raise one")


def _stated(load: LoadSettings) -> Iterator[tuple[str, float, tuple[float, float]]]:
    for path, bounds in _RANGES.items():
        yield path, attrgetter(path)(load), bounds
    for path in _THRESHOLDS:
        kind, resource = path.rsplit(".", 1)
        bound: Any = attrgetter(kind)(load)
        value = None if bound is None else getattr(bound, resource)
        if value is not None:
            yield path, value, _PERCENT


def _camel(path: str) -> str:
    first, *others = path.split("_")
    return first + "".join(word[0].upper() + word[1:] for word in others)
