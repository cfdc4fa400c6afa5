"""Pods and the node as the API shows them, and the facts of memory that are read from them. Pure.

The structs have only the fields that are read; environments of containers, for example, are never decoded.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from colocate.model import quantity
from colocate.model.bounded import is_too_long, keys_alone, replace_field, shortened
from colocate.model.memory import Bytes, ContainerMemory, KubeletReserves, PodIdentity, PodUid
from colocate.model.path_word import is_path_word
from colocate.model.pod import Phase, QosClass, Resources
from colocate.model.quantity import Quantities

MAY_MOVE = "colocate.dev/may-move"
"""Annotation of bare pods: "true" allows the agent to create them again on another node."""

HOSTNAME = "kubernetes.io/hostname"

_MIRROR = "kubernetes.io/config.mirror"
"""On a static pod's mirror in the API: the uid that the kubelet uses for the pod. Any tenant can write it."""

_DRAINS = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"})
"""Taints that autoscalers set on a node that they will remove."""


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Owner(_Object, frozen=True):
    kind: str = ""
    controller: bool = False


_LONGEST = {MAY_MOVE: 16, _MIRROR: 256}
"""The annotations that are read, with the number of characters kept; longer texts keep one more."""

if TYPE_CHECKING:
    _Annotations = Mapping[str, str]
else:
    _Annotations = keys_alone(_LONGEST)


