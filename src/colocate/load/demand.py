"""What a pod brings to a node: what it requests, what it may use at most, what it will probably use.

Requests and limits are summed as Kubernetes sums them: a sidecar runs next to all that start after it, any
other init container runs alone, and the pod's overhead comes on top. What a pod will use is estimated.

`Calibration` corrects the estimate by what the owner's earlier pods really used: pods of one owner behave alike. It
keeps what it learned when a pod ends, and learns nothing from a pod that has just begun. Corrections are bounded both
ways, so that one odd pod cannot make the next look like nothing, or like a whole node. Pods of unknown owners are
corrected by the mean of all pods.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from colocate.load.settings import EstimateSettings, PackingSettings
from colocate.model.go import clamp, go_round
from colocate.model.load import NOTHING, Amount, ContainerAsk, PerResource, PodFacts, PodShape, PriorityClass
from colocate.model.pod import peak


class Ratio(msgspec.Struct, frozen=True):
    """Real use as a multiple of the estimate."""

    cpu: float = 1.0
    memory: float = 1.0


AS_ESTIMATED = Ratio()
NO_SWING = Ratio(0.0, 0.0)

LEAST, MOST = 0.02, 5.0
_OWNERS = 10_000
_MEAN_TIME, _SWING_TIME = 7200.0, 14_400.0
"""Seconds after which a measurement has lost two thirds of its weight in the mean, and in the swing around it."""
_FIRST_SWING = 0.5
"""The swing of a new owner's pods, as a share of their use."""
_LONGEST_STEP = 600.0
"""Seconds that one measurement counts for at most: an owner may have had no pods for days."""
_TRUST = 4.0
"""Minutes of measurement at which an owner's own ratio weighs as much as the mean of all pods."""
_KNOWN_PODS, _KNOWN_OWNERS = 20, 3
"""Pods and owners to measure before their mean is used for unknown owners."""
_GRID = math.log(1.05)


class Demand(msgspec.Struct, frozen=True, gc=False):
    """A pod as the policies see it. Pods with equal demands get equal scores, which are worked out once."""

    request: Amount
    limit: Amount
    """Never less than the request."""
    estimate: Amount
    """What it will probably use."""
    packing_cpu: int
    """The CPU that target-load-packing predicts for it, in millicores."""
    prod: bool = False
    daemon: bool = False
    stated: Amount = NOTHING
    """The estimate by what the pod states alone, without what is known of its owner's pods."""
    swing: Amount = NOTHING
    """The standard deviation of its use."""

    @property
    def best_effort(self) -> bool:
        return self.request == NOTHING and self.limit == NOTHING


def demand(
    pod: PodFacts,
    estimate: EstimateSettings,
    packing: PackingSettings,
    ratio: Ratio = AS_ESTIMATED,
    swing: Ratio = NO_SWING,
) -> Demand:
    request = requested(pod.shape)
    limit = _stated_limit(_estimated_by(pod, estimate))
    stated = estimated(pod, estimate)
    return Demand(
        request=request,
        limit=limited(pod.shape).at_least(request),
        estimate=_corrected(stated, ratio, limit),
        packing_cpu=predicted_cpu(pod.shape, packing),
        prod=pod.prod,
        daemon=pod.daemon,
        stated=stated,
        swing=Amount(int(stated.cpu * swing.cpu), int(stated.memory * swing.memory)),
    )


def requested(shape: PodShape) -> Amount:
    return _summed(shape, lambda container: container.request) + shape.overhead


def limited(shape: PodShape) -> Amount:
    """The sum of the limits that are stated; a container without one adds nothing."""
    return _summed(shape, lambda container: container.limit) + shape.overhead


