"""Colocate's settings from the configuration of a kube-scheduler with MemRealUsage or CpuRealUsage built in."""

import msgspec

from colocate.apps.config.schema import Seconds
from colocate.apps.scheduler.seed_config import Seed
from colocate.apps.scheduler.settings import SchedulerConfig
from colocate.load.settings import Staleness

_ROUNDS = 3
"""For so many rounds a sample counts at least: the seed's never expired, however seldom it asked."""


def with_seed(config: SchedulerConfig, seed: Seed) -> SchedulerConfig:
    """`config`, with where Prometheus is, how it is asked and what pods of which scheduler are judged by."""
    asked = seed.prometheus
    usage = config.usage
    if asked.url:
        prometheus = msgspec.structs.replace(usage.prometheus, url=asked.url, timeout=Seconds(asked.timeout))
        usage = msgspec.structs.replace(usage, prometheus=prometheus, interval=Seconds(asked.interval))
    load = msgspec.structs.replace(
        config.load,
        policies={**seed.policies, **config.load.policies},
        staleness=_outliving(usage.interval, config.load.staleness),
    )
    return msgspec.structs.replace(config, usage=usage, load=load)


def _outliving(interval: float, staleness: Staleness) -> Staleness:
    """The same, but that samples asked for this seldom do not expire before the next ones come."""
    if not staleness.after or interval < staleness.after:
        return staleness
    return msgspec.structs.replace(staleness, after=_ROUNDS * float(interval))