class _PodMarks(_Object, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: _Annotations = {}
    owner_references: tuple[_Owner, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    def __post_init__(self) -> None:
        if is_too_long(self.annotations, _LONGEST):
            replace_field(self, "annotations", shortened(self.annotations, _LONGEST))
        if len(self.owner_references) > 1:
            # Only the controller is read. The API allows one, and any number of other owners.
            owners = tuple(owner for owner in self.owner_references if owner.controller)[:1]
            replace_field(self, "owner_references", owners)


_MOST_RESOURCES = 32
_OF_EVERY_NODE = ("cpu", "memory")


class _ApiContainer(_Object, frozen=True):
    name: str
    resources: Resources = Resources()
    restart_policy: str | None = None

    def __post_init__(self) -> None:
        asked = self.resources
        if len(asked.limits) > _MOST_RESOURCES or len(asked.requests) > _MOST_RESOURCES:
            replace_field(self, "resources", Resources(_asked(asked.limits), _asked(asked.requests)))


def _asked(quantities: Quantities) -> Quantities:
    """Without resources of which 0 is requested: a pod can name any number of those."""
    return {
        name: value for name, value in quantities.items() if name in _OF_EVERY_NODE or value not in ("0", 0)
    }


class _PodSpec(_Object, frozen=True):
    containers: tuple[_ApiContainer, ...] = ()
    init_containers: tuple[_ApiContainer, ...] = ()
    priority: int | None = None
    resources: Resources = Resources()
    overhead: Mapping[str, str | int | float] = {}


class _RunState(_Object, frozen=True):
    running: Mapping[str, str | None] | None = None


class _ContainerState(msgspec.Struct, frozen=True):
    name: str = ""
    containerID: str = ""
    state: _RunState = _RunState()
    resources: Resources | None = None
    """What the kubelet has set; differs from the spec during a resize."""


class _PodStatus(_Object, frozen=True):
    phase: str = ""
    start_time: str | None = None
    """When the kubelet admitted the pod; only the kubelet writes it."""
    qos_class: QosClass = QosClass.BEST_EFFORT
    container_statuses: tuple[_ContainerState, ...] = ()
    init_container_statuses: tuple[_ContainerState, ...] = ()


class ApiPod(_Object, frozen=True):
    """A pod, with the fields that decisions about memory need."""

    metadata: _PodMarks
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def uid(self) -> PodUid:
        """The uid that the API server gave it; no tenant can choose it."""
        return self.metadata.uid

    @property
    def is_mirror(self) -> bool:
        """Whether it claims to mirror a static pod; kubelets do not run such pods."""
        return _MIRROR in self.metadata.annotations

    @property
    def claimed_uid(self) -> PodUid:
        """The uid of the static pod that it claims to mirror, which proves nothing (`roster`); empty where
        invalid."""
        claimed = self.metadata.annotations.get(_MIRROR, "")
        return claimed if is_path_word(claimed) else ""

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def is_finished(self) -> bool:
        return self.status.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def is_admitted(self) -> bool:
        """Whether the kubelet has admitted it; a bound pod may never fit."""
        return self.status.start_time is not None

    @property
    def is_ending(self) -> bool:
        """Whether it has ended, or is being deleted."""
        return self.is_finished or self.metadata.deletion_timestamp is not None

    def asks_for(self, resource: str) -> bool:
        """Whether any of its containers requests this resource."""
        containers = (*self.spec.init_containers, *self.spec.containers)
        return any(_container(each, resource, {}, init=False).blocks for each in containers)

    @property
    def container_ids(self) -> Mapping[str, str]:
        """By container name, the ids that the runtime gave; invalid ids are left out."""
        ids = {state.name: state.containerID.partition("://")[2] for state in self._container_states}
        return {name: id for name, id in ids.items() if is_path_word(id)}

    @property
    def running_containers(self) -> frozenset[str]:
        """The names of the containers that run, according to the kubelet."""
        return frozenset(each.name for each in self._container_states if each.state.running is not None)

    @property
    def given_limits(self) -> Mapping[str, Bytes]:
        """By container name, the memory limits that the kubelet has set."""
        told = {each.name: each.resources for each in self._container_states if each.resources is not None}
        return {name: _bound(given.limits.get("memory")) or 0 for name, given in told.items()}

    @property
    def _container_states(self) -> tuple[_ContainerState, ...]:
        return (*self.status.init_container_statuses, *self.status.container_statuses)


def identity(pod: ApiPod, resource: str, uid: PodUid, *, static: bool = False) -> PodIdentity:
    """A pod's identity, with its blocks of `resource`; `uid` and `static` come from the `Roster`."""
    marks, given = pod.metadata, pod.given_limits
    return PodIdentity(
        uid=uid,
        namespace=marks.namespace,
        name=marks.name,
        qos=pod.status.qos_class,
        priority=pod.spec.priority or 0,
        created=_seconds(marks.creation_timestamp),
        controller=next((owner.kind for owner in marks.owner_references if owner.controller), ""),
        started=pod.status.phase == Phase.RUNNING,
        static=static,
        may_move=marks.annotations.get(MAY_MOVE) == "true",
        terminating=marks.deletion_timestamp is not None,
        limit=_bound(pod.spec.resources.limits.get("memory")),
        whole_request=_bound(pod.spec.resources.requests.get("memory")),
        overhead=_amount(pod.spec.overhead.get("memory")) or 0,
        containers=(
            *(_container(each, resource, given, init=True) for each in pod.spec.init_containers),
            *(_container(each, resource, given, init=False) for each in pod.spec.containers),
        ),
    )


def _container(
    container: _ApiContainer, resource: str, given: Mapping[str, Bytes], *, init: bool
) -> ContainerMemory:
    limits, requests = container.resources.limits, container.resources.requests
    asked = _bound(limits.get("memory"))
    return ContainerMemory(
        name=container.name,
        blocks=_amount(limits.get(resource, requests.get(resource))) or 0,
        # A lower limit counts once the kubelet has set it; until then the container may use more.
        limit=asked and max(asked, given.get(container.name, 0)),
        # The API server sets a missing request to the limit.
        request=_bound(requests["memory"]) if "memory" in requests else asked,
        init=init,
        sidecar=init and container.restart_policy == "Always",
    )


def _amount(value: str | int | float | None) -> Bytes | None:
    return None if value is None else quantity.whole(value)


def _bound(value: str | int | float | None) -> Bytes | None:
    """An amount of memory; Kubernetes treats 0 as not given."""
    return _amount(value) or None


def _seconds(timestamp: str | None) -> float | None:
    return None if timestamp is None else datetime.fromisoformat(timestamp).timestamp()


class _Taint(_Object, frozen=True):
    key: str = ""


class _NodeSpec(_Object, frozen=True):
    unschedulable: bool = False
    taints: tuple[_Taint, ...] = ()


class _Condition(_Object, frozen=True):
    type: str = ""
    status: str = ""


class _NodeStatus(_Object, frozen=True):
    capacity: Mapping[str, str | int] = {}
    allocatable: Mapping[str, str | int] = {}
    conditions: tuple[_Condition, ...] = ()


class _NodeMarks(_Object, frozen=True):
    name: str = ""
    labels: Mapping[str, str] = {}


class ApiNode(_Object, frozen=True):
    """The node, with the fields that decisions about memory need."""

    metadata: _NodeMarks = _NodeMarks()
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def hostname(self) -> str:
        """The host name that affinities use."""
        return self.metadata.labels.get(HOSTNAME, self.metadata.name)

    @property
    def is_draining(self) -> bool:
        return any(taint.key in _DRAINS for taint in self.spec.taints)

    @property
    def has_memory_pressure(self) -> bool:
        return any(one.type == "MemoryPressure" and one.status == "True" for one in self.status.conditions)


class KubeletConfig(_Object, frozen=True):
    """The part of the kubelet's configuration that reserves memory."""

    kube_reserved: Mapping[str, str] = {}
    system_reserved: Mapping[str, str] = {}
    eviction_hard: Mapping[str, str] = {}
    eviction_soft: Mapping[str, str] = {}


class Configz(msgspec.Struct, frozen=True):
    """The kubelet's answer at /configz."""

    kubeletconfig: KubeletConfig = KubeletConfig()


def reserves(node: ApiNode | None, config: KubeletConfig | None) -> KubeletReserves:
    """What the kubelet keeps from pods, as far as node and configuration say."""
    capacity = _amount(node.status.capacity.get("memory")) if node else None
    told = config or KubeletConfig()
    return KubeletReserves(
        capacity=capacity,
        allocatable=_amount(node.status.allocatable.get("memory")) if node else None,
        kube_reserved=_amount(told.kube_reserved.get("memory")),
        system_reserved=_amount(told.system_reserved.get("memory")),
        eviction_hard=_threshold(told.eviction_hard, capacity),
        eviction_soft=_threshold(told.eviction_soft, capacity),
    )


def _threshold(thresholds: Mapping[str, str], capacity: Bytes | None) -> Bytes | None:
    value = thresholds.get("memory.available")
    if value is None or not value.endswith("%"):
        return _amount(value)
    return None if capacity is None else int(capacity * quantity.parse(value[:-1]) / 100)
