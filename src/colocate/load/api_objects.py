"""Pods and nodes of the Kubernetes API, as much of them as load is about, and the facts that they state.

Typed, so that reading thousands of whole nodes is cheap: whatever is not named here is skipped over.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import msgspec

from colocate.load import annotations
from colocate.load.annotations import RAW_ALLOCATABLE, SCALING, THRESHOLDS
from colocate.load.demand import limited, requested
from colocate.model.bounded import keys_alone, replace_field
from colocate.model.cpu_topology import FREE_CCXS
from colocate.model.load import (
    NOTHING,
    Access,
    Amount,
    BoundPod,
    ContainerAsk,
    NodeFacts,
    PerResource,
    PodFacts,
    PodShape,
    PriorityClass,
    Taint,
)
from colocate.model.quantity import Quantities, stated

_Name = Annotated[str, msgspec.Meta(max_length=253)]
"""As long as the API allows. Decisions are kept by the thousand, each with what its pod is called."""

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
_HARD = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods off."""
_DAEMON_SET = "DaemonSet"
_ASKS_NOTHING = PodShape()
_NO_PERCENTS = PerResource()
_PREFIXES = {PriorityClass.BATCH: "kubernetes.io/batch-", PriorityClass.MID: "kubernetes.io/mid-"}


class _Read(msgspec.Struct, frozen=True, rename="camel", gc=False):
    pass


_LONGEST = 4096
_LONGEST_CCXS = 64 << 10
"""Characters of an annotation. A longer one is ignored: no valid one is that long."""
_MOST_OWNERS = 4

_RESOURCES = [f"{prefix}{name}" for prefix in ("", *_PREFIXES.values()) for name in ("cpu", "memory")]
if TYPE_CHECKING:
    _Quantities = Quantities
else:
    _Quantities = keys_alone(_RESOURCES, str | int | float)
"""The resources that are judged. Tenants may ask for any number of others."""


class _Owner(_Read, frozen=True):
    kind: str
    name: str
    controller: bool = False


class _Labels(_Read, frozen=True):
    """The labels that are read: keeping all labels of a cluster's pods would fill the memory."""

    template_hash: str = msgspec.field(name="pod-template-hash", default="")
    priority_class: str | None = msgspec.field(name="koordinator.sh/priority-class", default=None)
    qos: str = msgspec.field(name="koordinator.sh/qosClass", default="")


class _Annotations(_Read, frozen=True):
    """The annotations of a node or pod that are read."""

    scaling: str = msgspec.field(name=SCALING, default="")
    thresholds: str = msgspec.field(name=THRESHOLDS, default="")
    raw_allocatable: str = msgspec.field(name=RAW_ALLOCATABLE, default="")
    free_ccxs: str = msgspec.field(name=FREE_CCXS, default="")

    def __post_init__(self) -> None:
        if len(self.scaling) > _LONGEST:
            replace_field(self, "scaling", "")
        if len(self.thresholds) > _LONGEST:
            replace_field(self, "thresholds", "")
        if len(self.raw_allocatable) > _LONGEST:
            replace_field(self, "raw_allocatable", "")
        if len(self.free_ccxs) > _LONGEST_CCXS:
            replace_field(self, "free_ccxs", "")


class _Metadata(_Read, frozen=True):
    name: _Name = ""
    namespace: _Name = ""
    uid: _Name = ""
    labels: _Labels = _Labels()
    annotations: _Annotations = _Annotations()
    owner_references: tuple[_Owner, ...] = ()

    def __post_init__(self) -> None:
        if len(self.owner_references) > _MOST_OWNERS:
            # The controller and a DaemonSet are asked for; the API allows any number of others.
            told = [owner for owner in self.owner_references if owner.controller or owner.kind == _DAEMON_SET]
            replace_field(self, "owner_references", tuple(told[:_MOST_OWNERS]))


class _Resources(_Read, frozen=True):
    requests: _Quantities = {}
    limits: _Quantities = {}


class _Container(_Read, frozen=True):
    resources: _Resources = _Resources()
    restart_policy: str = ""


class _PodSpec(_Read, frozen=True):
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    resources: _Resources = _Resources()
    """Resources of the pod as a whole."""
    overhead: _Quantities = {}
    node_name: str = ""
    priority: int | None = None
    scheduler_name: str = ""


class _Condition(_Read, frozen=True):
    type: str
    status: str = ""
    last_transition_time: str | None = None


class _PodStatus(_Read, frozen=True):
    phase: str = ""
    conditions: tuple[_Condition, ...] = ()


class LoadPod(_Read, frozen=True):
    """A pod, as an extender is sent it and a watch brings it."""

    metadata: _Metadata = _Metadata()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


class _NodeMetadata(_Metadata, frozen=True):
    creation_timestamp: str = ""


