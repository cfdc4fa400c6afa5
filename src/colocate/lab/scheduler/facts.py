"""The parts of nodes and pods that a scheduler reads, parsed once per version of an object. Pure."""

import msgspec

from colocate.lab.api.objects import Object, parse_time
from colocate.lab.scheduler.requests import (
    PodRequests,
    Quantities,
    RequestedResources,
    ScheduledContainer,
    amounts_of,
    pod_requests,
)


class _Wire(msgspec.Struct, frozen=True, rename="camel"):
    """Field names are the API's, in snake case; other fields are ignored."""


class NodeTaint(_Wire, frozen=True):
    key: str
    effect: str
    value: str = ""


class PodToleration(_Wire, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: NodeTaint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


class NodeRequirement(_Wire, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class Term(_Wire, frozen=True):
    """Requirements on a node that must all hold. An empty term matches no node."""

    match_expressions: tuple[NodeRequirement, ...] = ()
    match_fields: tuple[NodeRequirement, ...] = ()


class PreferredTerm(_Wire, frozen=True):
    weight: int
    preference: Term = Term()


class _NodeSelector(_Wire, frozen=True):
    node_selector_terms: tuple[Term, ...] = ()


class _NodeAffinity(_Wire, frozen=True):
    required: _NodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: tuple[PreferredTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class _Affinity(_Wire, frozen=True):
    node_affinity: _NodeAffinity = _NodeAffinity()


class _Metadata(_Wire, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class _PodSpec(_Wire, frozen=True):
    containers: tuple[ScheduledContainer, ...] = ()
    init_containers: tuple[ScheduledContainer, ...] = ()
    overhead: Quantities = {}
    resources: RequestedResources = RequestedResources()
    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: _Affinity = _Affinity()
    tolerations: tuple[PodToleration, ...] = ()
    priority: int = 0
    preemption_policy: str = "PreemptLowerPriority"
    scheduler_name: str = "default-scheduler"
    scheduling_gates: tuple[dict[str, str], ...] = ()


class _Condition(_Wire, frozen=True):
    type: str = ""
    reason: str | None = None


class _PodStatus(_Wire, frozen=True):
    phase: str = "Pending"
    nominated_node_name: str = ""
    start_time: str | None = None
    conditions: tuple[_Condition, ...] = ()


class _Pod(_Wire, frozen=True):
    metadata: _Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class SchedulablePod(msgspec.Struct, frozen=True, eq=False):
    """A pod: its identity, its requirements on a node, and its state."""

    namespace: str
    name: str
    uid: str
    requests: PodRequests
    labels: dict[str, str] = {}
    node_name: str = ""
    node_selector: dict[str, str] = {}
    required_terms: tuple[Term, ...] | None = None
    """Required node affinity; None requires nothing, an empty tuple matches no node."""
    preferred_terms: tuple[PreferredTerm, ...] = ()
    tolerations: tuple[PodToleration, ...] = ()
    priority: int = 0
    may_preempt: bool = True
    scheduler_name: str = "default-scheduler"
    gated: bool = False
    is_over: bool = False
    is_terminating: bool = False
    is_preempted: bool = False
    nominated: str = ""
    """The node on which other pods are preempted for this one."""
    started: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class SchedulableNode(msgspec.Struct, frozen=True, eq=False):
    """A node: its capacity, labels and taints."""

    name: str
    labels: dict[str, str] = {}
    taints: tuple[NodeTaint, ...] = ()
    unschedulable: bool = False
    allocatable: dict[str, int] = {}

    @property
    def pods(self) -> int:
        """How many pods it takes; 0 where it does not say, as in kube-scheduler."""
        return self.allocatable.get("pods", 0)


class _NodeSpec(_Wire, frozen=True):
    unschedulable: bool = False
    taints: tuple[NodeTaint, ...] = ()


class _NodeStatus(_Wire, frozen=True):
    allocatable: Quantities = {}


class _Node(_Wire, frozen=True):
    metadata: _Metadata
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


def read_pod(body: Object) -> SchedulablePod:
    """Read a pod from its JSON. ValueError, also msgspec's, where a field is invalid."""
    wire = msgspec.convert(body, _Pod)
    spec, status = wire.spec, wire.status
    affinity = spec.affinity.node_affinity
    started = parse_time(status.start_time) or parse_time(wire.metadata.creation_timestamp)
    return SchedulablePod(
        namespace=wire.metadata.namespace,
        name=wire.metadata.name,
        uid=wire.metadata.uid,
        requests=pod_requests(spec.containers, spec.init_containers, spec.overhead, spec.resources.requests),
        labels=wire.metadata.labels,
        node_name=spec.node_name,
        node_selector=spec.node_selector,
        required_terms=affinity.required.node_selector_terms if affinity.required else None,
        preferred_terms=affinity.preferred,
        tolerations=spec.tolerations,
        priority=spec.priority,
        may_preempt=spec.preemption_policy != "Never",
        scheduler_name=spec.scheduler_name,
        gated=bool(spec.scheduling_gates),
        is_over=status.phase in ("Succeeded", "Failed"),
        is_terminating=wire.metadata.deletion_timestamp is not None,
        is_preempted=any(
            one.type == "DisruptionTarget" and one.reason == "PreemptionByScheduler"
            for one in status.conditions
        ),
        nominated=status.nominated_node_name,
        started=started or 0.0,
    )


def read_node(body: Object) -> SchedulableNode:
    """Read a node from its JSON. ValueError where a field is invalid."""
    wire = msgspec.convert(body, _Node)
    return SchedulableNode(
        name=wire.metadata.name,
        labels=wire.metadata.labels,
        taints=wire.spec.taints,
        unschedulable=wire.spec.unschedulable,
        allocatable=amounts_of(wire.status.allocatable),
    )
