"""Colocate's settings from the configuration of a kube-scheduler with MemRealUsage or CpuRealUsage built in."""

from typing import Any

from colocate.apps.scheduler.seed_config import Seed
from colocate.load.settings import Staleness

_ROUNDS = 3
"""For so many rounds a sample counts at least: the seed's never expired, however seldom it asked."""


def said_by(seed: Seed) -> dict[str, Any]:
    """As a configuration would say it: where Prometheus is, how it is asked, what pods of which scheduler are judged
    by."""
    load: dict[str, Any] = {"policies": dict(seed.policies)}
    asked = seed.prometheus
    if not asked.url:
        return {"load": load}
    if asked.interval >= Staleness().after:
        # Samples asked for this seldom would expire before the next ones come.
        load["staleness"] = {"after": _ROUNDS * asked.interval}
    prometheus = {"url": asked.url, "timeout": f"{asked.timeout}s"}
    return {"usage": {"prometheus": prometheus, "interval": f"{asked.interval}s"}, "load": load}