def estimated(pod: PodFacts, settings: EstimateSettings) -> Amount:
    """A percentage of the limit, or of the request where that is greater; a default where neither is stated."""
    shape, default = _estimated_by(pod, settings), Amount(settings.default_cpu, settings.default_memory)
    if settings.defaults_by_class and pod.priority_class is PriorityClass.FREE:
        return NOTHING
    if settings.defaults_by_class and pod.priority_class is PriorityClass.MID:
        default = NOTHING
    own = shape.scaling if settings.obey_annotation else PerResource()
    percent = own.over(Amount(settings.cpu_percent, settings.memory_percent))
    limit, request = _stated_limit(shape), requested(shape)
    return Amount(
        _share(limit.cpu, request.cpu, percent.cpu, default.cpu),
        _share(limit.memory, request.memory, percent.memory, default.memory),
    )


def _estimated_by(pod: PodFacts, settings: EstimateSettings) -> PodShape:
    return (pod.by_class if settings.defaults_by_class else None) or pod.shape


def predicted_cpu(shape: PodShape, settings: PackingSettings) -> int:
    """Each container's limit, else its request with a margin, else a default."""
    total = shape.overhead.cpu
    for container in shape.containers:
        if container.limit.cpu is not None:
            total += container.limit.cpu
        elif container.request.cpu is not None:
            total += go_round(container.request.cpu * settings.multiplier)
        else:
            total += settings.default_cpu
    return total


def _share(limit: int, request: int, percent: int, default: int) -> int:
    greater = max(limit, request)
    if not greater:
        return default
    share = go_round(greater * percent / 100)
    return min(share, limit) if limit else share


def _corrected(amount: Amount, ratio: Ratio, limit: Amount) -> Amount:
    """At most the stated limit, which the kernel enforces."""
    return Amount(
        math.ceil(min(amount.cpu * ratio.cpu, limit.cpu or math.inf)),
        math.ceil(min(amount.memory * ratio.memory, limit.memory or math.inf)),
    )


def _stated_limit(shape: PodShape) -> Amount:
    """The limit with its overhead; 0 where no container states one, whatever the overhead."""
    limit = _summed(shape, lambda container: container.limit)
    return Amount(
        limit.cpu + shape.overhead.cpu if limit.cpu else 0,
        limit.memory + shape.overhead.memory if limit.memory else 0,
    )


def _summed(shape: PodShape, of: Callable[[ContainerAsk], PerResource]) -> Amount:
    running = [of(container).stated for container in shape.containers]
    init = [(of(container).stated, container.sidecar) for container in shape.init]
    return Amount(
        peak((each.cpu for each in running), ((each.cpu, sidecar) for each, sidecar in init)),
        peak((each.memory for each in running), ((each.memory, sidecar) for each, sidecar in init)),
    )


def taken(free: float, estimated: float) -> float:
    """How much of what is measured as free an estimate takes, all in percent.

    An estimate may be many times what a pod will use: a limit says little. So estimates count in full for the first
    half of what is free, then less and less, and never for more than three quarters: a node that is measured nearly
    full scores below one that is measured idle, however much is estimated for the idle one. Rises with
    `estimated`; what it leaves rises with `free`, by a quarter of it at least.
    """
    if free <= 0:
        return 0.0
    if estimated <= free / 2:
        return estimated
    return free * 0.75 - free * free / (8 * estimated)


class Learned(msgspec.Struct, frozen=True):
    """One owner, as it is kept in a snapshot."""

    owner: str
    ratio: Ratio
    """In the last round, over all measured pods."""
    mean: Ratio = AS_ESTIMATED
    """The mean over the last hours."""
    variance: Ratio = NO_SWING
    """The variance around the mean."""
    evidence: float = 1.0
    """Minutes of measurement, summed over all pods."""
    time: float = 0.0
    since: float = 0.0


class OwnerUse(msgspec.Struct, gc=False):
    """The sums over an owner's pods in one round of measurements."""

    pods: int = 0
    estimate_cpu: int = 0
    estimate_memory: int = 0
    cpu: int = 0
    memory: int = 0

    @property
    def ratio(self) -> Ratio:
        return Ratio(_used_share(self.cpu, self.estimate_cpu), _used_share(self.memory, self.estimate_memory))


