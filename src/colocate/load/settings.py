"""How nodes are judged: every setting of load, with its default, its range and its purpose.

`JudgingSettings` is what a configuration file and a snapshot have in common; the file's section `load` adds its
policies as text, `LoadSettings` as mixes.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

from colocate.errors import UserError
from colocate.model.load import WEEK, Aggregation, NodeLoad, PerResource, UsageThresholds
from colocate.model.ranges import Range

DEFAULT_SCHEDULER = "default-scheduler"
"""What the API server enters for pods that name no scheduler."""

Percent = Annotated[int, Range(0, 100)]
UpToWeek = Annotated[float, Range(0, WEEK)]
Millicores = Annotated[int, Range(0, 1_000_000)]
Fraction = Annotated[float, Range(0, 1)]
Weight = Annotated[int, Range(0, 1000)]
UpToTen = Annotated[float, Range(0, 10)]
UpToHundred = Annotated[float, Range(0, 100)]
HotPercent = Annotated[float, Range(1, 100)]
Floor = Annotated[float, Range(0.01, 1)]
"""Never 0: real use is divided by it."""


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    pass


class PolicyName(StrEnum):
    BALANCED = "balanced"
    MEM_REAL_USAGE = "mem-real-usage"
    CPU_REAL_USAGE = "cpu-real-usage"
    TARGET_LOAD_PACKING = "target-load-packing"
    LOAD_VARIATION_RISK_BALANCING = "load-variation-risk-balancing"
    LOW_RISK_OVERCOMMITMENT = "low-risk-overcommitment"
    LOAD_AWARE = "load-aware"
    OVERSELL = "oversell"


class Weighted(_Settings, frozen=True):
    """A policy's part in a mix."""

    policy: PolicyName
    weight: int = 1

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise ValueError(f"the weight of {self.policy} is {self.weight}; it must be at least 1")


Mix = tuple[Weighted, ...]