class _NodeSpec(_Read, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class LoadNodeStatus(_Read, frozen=True):
    capacity: _Quantities = {}
    allocatable: _Quantities = {}


class LoadNode(_Read, frozen=True):
    metadata: _NodeMetadata = _NodeMetadata()
    spec: _NodeSpec = _NodeSpec()
    status: LoadNodeStatus = LoadNodeStatus()


def pod_facts(pod: LoadPod) -> PodFacts:
    metadata, spec = pod.metadata, pod.spec
    kind = _priority_class(pod)
    of_class = _PREFIXES.get(kind, "")
    prefix = _prefix(of_class, spec)
    shape, by_class = _shape(pod, prefix), None
    if of_class:
        by_class = _by_class(shape, stated(spec.overhead, of_class).stated, asks=prefix == of_class)
    return PodFacts(
        metadata.uid,
        f"{metadata.namespace}/{metadata.name}",
        shape,
        _owner(metadata),
        kind,
        any(owner.kind == _DAEMON_SET for owner in metadata.owner_references),
        by_class,
    )


def bound_pod(pod: LoadPod, seen_at: float, ahead: float = 0.0) -> BoundPod | None:
    """The pod on its node, since its binding as the API tells it, whose clock is `ahead` of ours by so many seconds;
    None where it is on none, or has ended."""
    if not pod.spec.node_name or pod.ended:
        return None
    since = seen_at
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True" and condition.last_transition_time:
            told = _time(condition.last_transition_time)
            since = seen_at if told is None else min(seen_at, told - ahead)
    return BoundPod(pod_facts(pod), pod.spec.node_name, since)


def node_facts(node: LoadNode, ahead: float = 0.0) -> NodeFacts:
    """The node, since it was made as the API tells it, whose clock is `ahead` of ours by so many seconds."""
    said = node.metadata.annotations
    capacity = stated(node.status.capacity).stated
    created = _time(node.metadata.creation_timestamp)
    return NodeFacts(
        node.metadata.name,
        capacity,
        stated(node.status.allocatable).over(capacity),
        annotations.raw_allocatable(said.raw_allocatable),
        annotations.thresholds(said.thresholds),
        _access(node.spec),
        None if created is None else created - ahead,
    )


def _access(spec: _NodeSpec) -> Access:
    return Access(spec.unschedulable, tuple(sorted(taint for taint in spec.taints if taint.effect in _HARD)))


def _shape(pod: LoadPod, prefix: str) -> PodShape:
    """What the pod asks in resources of that prefix."""
    spec = pod.spec
    scaling = pod.metadata.annotations.scaling
    shape = PodShape(
        tuple([_asked(container.resources, prefix) for container in spec.containers]),
        tuple(
            [
                _asked(container.resources, prefix, sidecar=container.restart_policy == "Always")
                for container in spec.init_containers
            ]
        ),
        stated(spec.overhead).stated if spec.overhead else NOTHING,
        annotations.percents(scaling) if scaling else _NO_PERCENTS,
    )
    if not prefix and (spec.resources.requests or spec.resources.limits):
        return _with(shape, _asked(spec.resources, prefix))
    return shape


def _by_class(shape: PodShape, overhead: Amount, *, asks: bool) -> PodShape | None:
    """What a pod of that shape asks in the resources of its class alone, where that is something else: of those that
    ask in others, the overhead. Most have none, and share one shape."""
    if asks:
        return None if overhead == shape.overhead else msgspec.structs.replace(shape, overhead=overhead)
    if overhead == NOTHING and shape.scaling.empty:
        return _ASKS_NOTHING
    return PodShape(overhead=overhead, scaling=shape.scaling)


def _asked(resources: _Resources, prefix: str, *, sidecar: bool = False) -> ContainerAsk:
    return ContainerAsk(stated(resources.requests, prefix), stated(resources.limits, prefix), sidecar)


def _with(shape: PodShape, whole: ContainerAsk) -> PodShape:
    """What a pod states as a whole goes before the sums of its containers, each number by itself; it is then judged
    like a pod of one container."""
    if whole.request.empty and whole.limit.empty:
        return shape
    bare = PodShape(shape.containers, shape.init)
    one = ContainerAsk(_over(whole.request, requested(bare)), _over(whole.limit, limited(bare)))
    return PodShape((one,), (), shape.overhead, shape.scaling)


def _over(whole: PerResource, summed: Amount) -> PerResource:
    return PerResource(
        whole.cpu if whole.cpu is not None else summed.cpu or None,
        whole.memory if whole.memory is not None else summed.memory or None,
    )


def _owner(metadata: _Metadata) -> str:
    """A deployment's name stays while its replica sets come and go."""
    for owner in metadata.owner_references:
        if owner.controller:
            template = metadata.labels.template_hash
            if owner.kind == "ReplicaSet" and template and owner.name.endswith(f"-{template}"):
                return f"{metadata.namespace}/Deployment/{owner.name.removesuffix(f'-{template}')}"
            return f"{metadata.namespace}/{owner.kind}/{owner.name}"
    return ""


def _priority_class(pod: LoadPod) -> PriorityClass:
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


def _best_effort(spec: _PodSpec) -> bool:
    """As Kubernetes has it: no CPU and no memory is asked for, whatever else is."""
    return not any(stated(quantities).positive for quantities in _all_stated(spec))


def _prefix(prefix: str, spec: _PodSpec) -> str:
    """Of the resources that the pod asks for; a batch pod by its class alone asks for plain CPU and memory."""
    if not prefix:
        return ""
    names = {f"{prefix}cpu", f"{prefix}memory"}
    return "" if all(names.isdisjoint(quantities) for quantities in _all_stated(spec)) else prefix


def _all_stated(spec: _PodSpec) -> Iterator[Quantities]:
    for container in spec.containers:
        yield container.resources.requests
        yield container.resources.limits
    for container in spec.init_containers:
        yield container.resources.requests
        yield container.resources.limits
    yield spec.resources.requests
    yield spec.resources.limits


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
