"""Pods and nodes of the Kubernetes API, as much of them as load is about, and the facts that they state.

Typed, so that reading thousands of whole nodes is cheap: whatever is not named here is skipped over. What an
annotation says wrongly is taken as not said: a node's annotation must not stop every pod of the cluster.
"""

import math
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache

import msgspec

from colocate.load.demand import limited, requested
from colocate.model import go_duration, quantity
from colocate.model.load import (
    Aggregation,
    Amount,
    BoundPod,
    ContainerAsk,
    NodeFacts,
    PerResource,
    PodFacts,
    PodShape,
    PriorityClass,
    UsageThresholds,
)

Quantities = dict[str, str | int | float]

SCALING = "scheduling.koordinator.sh/load-estimated-scaling-factors"
THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"
RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"

_AGGREGATIONS: dict[str, Aggregation] = {str(kind): kind for kind in Aggregation}
_BY_NAME: dict[str, PriorityClass] = {
    str(kind): kind for kind in PriorityClass if kind is not PriorityClass.NONE
}
_BY_PRIORITY = {9: PriorityClass.PROD, 7: PriorityClass.MID, 5: PriorityClass.BATCH, 3: PriorityClass.FREE}
"""By the thousands of a pod's priority."""
_BY_QUALITY = {
    "BE": PriorityClass.BATCH,
    **dict.fromkeys(("LS", "LSR", "LSE", "SYSTEM"), PriorityClass.PROD),
}
"""By Koordinator's quality of service."""
_MOST = 2**63 - 1
"""Kubernetes counts no further: a quantity beyond it is taken for it."""
_PREFIXES = {PriorityClass.BATCH: "kubernetes.io/batch-", PriorityClass.MID: "kubernetes.io/mid-"}


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Owner(_Read, frozen=True):
    kind: str
    name: str
    controller: bool = False


class Labels(_Read, frozen=True):
    """Those that are read: a cluster's pods have many others, which would fill the memory."""

    template_hash: str = msgspec.field(name="pod-template-hash", default="")
    priority_class: str | None = msgspec.field(name="koordinator.sh/priority-class", default=None)
    qos: str = msgspec.field(name="koordinator.sh/qosClass", default="")


class Annotations(_Read, frozen=True):
    """Likewise."""

    scaling: str = msgspec.field(name=SCALING, default="")
    thresholds: str = msgspec.field(name=THRESHOLDS, default="")
    raw_allocatable: str = msgspec.field(name=RAW_ALLOCATABLE, default="")