def mix(text: str) -> Mix:
    """`balanced`, or `balanced=3,oversell=1`."""
    parts = []
    for word in text.split(","):
        name, _, weight = word.strip().partition("=")
        try:
            parts.append(Weighted(PolicyName(name), int(weight or 1)))
        except ValueError:
            raise UserError(
                f"{word.strip()!r} in the policies {text!r} is not a policy with a weight; write for example "
                f"'balanced' or 'balanced=3,oversell=1' with {', '.join(PolicyName)}"
            ) from None
    names = [part.policy for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(f"the policies {text!r} have {twice!r} twice; give each once, with its weight")
    return tuple(parts)


class MissingScore(StrEnum):
    """How a node without a fresh sample is scored."""

    NEUTRAL = "neutral"
    """As if its load were the median of the nodes with samples."""
    LOWEST = "lowest"
    """As low as the policy's original scores it, mostly 0."""


class MissingFilter(StrEnum):
    """Whether a node without a fresh sample may take pods at all."""

    OPEN = "open"
    CLOSE_EXPIRED = "close-expired"
    """Not once its samples have expired; a node that never had any is let through, as Koordinator does."""
    CLOSED = "closed"
    LAST_SAMPLE = "last-sample"
    """Judge it by its expired samples, as Koordinator does where it is told not to filter by age."""


class Staleness(_Settings, frozen=True):
    """When a sample is too old, and how its node is treated then."""

    after: UpToWeek = 180.0
    """Seconds; 0 for never."""
    score: MissingScore = MissingScore.NEUTRAL
    filter: MissingFilter = MissingFilter.OPEN

    def expired(self, age: float) -> bool:
        return self.after > 0 and age >= self.after

    def sampled_at(self, load: NodeLoad, now: float) -> float | None:
        """When the older of the fresh samples was taken: later events may be missing from them. Where all samples
        have expired, the time of the last; None where there never was one."""
        times = [usage.time for usage in (load.cpu, load.memory) if usage is not None]
        fresh = [time for time in times if not self.expired(now - time)]
        return min(fresh) if fresh else max(times, default=None)


class LedgerSettings(_Settings, frozen=True):
    """How pods are counted that the samples do not show yet."""

    window: float = 60.0
    """Seconds from a binding to the first sample that shows all of the pod: the range of the query's average, or
    the time from one report to the next."""
    expiry: UpToWeek = 900.0
    """Seconds after which a pod is no longer counted, whatever the samples show; 0 for never."""
    assumed_expiry: UpToWeek = 10.0
    """Seconds for which a pod that was scored but not yet seen bound counts on its best nodes."""
    assumed_nodes: Annotated[int, Range(0, 16)] = 16
    """A pod with more best nodes than this counts on none of them: it spreads by itself."""
    vouched_pods: Annotated[int, Range(0, 10_000)] = 50
    """Pods that one caller may have counted at a time before the API server shows them."""
    least_percent: UpToHundred = 1.0
    """Percent of the node that each pod counts for at least: many small pods add up, and estimates are guesses."""
    least_percent_bound: UpToHundred = 25.0
    """Percent of the node at which counting by `least_percent` ends."""
    wait_for_pod_usage: bool = False
    """For sources that report every pod: count a pod until its own usage is reported."""


class EstimateSettings(_Settings, frozen=True):
    """What a pod will use before it is measured: a percentage of its limit, or of its request if that is greater."""

    cpu_percent: Annotated[int, Range(0, 1000)] = 85
    memory_percent: Annotated[int, Range(0, 1000)] = 70
    default_cpu: Millicores = 250
    default_memory: Annotated[int, Range(0, 1 << 50)] = 200 << 20
    obey_annotation: bool = False
    """Whether percentages in a pod's annotation are used."""
    defaults_by_class: bool = False
    """Whether to estimate by priority class, as Koordinator does: batch and mid pods by their batch and mid resources
    alone, mid pods without defaults, and free pods as using nothing."""
    calibrate: bool = True
    """Whether the measured use of an owner's earlier pods corrects the estimate."""


class BalancedSettings(_Settings, frozen=True):
    aggregation: Aggregation | None = None
    """A percentile over a window; it counts where it is higher than the use now."""
    window: UpToWeek = 0.0
    """Seconds; 0 for the longest window that is measured."""
    deviations: UpToTen = 0.0
    """Standard deviations of a node's samples that are added to its average."""
    pod_deviations: UpToTen = 1.0
    """Standard deviations of its pods' use that are added, as learned for their owners."""
    dominant_percent: Percent = 50
    """Weight of the more loaded resource; the rest is the mean of both."""
    overshoot: UpToTen = 0.3
    """How fast a score falls with the percentage by which a node is expected to be beyond hot; 0: the score is
    100 less the pressure."""
    hot_cpu: HotPercent = 80.0
    """The percentage from which on a node's CPU is hot."""
    hot_memory: HotPercent = 85.0
    """The percentage from which on a node's memory is hot."""


class PackingSettings(_Settings, frozen=True):
    target_percent: Annotated[int, Range(1, 99)] = 40
    multiplier: UpToHundred = 1.5
    """Multiplies the request of a container that states no limit."""
    default_cpu: Millicores = 1000


class RiskBalancingSettings(_Settings, frozen=True):
    margin: UpToHundred = 1.0
    sensitivity: UpToHundred = 1.0


class OvercommitmentSettings(_Settings, frozen=True):
    smoothing_window: Annotated[int, Range(1, 1_000_000)] = 5
    """How many samples are averaged into each measured value: averaging hides deviation."""
    cpu_limit_weight: Fraction = 0.5
    memory_limit_weight: Fraction = 0.5


class LoadAwareSettings(_Settings, frozen=True):
    cpu_weight: Weight = 1
    memory_weight: Weight = 1
    dominant_weight: Weight = 0
    by_prod_usage: bool = False
    """Whether prod pods are judged by the use of prod pods alone."""
    aggregation: Aggregation | None = None
    window: UpToWeek = 0.0
    estimates_alone: bool = False
    """Whether a node without that aggregation over its window, or the filter's, is judged by the estimates of its
    pods alone, even if it is measured, as Koordinator does."""


class AllHot(StrEnum):
    """What happens to a pod when every candidate is too hot for it."""

    SPREAD = "spread"
    """All of them are let through, and the scores choose the coolest."""
    REFUSE = "refuse"


class FilterSettings(_Settings, frozen=True):
    enabled: bool = False
    thresholds: Annotated[UsageThresholds, Range(0, 100)] = UsageThresholds(usage=PerResource(65, 95))
    all_hot: AllHot = AllHot.SPREAD


class OversellSettings(_Settings, frozen=True):
    """How far a node's requested share may shrink because its pods use less than they request."""

    cpu_target: Fraction = 0.6
    memory_target: Fraction = 0.8
    cpu_floor: Floor = 0.4
    memory_floor: Floor = 0.8
    most: Annotated[float, Range(1, 100)] = 2.0
    """The greatest ratio: no node counts as more times its size than this."""


class JudgingSettings(_Settings, frozen=True, kw_only=True):
    """How the policies, the filter and the ledger judge; docs/load-policies.md explains each section."""

    staleness: Staleness = Staleness()
    ledger: LedgerSettings = LedgerSettings()
    estimate: EstimateSettings = EstimateSettings()
    filter: FilterSettings = FilterSettings()
    balanced: BalancedSettings = BalancedSettings()
    packing: PackingSettings = PackingSettings()
    risk_balancing: RiskBalancingSettings = RiskBalancingSettings()
    overcommitment: OvercommitmentSettings = OvercommitmentSettings()
    load_aware: LoadAwareSettings = LoadAwareSettings()
    oversell: OversellSettings = OversellSettings()


class LoadSettings(JudgingSettings, frozen=True):
    """All that a decision needs to know, as snapshots and recordings keep it."""

    policy: Mix = (Weighted(PolicyName.BALANCED),)
    policies: Mapping[str, Mix] = {}
    """By the scheduler name of pods, where some are judged by other policies."""

    def __post_init__(self) -> None:
        if not all((self.policy, *self.policies.values())):
            raise ValueError("a mix of policies is empty; give at least one")

    def policy_of(self, scheduler_name: str) -> Mix:
        """The mix for pods of that scheduler; a pod that names none has the default scheduler."""
        return self.policies.get(scheduler_name or DEFAULT_SCHEDULER, self.policy)
