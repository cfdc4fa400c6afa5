"""Pods that ask for GPUs: what the API says of them, and what each container asks for.

Annotations and names are the words of tenants. What they ask for is checked here; what they wish, in `wishes`.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from colocate.errors import visible
from colocate.gpus.dialects import COUNT_WISH, Dialect
from colocate.gpus.read_keys import ENVS, LONGEST, MIRROR, GpuAnnotations, GpuQuantities
from colocate.model.bounded import is_too_long, replace_field, shortened
from colocate.model.figures import amount
from colocate.model.gpu import CORES, Cores, Mebibytes
from colocate.model.quantity import whole

MOST_GPUS = 64
"""GPUs of one node, at most."""
MOST_ASKING = 16
"""Containers of one pod that may name GPUs: every one is weighed at every admission on its node."""
_MEBIBYTE = 1 << 20
_TOO_MUCH: Mebibytes = 1 << 20
"""A TiB: no GPU has so much. A request for it in Mi, Gi, M or G is written in bytes for units."""
_OF_BYTES = ("i", "k", "M", "G", "T", "P", "E")
"""How quantities of bytes end."""
_MOST_UNITS = 1 << 40
"""Beyond this, a request is nonsense, and arithmetic on it no use."""


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    pass


class _Owner(_Read, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class _Metadata(_Read, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: GpuAnnotations | None = None
    """Those that are read; None where the pod has none at all."""
    owner_references: tuple[_Owner, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    def __post_init__(self) -> None:
        if self.annotations and is_too_long(self.annotations, LONGEST):
            replace_field(self, "annotations", shortened(self.annotations, LONGEST))
        if len(self.owner_references) > 1:
            # The controller alone is asked for; the API allows one, and any number of others.
            owners = tuple(owner for owner in self.owner_references if owner.controller)[:1]
            replace_field(self, "owner_references", owners)


class _Resources(_Read, frozen=True):
    limits: GpuQuantities = {}


class _Env(_Read, frozen=True):
    name: str = ""


class GpuContainer(_Read, frozen=True):
    """A container of a pod, as far as GPUs are concerned."""

    name: str = ""
    resources: _Resources = _Resources()
    restart_policy: str | None = None
    env: tuple[_Env, ...] = ()

    def __post_init__(self) -> None:
        if self.env:
            # One may be stated any number of times; the last counts.
            read = {each.name: each for each in self.env if each.name in ENVS}
            replace_field(self, "env", tuple(read.values()))


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
        """As the API server gave it; no other component can."""
        return self.metadata.uid

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def annotations(self) -> Mapping[str, str]:
        """Those that are read."""
        return self.metadata.annotations or {}

    @property
    def is_annotated(self) -> bool:
        """Whether it has any annotation, read or not: a patch that creates the map would remove them."""
        return self.metadata.annotations is not None

    @property
    def is_finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_ending(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.is_finished or self.metadata.deletion_timestamp is not None

    @property
    def is_mirror(self) -> bool:
        """Whether it says to be the mirror of a static pod: the kubelet never runs it under its own uid."""
        return MIRROR in self.annotations

    @property
    def controller(self) -> str:
        """The kind of the controller that would create it again; empty for a bare pod."""
        return next((owner.kind for owner in self.metadata.owner_references if owner.controller), "")

    @property
    def controller_uid(self) -> str:
        return next((owner.uid for owner in self.metadata.owner_references if owner.controller), "")

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


def asks_of(pod: GpuPod, dialect: Dialect, booked: int | None = None) -> GpuAsks:
    """What a pod asks for in a dialect, by its limits: extended resources have no other requests.

    The number of GPUs is a wish of its own, by annotation: of a resource that limits count, a node has only as many
    as GPUs. `booked` is the number that was booked for it, whatever the annotation says by now.
    """
    asks: list[GpuAsk] = []
    problem, of_wish = "", ""
    wished: int | None = None
    try:
        wished = count_wish(pod) if booked is None else booked
    except ValueError as error:
        of_wish = str(error)
    for place, (container, init) in enumerate(_naming(pod, dialect)):
        if place == MOST_ASKING:
            # The others are not even looked at: a tenant's pod may have thousands.
            return GpuAsks(tuple(asks), _too_many(dialect))
        try:
            ask = _ask(container, dialect, wished, init=init)
        except ValueError as error:
            problem = problem or f"container {visible(container.name)} {error}"
        else:
            if ask is not None:
                asks.append(ask)
    # A wish alone asks for nothing.
    return GpuAsks(tuple(asks), problem or (of_wish if asks else ""))


def _naming(pod: GpuPod, dialect: Dialect) -> Iterator[tuple[GpuContainer, bool]]:
    """The containers that name a resource of the dialect, and whether they are init containers."""
    names = {dialect.memory, dialect.cores, dialect.count, COUNT_WISH}
    for containers, init in ((pod.spec.init_containers, True), (pod.spec.containers, False)):
        for each in containers:
            if not names.isdisjoint(each.resources.limits):
                yield each, init


def _too_many(dialect: Dialect) -> str:
    return (
        f"more than {MOST_ASKING} of its containers ask for {dialect.memory}; let at most {MOST_ASKING} of a pod ask "
        "for it, init containers included"
    )


def count_wish(pod: GpuPod) -> int | None:
    """How many GPUs the pod's annotation asks for; None where it says nothing. ValueError says what is wrong."""
    text = pod.annotations.get(COUNT_WISH)
    if text is None:
        return None
    wished = int(text) if text.isascii() and text.isdigit() and len(text) <= 3 else 0
    if not 1 <= wished <= MOST_GPUS:
        raise ValueError(
            f"its annotation {COUNT_WISH} says {visible(text[:40])!r}; write a number of GPUs from 1 to {MOST_GPUS}"
        )
    return wished


