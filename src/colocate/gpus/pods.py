"""Pods that ask for GPUs: what the API says of them, and what each container asks for.

Annotations and names are the words of tenants. What they ask for is checked here; what they wish, in `wishes`.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from colocate.errors import visible
from colocate.gpus.dialects import Dialect
from colocate.model.gpu import CORES, Cores, Mebibytes
from colocate.model.quantity import Quantities, whole

_MOST_UNITS = 1 << 40
"""Beyond this, a request is nonsense, and arithmetic on it no use."""


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Owner(_Read, frozen=True):
    kind: str = ""
    name: str = ""
    controller: bool = False


class _Metadata(_Read, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: Mapping[str, str] = {}
    owner_references: tuple[_Owner, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class _Resources(_Read, frozen=True):
    limits: Quantities = {}


class _Env(_Read, frozen=True):
    name: str = ""


class GpuContainer(_Read, frozen=True):
    """A container of a pod, as far as GPUs are concerned."""

    name: str = ""
    resources: _Resources = _Resources()
    restart_policy: str | None = None
    env: tuple[_Env, ...] = ()


class _Spec(_Read, frozen=True):
    containers: tuple[GpuContainer, ...] = ()
    init_containers: tuple[GpuContainer, ...] = ()
    node_name: str = ""
    scheduler_name: str = ""


class _State(_Read, frozen=True):
    running: Mapping[str, object] | None = None
    terminated: Mapping[str, object] | None = None

    @property
    def is_past_start(self) -> bool:
        return self.running is not None or self.terminated is not None


class _ContainerStatus(_Read, frozen=True):
    name: str = ""
    restart_count: int = 0
    state: _State = _State()
    last_state: _State = _State()


class _Status(_Read, frozen=True):
    phase: str = ""
    container_statuses: tuple[_ContainerStatus, ...] = ()
    init_container_statuses: tuple[_ContainerStatus, ...] = ()


class GpuPod(_Read, frozen=True):
    """A pod of the API, as much of it as GPUs are decided from."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def uid(self) -> str:
        """As the API server gave it, which nobody else can."""
        return self.metadata.uid

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations

    @property
    def is_finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_ending(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.is_finished or self.metadata.deletion_timestamp is not None

    @property
    def controller(self) -> str:
        """The kind of what would make it anew; empty for a bare pod."""
        return next((owner.kind for owner in self.metadata.owner_references if owner.controller), "")

    def has_run(self, container: str) -> bool:
        """Whether the kubelet says that the container has been started before: it is a restart, then."""
        told = (*self.status.init_container_statuses, *self.status.container_statuses)
        return any(
            each.restart_count > 0 or each.state.is_past_start or each.last_state.is_past_start
            for each in told
            if each.name == container
        )

    def is_running(self, container: str) -> bool:
        """Whether the kubelet says that the container runs."""
        told = (*self.status.init_container_statuses, *self.status.container_statuses)
        return any(each.state.running is not None for each in told if each.name == container)

    @property
    def created(self) -> float:
        """Seconds since the epoch, by the API server's clock; 0 where it says nothing."""
        stamp = self.metadata.creation_timestamp
        try:
            return 0.0 if stamp is None else datetime.fromisoformat(stamp).timestamp()
        except ValueError:
            return 0.0


class GpuAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What one container asks for. Each of its GPUs gives the memory and the cores."""

    container: str
    units: int
    """Devices that the kubelet takes for it."""
    memory: Mebibytes
    cores: Cores = 0
    count: int = 1
    init: bool = False
    sidecar: bool = False
    """An init container that goes on beside those after it."""

    @property
    def hands_on(self) -> bool:
        """Whether the kubelet gives its ids to containers of its pod that start later."""
        return self.init and not self.sidecar

    @property
    def shape(self) -> tuple[int, int, int]:
        """What makes two requests alike."""
        return self.memory, self.cores, self.count


class GpuAsks(msgspec.Struct, frozen=True):
    """What a pod asks for in one dialect: its containers in the order in which the kubelet admits them."""

    containers: tuple[GpuAsk, ...] = ()
    problem: str = ""
    """Why it cannot be served as it is, with the remedy; empty where it can."""

    def __bool__(self) -> bool:
        """Whether it asks for anything at all."""
        return bool(self.containers or self.problem)


def asks_of(pod: GpuPod, dialect: Dialect) -> GpuAsks:
    """What a pod asks for in a dialect: limits count, as extended resources have no others."""
    asks: list[GpuAsk] = []
    problem = ""
    initial = [(container, True) for container in pod.spec.init_containers]
    for container, init in (*initial, *((each, False) for each in pod.spec.containers)):
        try:
            ask = _ask(container, dialect, init=init)
        except ValueError as error:
            problem = problem or f"container {visible(container.name)} {error}"
        else:
            if ask is not None:
                asks.append(ask)
    return GpuAsks(tuple(asks), problem)


def _ask(container: GpuContainer, dialect: Dialect, *, init: bool) -> GpuAsk | None:
    units, cores, count = (
        _amount(container, resource) for resource in (dialect.memory, dialect.cores, dialect.count)
    )
    if not units:
        if asked := [
            name for name, value in ((dialect.count, count), (dialect.cores, cores)) if value is not None
        ]:
            raise ValueError(
                f"asks for {asked[0]} without {dialect.memory} and would get no GPU; add {dialect.memory}, "
                "which says how much memory of each GPU"
            )
        return None
    if cores is not None and cores > CORES:
        raise ValueError(
            f"asks for {cores} of {dialect.cores}, and a GPU has {CORES}; ask for {CORES} or less, and for more "
            f"GPUs with {dialect.count}"
        )
    if count == 0:
        raise ValueError(
            f"asks for {dialect.memory} of no GPU; set {dialect.count} to 1 or more, or leave it out"
        )
    return GpuAsk(
        container=container.name,
        units=units,
        memory=units * dialect.unit,
        cores=cores or 0,
        count=count or 1,
        init=init,
        sidecar=init and container.restart_policy == "Always",
    )


def _amount(container: GpuContainer, resource: str) -> int | None:
    """None where it is not asked for; ValueError where what is asked for cannot be."""
    stated = container.resources.limits.get(resource) if resource else None
    if stated is None:
        return None
    try:
        amount = whole(stated)
    except ValueError:
        amount = -1
    if not 0 <= amount <= _MOST_UNITS:
        raise ValueError(
            f"asks for {visible(str(stated))[:40]} of {resource}; ask for a whole number that is not negative"
        )
    return amount