class Metadata(_Read, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Labels = Labels()
    annotations: Annotations = Annotations()
    owner_references: tuple[Owner, ...] = ()


class Resources(_Read, frozen=True):
    requests: Quantities = {}
    limits: Quantities = {}


class Container(_Read, frozen=True):
    resources: Resources = Resources()
    restart_policy: str = ""


class PodSpec(_Read, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources = Resources()
    """Of the pod as a whole."""
    overhead: Quantities = {}
    node_name: str = ""
    priority: int | None = None
    scheduler_name: str = ""


class Condition(_Read, frozen=True):
    type: str
    status: str = ""
    last_transition_time: str | None = None


class PodStatus(_Read, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class ApiPod(_Read, frozen=True):
    """A pod, as an extender is sent it and a watch brings it."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


class NodeStatus(_Read, frozen=True):
    capacity: Quantities = {}
    allocatable: Quantities = {}


class ApiNode(_Read, frozen=True):
    metadata: Metadata = Metadata()
    status: NodeStatus = NodeStatus()


def pod_facts(pod: ApiPod) -> PodFacts:
    metadata, spec = pod.metadata, pod.spec
    kind = _priority_class(pod)
    prefix = _prefix(kind, spec)
    shape = PodShape(
        tuple(_asked(container.resources, prefix) for container in spec.containers),
        tuple(
            _asked(container.resources, prefix, sidecar=container.restart_policy == "Always")
            for container in spec.init_containers
        ),
        _stated(spec.overhead, "").stated,
        _percents(metadata.annotations.scaling),
    )
    if not prefix and (spec.resources.requests or spec.resources.limits):
        shape = _with(shape, _asked(spec.resources, prefix))
    return PodFacts(
        metadata.uid,
        f"{metadata.namespace}/{metadata.name}",
        shape,
        _owner(metadata),
        kind,
        any(owner.kind == "DaemonSet" for owner in metadata.owner_references),
    )


def bound_pod(pod: ApiPod, seen_at: float) -> BoundPod | None:
    """The pod on its node, since its binding as the API tells it; None where it is on none, or has ended."""
    if not pod.spec.node_name or pod.ended:
        return None
    since = seen_at
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True" and condition.last_transition_time:
            since = min(seen_at, _time(condition.last_transition_time) or seen_at)
    return BoundPod(pod_facts(pod), pod.spec.node_name, since)


def node_facts(node: ApiNode) -> NodeFacts:
    annotations = node.metadata.annotations
    capacity = _stated(node.status.capacity, "").stated
    return NodeFacts(
        node.metadata.name,
        capacity,
        _stated(node.status.allocatable, "").over(capacity),
        _raw_allocatable(annotations.raw_allocatable),
        _thresholds(annotations.thresholds),
    )


def _asked(resources: Resources, prefix: str, *, sidecar: bool = False) -> ContainerAsk:
    return ContainerAsk(_stated(resources.requests, prefix), _stated(resources.limits, prefix), sidecar)


def _with(shape: PodShape, whole: ContainerAsk) -> PodShape:
    """What a pod states as a whole goes before the sums of its containers, each number by itself; it is then judged
    like a pod of one container."""
    if whole.request.empty and whole.limit.empty:
        return shape
    bare = PodShape(shape.containers, shape.init)
    one = ContainerAsk(_over(whole.request, requested(bare)), _over(whole.limit, limited(bare)))
    return PodShape((one,), (), shape.overhead, shape.scaling)


def _over(stated: PerResource, summed: Amount) -> PerResource:
    return PerResource(
        stated.cpu if stated.cpu is not None else summed.cpu or None,
        stated.memory if stated.memory is not None else summed.memory or None,
    )


def _stated(quantities: Quantities, prefix: str) -> PerResource:
    cpu, memory = quantities.get(f"{prefix}cpu"), quantities.get(f"{prefix}memory")
    # Batch and mid CPU are counted in millicores; plain CPU is in cores.
    scale = 1 if prefix else 1000
    return PerResource(
        None if cpu is None else _value(cpu, scale), None if memory is None else _value(memory, 1)
    )


@lru_cache(maxsize=10_000)
def _value(text: str | int | float, scale: int) -> int | None:
    # Few different texts, in pods by the hundred thousand.
    try:
        return min(_MOST, max(0, math.ceil(quantity.parse(text) * scale)))
    except ValueError:
        return None


def _owner(metadata: Metadata) -> str:
    """A deployment's name stays while its replica sets come and go."""
    for owner in metadata.owner_references:
        if owner.controller:
            template = metadata.labels.template_hash
            if owner.kind == "ReplicaSet" and template and owner.name.endswith(f"-{template}"):
                return f"{metadata.namespace}/Deployment/{owner.name.removesuffix(f'-{template}')}"
            return f"{metadata.namespace}/{owner.kind}/{owner.name}"
    return ""


def _priority_class(pod: ApiPod) -> PriorityClass:
    """As it is named, else by the priority; where neither says one, by the quality of service."""
    labels, priority = pod.metadata.labels, pod.spec.priority
    if labels.priority_class is not None:
        kind = _BY_NAME.get(labels.priority_class)
    else:
        kind = None if priority is None else _BY_PRIORITY.get(priority // 1000)
    kind = kind or _BY_QUALITY.get(labels.qos)
    if kind is None:
        return PriorityClass.BATCH if _best_effort(pod.spec) else PriorityClass.PROD
    return kind


def _best_effort(spec: PodSpec) -> bool:
    """As Kubernetes has it: no CPU and no memory is asked for, whatever else is."""
    return not any(_stated(quantities, "").positive for quantities in _all_stated(spec))


def _prefix(kind: PriorityClass, spec: PodSpec) -> str:
    """Of the resources that the pod asks for; a batch pod by its class alone asks for plain CPU and memory."""
    prefix = _PREFIXES.get(kind, "")
    if not prefix:
        return ""
    names = {f"{prefix}cpu", f"{prefix}memory"}
    return "" if all(names.isdisjoint(quantities) for quantities in _all_stated(spec)) else prefix


def _all_stated(spec: PodSpec) -> Iterator[Quantities]:
    for container in (*spec.containers, *spec.init_containers):
        yield container.resources.requests
        yield container.resources.limits
    yield spec.resources.requests
    yield spec.resources.limits


class _Numbers(_Read, frozen=True):
    """For CPU and memory; those for other resources are skipped over."""

    cpu: int | None = None
    memory: int | None = None


class _AggregatedUsage(_Read, frozen=True):
    usage_thresholds: _Numbers | None = None
    usage_aggregation_type: str | None = None
    usage_aggregated_duration: str | None = None


class _CustomThresholds(_Read, frozen=True):
    usage_thresholds: _Numbers | None = None
    prod_usage_thresholds: _Numbers | None = None
    aggregated_usage: _AggregatedUsage | None = None


def _per_resource(stated: _Numbers | None) -> PerResource | None:
    """ValueError for a number that Kubernetes would not read."""
    if stated is None:
        return None
    if any(abs(number or 0) > _MOST for number in (stated.cpu, stated.memory)):
        raise ValueError("more than Kubernetes counts")
    return PerResource(stated.cpu, stated.memory)


def _thresholds(annotation: str) -> UsageThresholds | None:
    if not annotation:
        return None
    try:
        stated = msgspec.json.decode(annotation, type=_CustomThresholds)
        aggregated = stated.aggregated_usage or _AggregatedUsage()
        return UsageThresholds(
            _per_resource(stated.usage_thresholds),
            _per_resource(stated.prod_usage_thresholds),
            _per_resource(aggregated.usage_thresholds),
            _AGGREGATIONS.get(aggregated.usage_aggregation_type or ""),
            _span(aggregated.usage_aggregated_duration or ""),
        )
    except ValueError:
        return None


def _percents(annotation: str) -> PerResource:
    try:
        stated = msgspec.json.decode(annotation, type=_Numbers) if annotation else None
        return _per_resource(stated) or PerResource()
    except ValueError:
        return PerResource()


def _raw_allocatable(annotation: str) -> PerResource:
    try:
        return _stated(msgspec.json.decode(annotation, type=Quantities), "") if annotation else PerResource()
    except msgspec.DecodeError:
        return PerResource()


def _span(text: str) -> float:
    """Seconds; 0 where that is no span of time."""
    try:
        return max(0.0, go_duration.seconds(text))
    except ValueError:
        return 0.0


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