def counted_in_limits(pod: GpuPod, dialect: Dialect) -> str:
    """What it costs that a pod asks for several GPUs by a counted resource; empty where it does not."""
    if not dialect.count:
        return ""
    counts: list[int] = []
    for each in (*pod.spec.init_containers, *pod.spec.containers):
        try:
            counts.append(_amount(each, dialect.count) or 0)
        except ValueError:
            continue
    most = max(counts, default=0)
    if not most:
        return ""
    return (
        f"it asks for {most} of {dialect.count} in its limits, and the node has as many of that as GPUs: it keeps "
        f"other pods from asking for them, though it takes a share of each; leave it out and set the annotation "
        f'{COUNT_WISH}: "{most}" in its place'
    )


def _ask(container: GpuContainer, dialect: Dialect, wished: int | None, *, init: bool) -> GpuAsk | None:
    if not dialect.count and COUNT_WISH in container.resources.limits:
        raise ValueError(
            f"asks for {COUNT_WISH} in its limits, which no node has; make it an annotation of the pod"
        )
    if why := bytes_for_units(container, dialect):
        raise ValueError(why)
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
            f"GPUs with the annotation {COUNT_WISH}"
        )
    if count == 0:
        raise ValueError(
            f"asks for {dialect.memory} of no GPU; set {dialect.count} to 1 or more, or leave it out"
        )
    if count and wished and count != wished:
        raise ValueError(
            f"asks for {count} of {dialect.count}, and the pod's annotation {COUNT_WISH} for {wished}; leave "
            f"{dialect.count} out"
        )
    if count and count > MOST_GPUS:
        raise ValueError(f"asks for {count} of {dialect.count}; no node has more than {MOST_GPUS} GPUs")
    return GpuAsk(
        container=container.name,
        units=units,
        memory=units * dialect.unit,
        cores=cores or 0,
        count=count or wished or 1,
        init=init,
        sidecar=init and container.restart_policy == "Always",
    )


def bytes_for_units(container: GpuContainer, dialect: Dialect) -> str:
    """Whether bytes are written where units are counted, with what to write; empty where not."""
    stated = container.resources.limits.get(dialect.memory)
    if not isinstance(stated, str) or not stated.endswith(_OF_BYTES):
        return ""
    try:
        units = whole(stated)
    except ValueError:
        return ""
    if units * dialect.unit < _TOO_MUCH:
        return ""
    meant = -(-units // (dialect.unit * _MEBIBYTE))
    return (
        f"asks for {visible(stated)[:40]} of {dialect.memory}: {visible(stated)[:40]} is {units} units of "
        f"{amount(dialect.unit * _MEBIBYTE)}; write {meant}"
    )


def _amount(container: GpuContainer, resource: str) -> int | None:
    """None where it is not asked for; ValueError where the amount is impossible."""
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
