"""Which candidates a pod may go to at all: not those that are, or with it would be, loaded beyond a threshold.

A node without a fresh sample is let through, refused, or judged by its last one, as the settings declare, and
never by an assumed load. When every candidate is too hot, refusing all would leave the pod pending: by default all
are let through then, and the scores choose the coolest.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from colocate.load.demand import Demand
from colocate.load.settings import AllHot, LoadSettings, MissingFilter
from colocate.load.table import LoadTable
from colocate.load.terms import Freshness, NodeTerms, thresholds
from colocate.model.go import go_round
from colocate.model.load import NodeFacts, PerResource


class RefusalCause(StrEnum):
    USAGE = "usage-over-threshold"
    AGGREGATED = "aggregated-usage-over-threshold"
    EXPIRED = "node-metric-expired"
    NEVER = "node-metric-missing"


class Refusal(msgspec.Struct, frozen=True):
    """Why a node is no candidate."""

    cause: RefusalCause
    resource: str = ""
    percent: int = 0
    threshold: int = 0
    unseen: int = 0
    """The part of `percent` for pods that no sample shows yet."""

    def __str__(self) -> str:
        match self.cause:
            case RefusalCause.EXPIRED:
                return "its last load sample is too old"
            case RefusalCause.NEVER:
                return "it has no load sample"
            case _:
                over = "over the window " if self.cause is RefusalCause.AGGREGATED else ""
                guessed = f" ({self.unseen} % for pods that samples do not show yet)" if self.unseen else ""
                return (
                    f"its {self.resource} would be {over}at {self.percent} %{guessed}, "
                    f"more than the threshold of {self.threshold} %"
                )


class Sifted(msgspec.Struct, frozen=True):
    """The candidates that are left, and why the others are not."""

    passed: list[str]
    refused: dict[str, Refusal]
    hot: dict[str, Refusal] = {}
    """Those in `passed` that are too hot, and were let through because no other candidate was left."""

    @property
    def all_hot(self) -> bool:
        """Whether no candidate was cool enough, and some were too hot: these are let through, or refused."""
        return bool(self.hot) or (not self.passed and any(why.resource for why in self.refused.values()))


def sift(table: LoadTable, pod: Demand, names: Sequence[str]) -> Sifted:
    """Judge every candidate for the pod."""
    if not table.settings.filter.enabled:
        return Sifted(list(names), {})
    passed: list[str] = []
    refused: dict[str, Refusal] = {}
    for name in names:
        facts = table.nodes.get(name)
        refusal = None if facts is None else refuse(facts, table.terms(name), pod, table.settings)
        if refusal is None:
            passed.append(name)
        else:
            refused[name] = refusal
    if passed or table.settings.filter.all_hot is AllHot.REFUSE:
        return Sifted(passed, refused)
    hot = {name: why for name, why in refused.items() if why.resource}
    return Sifted(list(hot), {name: why for name, why in refused.items() if not why.resource}, hot)


def refuse(facts: NodeFacts, node: NodeTerms, pod: Demand, settings: LoadSettings) -> Refusal | None:
    """Why this node is no candidate for the pod; None where it is one. Pods of a DaemonSet are never refused."""
    if pod.daemon:
        return None
    bounds = thresholds(facts, settings)
    used, unseen, bound, cause = node.aware.filter, node.aware.unseen, bounds.usage, RefusalCause.USAGE
    if pod.prod and _bounds_anything(bounds.prod):
        used, unseen, bound = node.aware.prod, node.aware.unseen_prod, bounds.prod
    elif bounds.over_window:
        bound, cause = bounds.over_window, RefusalCause.AGGREGATED
    if bound is None or not _bounds_anything(bound):
        return None
    missing = settings.staleness.filter
    if node.freshness is Freshness.EXPIRED and missing in (MissingFilter.CLOSE_EXPIRED, MissingFilter.CLOSED):
        return Refusal(RefusalCause.EXPIRED)
    if node.freshness is Freshness.NEVER and missing is MissingFilter.CLOSED:
        return Refusal(RefusalCause.NEVER)
    for resource, terms, total, guessed, threshold in (
        ("cpu", node.cpu, used.cpu + pod.estimate.cpu, unseen.cpu, bound.cpu),
        ("memory", node.memory, used.memory + pod.estimate.memory, unseen.memory, bound.memory),
    ):
        counts = terms.measured or (terms.sampled and missing is MissingFilter.LAST_SAMPLE)
        if threshold and counts and terms.room:
            percent = go_round(total / terms.room * 100)
            if percent > threshold:
                return Refusal(cause, resource, percent, threshold, go_round(guessed / terms.room * 100))
    return None


def _bounds_anything(bound: PerResource | None) -> bool:
    return bound is not None and bool(bound.cpu or bound.memory)
