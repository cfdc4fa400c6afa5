"""Facts about nodes and pods from which a node's load is judged: room, samples, requests of pods.

CPU is in millicores, memory in bytes, a sample in percent of the node's capacity, time in seconds since the
epoch. Values that are NaN, infinite or negative are refused here, so that no decision meets one.

There are hundreds of thousands of these in a large cluster. None can be part of a cycle, so that the garbage
collector need not look at them (`gc=False`).
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from colocate.model.ranges import Range

_GREATEST = 1e12
"""Far beyond any real percentage or time, and far below what arithmetic would make infinite."""
WEEK = 7 * 86400
"""Seconds: the longest time that any setting of load may have."""
_CONDITIONS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Prefixes of the taints that Kubernetes sets while a node is cordoned, not ready or not set up yet."""


Natural = Annotated[int, msgspec.Meta(ge=0)]
"""A number from outside; a negative one is refused."""


class Amount(msgspec.Struct, frozen=True, gc=False):
    """An amount of CPU and of memory."""

    cpu: Natural = 0
    memory: Natural = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cpu + other.cpu, self.memory + other.memory)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.cpu - other.cpu, self.memory - other.memory)

    def at_least(self, other: "Amount") -> "Amount":
        return Amount(max(self.cpu, other.cpu), max(self.memory, other.memory))


NOTHING = Amount()