class Calibration:
    """What is learned of each owner; the owner that was measured longest ago is forgotten first."""

    def __init__(
        self, learned: Iterable[Learned] = (), overall: Ratio = AS_ESTIMATED, *, owners: int = _OWNERS
    ) -> None:
        self._known: OrderedDict[str, Learned] = OrderedDict((each.owner, each) for each in learned)
        self._swings = {owner: _swing(each) for owner, each in self._known.items()}
        """By owner; kept because it is needed for every pod of every node."""
        self._owners = owners
        self.overall = overall
        """The ratio for pods of unknown owners."""

    def ratio(self, owner: str) -> Ratio:
        known = self._known.get(owner)
        if known is None:
            return self.overall
        trust = known.evidence / (known.evidence + _TRUST)
        return Ratio(
            _coarse(self.overall.cpu + trust * (known.ratio.cpu - self.overall.cpu)),
            _coarse(self.overall.memory + trust * (known.ratio.memory - self.overall.memory)),
        )

    def swing(self, owner: str) -> Ratio:
        """The standard deviation as a share of a pod's own estimate; 0 for an unknown owner."""
        return self._swings.get(owner, NO_SWING)

    def learn(self, owner: str, use: OwnerUse, now: float) -> None:
        """Take in one round of an owner's pods."""
        if not owner or not use.pods:
            return
        old = self._known.get(owner)
        if old is not None and now <= old.time:
            # These measurements were taken in before.
            self._known.move_to_end(owner)
            return
        seen = use.ratio
        if old is None:
            first = Ratio((_FIRST_SWING * seen.cpu) ** 2, (_FIRST_SWING * seen.memory) ** 2)
            made = Learned(owner, seen, seen, first, float(use.pods), now, now)
        else:
            step = clamp(now - old.time, 0.0, _LONGEST_STEP)
            share = max(_weight(step, _MEAN_TIME), min(1.0, step / max(now - old.since, step, 1.0)))
            off = Ratio(seen.cpu - old.mean.cpu, seen.memory - old.mean.memory)
            swung = _weight(step, _SWING_TIME)
            made = Learned(
                owner,
                seen,
                Ratio(old.mean.cpu + share * off.cpu, old.mean.memory + share * off.memory),
                Ratio(
                    old.variance.cpu + swung * (off.cpu**2 - old.variance.cpu),
                    old.variance.memory + swung * (off.memory**2 - old.variance.memory),
                ),
                old.evidence + use.pods * step / 60,
                now,
                old.since,
            )
        self._known[owner] = made
        self._known.move_to_end(owner)
        self._swings[owner] = _swing(made)
        if len(self._known) > self._owners:
            forgotten, _ = self._known.popitem(last=False)
            del self._swings[forgotten]

    def learn_overall(self, uses: Iterable[OwnerUse]) -> None:
        """Set the ratio for unknown owners by all pods together, if there are enough of them."""
        total, owners = OwnerUse(), 0
        for use in uses:
            owners += 1
            total.pods += use.pods
            total.estimate_cpu += use.estimate_cpu
            total.estimate_memory += use.estimate_memory
            total.cpu += use.cpu
            total.memory += use.memory
        if total.pods >= _KNOWN_PODS and owners >= _KNOWN_OWNERS:
            self.overall = Ratio(_coarse(total.ratio.cpu), _coarse(total.ratio.memory))

    @property
    def learned(self) -> tuple[Learned, ...]:
        return tuple(self._known.values())


def _swing(known: Learned) -> Ratio:
    return Ratio(_coarse(math.sqrt(known.variance.cpu)), _coarse(math.sqrt(known.variance.memory)))


def _used_share(actual: int, estimate: int) -> float:
    return clamp(actual / estimate, LEAST, MOST) if estimate > 0 else 1.0


def _weight(step: float, of: float) -> float:
    return 1 - math.exp(-step / of)


def _coarse(value: float) -> float:
    """Round to steps of a twentieth, so that demands that hardly differ are equal and share their scores."""
    return math.exp(round(math.log(value) / _GRID) * _GRID) if value > 0 else 0.0
