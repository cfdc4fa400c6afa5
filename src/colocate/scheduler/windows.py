"""Which statistics over longer windows are asked for: those that the policies in use judge by, unless stated.

Taints need none: they have their own hysteresis, and must go when the heat does.
"""

from collections.abc import Iterator

import msgspec

from colocate.cluster.usage import Measured, Statistic, UsageSettings, Window
from colocate.cluster.usage.signals import duration
from colocate.config.words import Problem
from colocate.load import Mix, PolicyName, mix
from colocate.model.values import Seconds
from colocate.scheduler.sections import Load

_PERCENTILE_SPAN = 3600.0
_DEVIATION = Window(Statistic.DEVIATION, Seconds(900))


class Need(msgspec.Struct, frozen=True):
    """A statistic that one setting judges by."""

    whose: str
    window: Window
    exact: bool = False
    """Whether a statistic over another window would not do."""
    hollow: bool = False
    """Whether the setting would be meaningless without it."""

    def met(self, windows: tuple[Window, ...]) -> bool:
        alike = [one for one in windows if one.statistic is self.window.statistic]
        return self.window in alike if self.exact else bool(alike)


def windows(usage: UsageSettings, load: Load) -> tuple[Window, ...]:
    """The windows to ask for: those stated, else those needed; none beside the user's own queries."""
    if usage.windows is not None:
        return usage.windows
    if usage.queries.keys() & set(Measured):
        return ()
    return tuple(dict.fromkeys(need.window for need in needs(load)))


def asks_for_pods(usage: UsageSettings, load: Load, *, taints: bool = False) -> bool:
    """Whether to ask for the use of every pod: as stated, else where nodes are judged by it."""
    if usage.pods is not None:
        return usage.pods
    balanced = any(part.policy is PolicyName.BALANCED for one in _mixes(load) for part in one)
    return bool(usage.prometheus.url) and (taints or balanced)


def check_windows(usage: UsageSettings, load: Load) -> None:
    """Raise a Problem where a policy would judge by a statistic that is not asked for."""
    _check_pods(usage, load)
    there = windows(usage, load)
    for need in needs(load):
        if not need.hollow:
            continue
        if usage.metrics_api and not usage.prometheus.url:
            raise Problem(
                need.whose,
                f"it judges by {_said(need)}, which the metrics API does not have; add usage.prometheus.url, or "
                f"choose another policy",
            )
        if not need.met(there):
            span = duration(need.window.span)
            raise Problem(
                "usage.windows",
                f"{need.whose} judges by {_said(need)}, which is not among them; add "
                f"{{statistic: {need.window.statistic}, span: {span}}}",
            )


def needs(load: Load) -> Iterator[Need]:
    """What the policies in use and the filter judge by."""
    used = {part.policy for one in _mixes(load) for part in one}
    if PolicyName.BALANCED in used:
        chosen = load.balanced
        if chosen.aggregation is not None:
            yield _aggregate("load.balanced", chosen.aggregation, chosen.window, hollow=bool(chosen.window))
        if chosen.deviations:
            yield Need("load.balanced", _DEVIATION)
    for policy in (PolicyName.LOAD_VARIATION_RISK_BALANCING, PolicyName.LOW_RISK_OVERCOMMITMENT):
        if policy in used:
            yield Need(policy, _DEVIATION, hollow=True)
    if PolicyName.LOAD_AWARE in used and load.load_aware.aggregation is not None:
        yield _aggregate("load.loadAware", load.load_aware.aggregation, load.load_aware.window, hollow=True)
    bounds = load.filter.thresholds
    if load.filter.enabled and bounds.aggregated is not None and bounds.aggregation is not None:
        yield _aggregate("load.filter", bounds.aggregation, bounds.window, hollow=True)


def _check_pods(usage: UsageSettings, load: Load) -> None:
    whose = _by_prod_usage(load)
    if not whose:
        return
    if usage.metrics_api and not usage.prometheus.url:
        raise Problem(
            whose,
            "it judges by what prod pods use, which Colocate does not read from the metrics API; add "
            "usage.prometheus.url and usage.pods: true, or leave it out",
        )
    if not asks_for_pods(usage, load):
        raise Problem(
            whose,
            "it judges by what prod pods use, which Colocate does not ask for yet; write usage.pods: true",
        )


def _by_prod_usage(load: Load) -> str:
    """What judges prod pods by what prod pods use; empty where nothing does."""
    bounds = load.filter.thresholds.prod
    if load.filter.enabled and bounds is not None and bounds.positive:
        return "load.filter.thresholds.prod"
    aware = any(part.policy is PolicyName.LOAD_AWARE for one in _mixes(load) for part in one)
    return "load.loadAware.byProdUsage" if aware and load.load_aware.by_prod_usage else ""


def _aggregate(whose: str, aggregation: str, window: float, *, hollow: bool) -> Need:
    span = Seconds(window or _PERCENTILE_SPAN)
    return Need(whose, Window(Statistic(aggregation), span), exact=bool(window), hollow=hollow)


def _mixes(load: Load) -> list[Mix]:
    return [load.policy.mix, *(mix(text) for text in load.policies.values())]


def _said(need: Need) -> str:
    window = need.window
    over = f" over {duration(window.span)}" if need.exact else ""
    return f"{'a' if window.statistic is Statistic.DEVIATION else 'the'} {window.statistic}{over}"