class PerResource(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A number for each resource, or None where none is stated."""

    cpu: int | None = None
    memory: int | None = None

    @property
    def empty(self) -> bool:
        return self.cpu is None and self.memory is None

    @property
    def positive(self) -> bool:
        """Whether any stated number is above 0."""
        return bool(self.cpu or self.memory)

    @property
    def stated(self) -> Amount:
        return Amount(self.cpu or 0, self.memory or 0)

    def over(self, amount: Amount) -> Amount:
        """`amount`, with the stated numbers in place of its own."""
        return Amount(
            amount.cpu if self.cpu is None else self.cpu,
            amount.memory if self.memory is None else self.memory,
        )


class Aggregation(StrEnum):
    """How the samples of a window are combined into one."""

    AVERAGE = "avg"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"


class Aggregate(msgspec.Struct, frozen=True, gc=False):
    """One resource's use over a window."""

    kind: Aggregation
    window: float
    percent: float

    def __post_init__(self) -> None:
        _refuse_what_is_no_measure(self.window, self.percent)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The measured use of one resource of one node. It can exceed 100 percent, for example for CPU load."""

    percent: float
    time: float
    deviation: float = 0.0
    aggregates: tuple[Aggregate, ...] = ()

    def __post_init__(self) -> None:
        _refuse_what_is_no_measure(self.percent, self.time, self.deviation)

    def over(self, kind: Aggregation, window: float) -> float | None:
        """The percentage for an aggregation and window; a window of 0 means the longest one."""
        of_kind = [aggregate for aggregate in self.aggregates if aggregate.kind is kind]
        if window:
            of_kind = [aggregate for aggregate in of_kind if aggregate.window == window]
        return max(of_kind, key=lambda aggregate: aggregate.window).percent if of_kind else None


def _refuse_what_is_no_measure(*values: float) -> None:
    for value in values:
        if not 0 <= value <= _GREATEST:
            raise ValueError(f"{value} is not a measure: it must be a number from 0 to {_GREATEST:.0e}")


class NodeLoad(msgspec.Struct, frozen=True, gc=False):
    """The samples of one node; None where a resource has none."""

    cpu: Usage | None = None
    memory: Usage | None = None

    @property
    def time(self) -> float | None:
        """When the older sample was taken, whether or not it still counts."""
        times = [usage.time for usage in (self.cpu, self.memory) if usage is not None]
        return min(times, default=None)


NO_SAMPLES = NodeLoad()


class UsageThresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Percentages of a node's room above which it takes no more pods. None or 0: no bound."""

    usage: PerResource | None = None
    prod: PerResource | None = None
    """Bounds for pods of the class prod, compared with what prod pods use."""
    aggregated: PerResource | None = None
    """Bounds compared with an aggregation instead of the last value."""
    aggregation: Aggregation | None = None
    window: Annotated[float, Range(0, WEEK)] = 0.0

    @property
    def over_window(self) -> PerResource | None:
        """The bounds for an aggregation, where one is named; they replace those of `usage`."""
        bounds = self.aggregated
        return None if self.aggregation is None or bounds is None or bounds.empty else bounds


class Taint(msgspec.Struct, frozen=True, gc=False, order=True):
    """A taint of a node."""

    key: str = ""
    effect: str = ""
    value: str = ""


class Access(msgspec.Struct, frozen=True, gc=False):
    """Which pods a node lets in."""

    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    """Taints that keep pods off, sorted; without PreferNoSchedule."""

    @property
    def pool(self) -> frozenset[tuple[str, str]]:
        """The permanent taints, as keys and values. Nodes of one pool take the same pods: most pods tolerate a
        taint with any effect."""
        return frozenset(
            (taint.key, taint.value) for taint in self.taints if not taint.key.startswith(_CONDITIONS)
        )

    @property
    def closed(self) -> bool:
        """Whether it takes no pods for now: it is cordoned, or Kubernetes keeps pods off because of its
        condition."""
        return self.cordoned or any(taint.key.startswith(_CONDITIONS) for taint in self.taints)


OPEN = Access()


class NodeFacts(msgspec.Struct, frozen=True, gc=False):
    """A node: its size, and the pods that it lets in."""

    name: str
    capacity: Amount
    allocatable: Amount
    raw_allocatable: PerResource = PerResource()
    """What was allocatable before it was multiplied, where an annotation says so."""
    thresholds: UsageThresholds | None = None
    """This node's own bounds."""
    access: Access = OPEN
    created: float | None = None
    """When it joined the cluster, by our own clock; None where unknown."""

    def judged_like(self, other: "NodeFacts | None") -> bool:
        """Whether the two differ only in their access and creation time."""
        return (
            other is not None
            and msgspec.structs.replace(self, access=other.access, created=other.created) == other
        )

    @property
    def room(self) -> Amount:
        """What pods can really use here."""
        return self.raw_allocatable.over(self.allocatable)


class PriorityClass(StrEnum):
    """Koordinator's priority classes; NONE is a pod without one."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"
    NONE = ""


class ContainerAsk(msgspec.Struct, frozen=True, gc=False):
    """What one container requests; pods of the classes batch and mid use the resources of that name."""

    request: PerResource = PerResource()
    limit: PerResource = PerResource()
    sidecar: bool = False
    """Whether an init container keeps running beside the others."""


class PodShape(msgspec.Struct, frozen=True, gc=False):
    """All that a pod requests. Pods of one shape are judged alike."""

    containers: tuple[ContainerAsk, ...] = ()
    init: tuple[ContainerAsk, ...] = ()
    overhead: Amount = NOTHING
    scaling: PerResource = PerResource()
    """Percentages from the pod's annotation by which its use is estimated."""


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """A pod, as far as load is concerned."""

    uid: str
    key: str
    """The pod's namespace/name."""
    shape: PodShape = PodShape()
    owner: str = ""
    """What made it, such as `default/ReplicaSet/nginx-7d9`: its pods behave alike."""
    priority_class: PriorityClass = PriorityClass.NONE
    daemon: bool = False
    by_class: PodShape | None = None
    """Its requests in the resources of its class only; None where that makes no difference."""

    @property
    def prod(self) -> bool:
        return self.priority_class is PriorityClass.PROD


class BoundPod(msgspec.Struct, frozen=True, gc=False):
    """A pod on its node."""

    pod: PodFacts
    node: str
    bound_at: float


class PodUsage(msgspec.Struct, frozen=True, gc=False):
    """The measured use of one pod."""

    amount: Amount
    time: float
    prod: bool = False
    """Whether it counts towards the use of prod pods."""
