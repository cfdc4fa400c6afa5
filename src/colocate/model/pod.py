"""The parts of pods that a kubelet reads and writes. Unknown fields of the API are ignored."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from colocate.model import quantity


class Phase(StrEnum):
    """The phase of a pod."""

    PENDING = "Pending"
    """Not all of its containers have started."""
    RUNNING = "Running"
    """All of its containers have started, and at least one runs."""
    SUCCEEDED = "Succeeded"
    """All containers have ended well, and none restarts."""
    FAILED = "Failed"
    """A container has failed, or the kubelet has rejected the pod."""


class QosClass(StrEnum):
    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class _Object(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class EnvVar(_Object, frozen=True):
    name: str
    value: str = ""
    value_from: dict[str, Any] | None = None


class Resources(_Object, frozen=True):
    limits: dict[str, str | int | float] = {}
    requests: dict[str, str | int | float] = {}


class Container(_Object, frozen=True):
    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[dict[str, Any], ...] = ()
    resources: Resources = Resources()
    restart_policy: str | None = None
    """Only init containers have one; `Always` makes it a sidecar."""

    @property
    def is_sidecar(self) -> bool:
        return self.restart_policy == "Always"

    def devices(self) -> dict[str, int]:
        """How many of each extended resource the container asks for."""
        return {name: quantity.whole(count) for name, count in self.resources.limits.items() if "/" in name}


class PodSpec(_Object, frozen=True):
    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...] = ()
    restart_policy: str = "Always"
    termination_grace_period_seconds: float = 30
    node_name: str = ""


class Metadata(_Object, frozen=True):
    name: str
    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Pod(_Object, frozen=True):
    metadata: Metadata
    spec: PodSpec

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def containers(self) -> tuple[Container, ...]:
        """Init containers first, as they are admitted and run."""
        return (*self.spec.init_containers, *self.spec.containers)


class Running(_Object, frozen=True):
    started_at: str


class Terminated(_Object, frozen=True):
    exit_code: int
    reason: str
    started_at: str
    finished_at: str
    message: str = ""


class Waiting(_Object, frozen=True):
    reason: str
    message: str = ""


class ContainerState(_Object, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Object, frozen=True):
    name: str
    state: ContainerState = ContainerState(waiting=Waiting("ContainerCreating"))
    last_state: ContainerState = ContainerState()
    restart_count: int = 0
    ready: bool = False
    started: bool = False


class PodStatus(_Object, frozen=True):
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    start_time: str = ""
    qos_class: QosClass = QosClass.BEST_EFFORT
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


def qos_class(pod: Pod) -> QosClass:
    """The QoS class, which depends on CPU and memory only; the kubelet nests a pod's cgroup by it."""
    guaranteed, any_named = True, False
    for container in pod.containers:
        limits, requests = container.resources.limits, container.resources.requests
        for resource in ("cpu", "memory"):
            limit = limits.get(resource)
            request = requests.get(resource, limit)
            any_named |= bool(limit or request)
            guaranteed &= limit is not None and request is not None and _same(limit, request)
    if guaranteed:
        return QosClass.GUARANTEED
    return QosClass.BURSTABLE if any_named else QosClass.BEST_EFFORT


def peak(running: Iterable[int], init: Iterable[tuple[int, bool]] = ()) -> int:
    """The most of one resource that a pod requests at one time.

    `init` are its init containers in order, each with whether it is a sidecar. Init containers run one by one; a
    sidecar keeps running beside all that start after it.
    """
    sidecars = highest = 0
    for amount, is_sidecar in init:
        highest = max(highest, sidecars + amount)
        if is_sidecar:
            sidecars += amount
    return max(highest, sidecars + sum(running))


def _same(limit: str | int | float, request: str | int | float) -> bool:
    return quantity.parse(limit) == quantity.parse(request)
