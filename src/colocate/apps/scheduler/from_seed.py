"""Colocate's settings from the configuration of a kube-scheduler with MemRealUsage or CpuRealUsage built in."""

from collections.abc import Callable, Mapping
from typing import Any

from colocate.apps.scheduler.seed_config import Seed
from colocate.apps.scheduler.settings import SchedulerConfig
from colocate.load import Staleness

_ROUNDS = 3
"""For so many rounds a sample counts at least: the seed's never expired, however seldom it asked."""


def over_seed(seed: Seed, read: Callable[[Mapping[str, Any]], SchedulerConfig]) -> SchedulerConfig:
    """What is read over what the seed says, with samples that count as long as suits the interval in force."""
    config = read(_said_by(seed, seed.prometheus.interval))
    if config.usage.interval == seed.prometheus.interval:
        return config
    return read(_said_by(seed, config.usage.interval))


def _said_by(seed: Seed, interval: float) -> dict[str, Any]:
    """As a configuration would say it: where Prometheus is, how it is asked, what pods of which scheduler are judged
    by; how long samples count that are asked for every `interval` seconds."""
    load: dict[str, Any] = {"policies": dict(seed.policies)}
    asked = seed.prometheus
    if not asked.url:
        return {"load": load}
    if interval >= Staleness().after:
        # Samples asked for this seldom would expire before the next ones come.
        load["staleness"] = {"after": _ROUNDS * interval}
    prometheus = {"url": asked.url, "timeout": f"{asked.timeout}s"}
    return {"usage": {"prometheus": prometheus, "interval": f"{asked.interval}s"}, "load": load}
