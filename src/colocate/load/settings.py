"""How nodes are judged: every setting of this room, with what it is by default and what it is for."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from colocate.errors import UserError
from colocate.model.load import Aggregation, NodeLoad, PerResource, UsageThresholds

DEFAULT_SCHEDULER = "default-scheduler"
"""What the API server enters for pods that name no scheduler."""


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
    """What a node without a fresh sample is worth."""

    NEUTRAL = "neutral"
    """It is judged as if it were as loaded as the median of the nodes with samples."""
    LOWEST = "lowest"
    """As little as the policy's original gives it, mostly 0."""


class MissingFilter(StrEnum):
    """Whether a node without a fresh sample may take pods at all."""

    OPEN = "open"
    CLOSE_EXPIRED = "close-expired"
    """Not once its samples have expired; a node that never had any is let through, as Koordinator does."""
    CLOSED = "closed"
    LAST_SAMPLE = "last-sample"
    """It is judged by the samples that have expired, as Koordinator does where it is told not to filter by age."""


class Staleness(_Settings, frozen=True):
    """When a sample is too old, and what becomes of the node then."""

    after: float = 180.0
    """Seconds; 0 for never."""
    score: MissingScore = MissingScore.NEUTRAL
    filter: MissingFilter = MissingFilter.OPEN

    def expired(self, age: float) -> bool:
        return self.after > 0 and age >= self.after

    def sampled_at(self, load: NodeLoad, now: float) -> float | None:
        """When the older of the samples that count was taken: what happened later may not be in them. Where all
        have expired, when the last was taken; None where there never was one."""
        times = [usage.time for usage in (load.cpu, load.memory) if usage is not None]
        fresh = [time for time in times if not self.expired(now - time)]
        return min(fresh) if fresh else max(times, default=None)


class LedgerSettings(_Settings, frozen=True):
    """How pods are counted that the samples do not show yet."""

    window: float = 60.0
    """Seconds by which a sample must be younger than a binding to show all of the pod: the range of the
    query's average, or the time from one report to the next."""
    expiry: float = 900.0
    """Seconds after which a pod is no longer counted, whatever the samples say; 0 for never."""
    assumed_expiry: float = 10.0
    """Seconds for which a pod that was judged, and is not yet seen bound, is counted where it will go."""
    assumed_nodes: int = 16
    """A pod that may go to more nodes than this is assumed on none: nothing can herd there."""
    vouched_pods: int = 50
    """Pods that the API server has not shown and one caller asks about, that are assumed at a time."""
    least_percent: float = 1.0
    """Of the node, per pod: many small pods at once are a herd too, and their estimates a guess."""
    least_percent_bound: float = 25.0
    """Where counting by number alone ends."""
    wait_for_pod_usage: bool = False
    """For sources that report every pod: a pod is counted until its own usage is reported."""


class EstimateSettings(_Settings, frozen=True):
    """What a pod will use, before it is seen: so much of its limit, or request where that is greater."""

    cpu_percent: int = 85
    memory_percent: int = 70
    default_cpu: int = 250
    default_memory: int = 200 << 20
    obey_annotation: bool = False
    """Whether a pod's own percents count."""
    defaults_by_class: bool = False
    """Whether pods are estimated by their class, as Koordinator does: those of batch and mid by what they ask in
    resources of that name alone, those of mid without defaults, and those of free as using nothing, whatever they
    ask."""
    calibrate: bool = True
    """Whether what an owner's earlier pods really used corrects the estimate."""


class BalancedSettings(_Settings, frozen=True):
    aggregation: Aggregation | None = None
    """A percentile over a window, by which a node is taken to be loaded where it is more than its use now."""
    window: float = 0.0
    """Seconds; 0 for the longest that there is."""
    deviations: float = 0.0
    """How many standard deviations of its own samples above its average a node is taken to be loaded."""
    pod_deviations: float = 1.0
    """How many standard deviations of its pods, as their owners' pods are known to go up and down."""
    dominant_percent: int = 50
    """How much the more loaded resource counts by itself; the rest is the mean of both."""
    overshoot: float = 0.3
    """How fast a score falls with the percentage by which a node is expected to be beyond hot; 0: the score is what
    is left of the pressure to 100."""
    hot_cpu: float = 80.0
    """The percentage from which on a node's CPU is hot."""
    hot_memory: float = 85.0


class PackingSettings(_Settings, frozen=True):
    target_percent: int = 40
    multiplier: float = 1.5
    """Of a request, where a container states no limit."""
    default_cpu: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.target_percent < 100:
            raise ValueError(f"the target is {self.target_percent} percent; it must lie between 1 and 99")


class RiskBalancingSettings(_Settings, frozen=True):
    margin: float = 1.0
    sensitivity: float = 1.0


class OvercommitmentSettings(_Settings, frozen=True):
    smoothing_window: int = 5
    """How many samples were averaged into each that is measured: averaging hides deviation."""
    cpu_limit_weight: float = 0.5
    memory_limit_weight: float = 0.5


class LoadAwareSettings(_Settings, frozen=True):
    cpu_weight: int = 1
    memory_weight: int = 1
    dominant_weight: int = 0
    by_prod_usage: bool = False
    """Whether pods of the class prod are judged by what prod pods use."""
    aggregation: Aggregation | None = None
    window: float = 0.0
    estimates_alone: bool = False
    """Whether a node without that aggregation over its window, or the filter's, is judged by what its pods are
    estimated at, whatever is measured of it, as Koordinator does."""


class AllHot(StrEnum):
    """What happens to a pod when every candidate is too hot for it."""

    SPREAD = "spread"
    """All of them are let through, and the scores choose the coolest."""
    REFUSE = "refuse"


class FilterSettings(_Settings, frozen=True):
    enabled: bool = False
    thresholds: UsageThresholds = UsageThresholds(usage=PerResource(65, 95))
    all_hot: AllHot = AllHot.SPREAD


class OversellSettings(_Settings, frozen=True):
    """How far a node's requested share may shrink because its pods use less than they request."""

    cpu_target: float = 0.6
    memory_target: float = 0.8
    cpu_floor: float = 0.4
    memory_floor: float = 0.8
    most: float = 2.0
    """No node is ever taken for more than so many times its size."""


class LoadSettings(_Settings, frozen=True):
    policy: Mix = (Weighted(PolicyName.BALANCED),)
    policies: Mapping[str, Mix] = {}
    """By the scheduler name of pods, where some are judged otherwise."""
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

    def __post_init__(self) -> None:
        if not all((self.policy, *self.policies.values())):
            raise ValueError("a mix of policies is empty; give at least one")

    def policy_of(self, scheduler_name: str) -> Mix:
        """By what pods of that scheduler are judged; a pod that names none has the one that it gets by default."""
        return self.policies.get(scheduler_name or DEFAULT_SCHEDULER, self.policy)
