"""What a pod brings to a node: what it requests, what it may use at most, what it will probably use.

Requests and limits are summed as Kubernetes sums them: a sidecar runs next to all that start after it, any
other init container runs alone, and the pod's overhead comes on top. What a pod will use is estimated; what its
owner's pods really use (`calibration`) corrects the estimate.
"""

import math
from collections.abc import Callable

import msgspec

from colocate.load.calibration import AS_ESTIMATED, NO_SWING, Ratio
from colocate.load.settings import EstimateSettings, PackingSettings
from colocate.model.go import go_round
from colocate.model.load import NOTHING, Amount, ContainerAsk, PerResource, PodFacts, PodShape, PriorityClass
from colocate.model.pod import peak


class Demand(msgspec.Struct, frozen=True, gc=False):
    """A pod as the policies see it. Pods with equal demands get equal scores, which are worked out once."""

    request: Amount
    limit: Amount
    """Never less than the request."""
    estimate: Amount
    """What it will probably use."""
    packing_cpu: int
    """The same as target-load-packing predicts it."""
    prod: bool = False
    daemon: bool = False
    stated: Amount = NOTHING
    """The estimate by what the pod states alone, without what is known of its owner's pods."""
    swing: Amount = NOTHING
    """By how much its use will go up and down: a standard deviation."""

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
    """Never beyond a limit that is stated: the kernel would not let it."""
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
    """How much of what is measurably free is taken by what is only estimated, all in percent.

    An estimate may be many times what a pod will use: a limit says little. So estimates count in full for the first
    half of what is free, then less and less, and never for more than three quarters: a node that is measured nearly
    full stays behind one that is measured idle, however much is guessed of the idle one. Rises with
    `estimated`; what it leaves rises with `free`, by a quarter of it at least.
    """
    if free <= 0:
        return 0.0
    if estimated <= free / 2:
        return estimated
    return free * 0.75 - free * free / (8 * estimated)
