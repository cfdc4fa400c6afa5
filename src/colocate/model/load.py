"""What is known of nodes and pods when a node's load is judged: room, samples, what pods ask. Facts only.

CPU is in millicores, memory in bytes, a sample in percent of the node's capacity, time in seconds since the
epoch. A value that is not a number, endless or negative is refused here, so that no decision meets one.

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
"""How the keys of taints begin that Kubernetes sets for as long as a node is cordoned, not ready, not set up yet."""


Natural = Annotated[int, msgspec.Meta(ge=0)]
"""What is read from elsewhere and is less than nothing is refused."""


class Amount(msgspec.Struct, frozen=True, gc=False):
    """So much CPU and so much memory."""

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
        """Whether more than nothing is stated."""
        return bool(self.cpu or self.memory)

    @property
    def stated(self) -> Amount:
        return Amount(self.cpu or 0, self.memory or 0)

    def over(self, amount: Amount) -> Amount:
        """`amount`, with what is stated here in its place."""
        return Amount(
            amount.cpu if self.cpu is None else self.cpu,
            amount.memory if self.memory is None else self.memory,
        )


class Aggregation(StrEnum):
    """How the samples of a window are made into one."""

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
    """What is measured of one resource of one node. More than 100 percent is possible, of CPU load for one."""

    percent: float
    time: float
    deviation: float = 0.0
    aggregates: tuple[Aggregate, ...] = ()

    def __post_init__(self) -> None:
        _refuse_what_is_no_measure(self.percent, self.time, self.deviation)

    def over(self, kind: Aggregation, window: float) -> float | None:
        """The percent of that aggregation and window; of the longest window where none is named (0)."""
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
        """When the older of the samples was taken, whether it still counts or not."""
        times = [usage.time for usage in (self.cpu, self.memory) if usage is not None]
        return min(times, default=None)


NO_SAMPLES = NodeLoad()


class UsageThresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Percents of a node's room beyond which it takes no more pods. None or 0: no bound."""

    usage: PerResource | None = None
    prod: PerResource | None = None
    """For pods of the class prod, against what prod pods use."""
    aggregated: PerResource | None = None
    """Against an aggregation instead of the last value."""
    aggregation: Aggregation | None = None
    window: Annotated[float, Range(0, WEEK)] = 0.0

    @property
    def over_window(self) -> PerResource | None:
        """The bounds of an aggregation, where one is named; they count instead of those of `usage`."""
        bounds = self.aggregated
        return None if self.aggregation is None or bounds is None or bounds.empty else bounds


class Taint(msgspec.Struct, frozen=True, gc=False, order=True):
    """What a node says of pods that do not tolerate it."""

    key: str = ""
    effect: str = ""
    value: str = ""


class Access(msgspec.Struct, frozen=True, gc=False):
    """Which pods a node lets in."""

    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    """Those that keep pods off, in one order everywhere; not those that only say "rather not"."""

    @property
    def pool(self) -> frozenset[tuple[str, str]]:
        """What sets the node apart for good, by keys and values: nodes of one pool take the same pods, which mostly
        tolerate a taint whatever its effects."""
        return frozenset(
            (taint.key, taint.value) for taint in self.taints if not taint.key.startswith(_CONDITIONS)
        )

    @property
    def closed(self) -> bool:
        """Whether it takes none for now: somebody has cordoned it, or Kubernetes keeps pods off for its condition."""
        return self.cordoned or any(taint.key.startswith(_CONDITIONS) for taint in self.taints)


OPEN = Access()


class NodeFacts(msgspec.Struct, frozen=True, gc=False):
    """A node: its size, and whom it lets in."""

    name: str
    capacity: Amount
    allocatable: Amount
    raw_allocatable: PerResource = PerResource()
    """What was allocatable before someone multiplied it, where an annotation tells."""
    thresholds: UsageThresholds | None = None
    """Bounds of this node's own."""
    access: Access = OPEN
    created: float | None = None
    """When the cluster got it, by our own clock, where that is told."""

    def judged_like(self, other: "NodeFacts | None") -> bool:
        """Whether the two differ in nothing but whom they let in, and since when they are there."""
        return (
            other is not None
            and msgspec.structs.replace(self, access=other.access, created=other.created) == other
        )

    @property
    def room(self) -> Amount:
        """What pods can really have here."""
        return self.raw_allocatable.over(self.allocatable)


class PriorityClass(StrEnum):
    """Koordinator's classes of pods; NONE is a pod that names none."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"
    NONE = ""


class ContainerAsk(msgspec.Struct, frozen=True, gc=False):
    """What one container states; a pod of the classes batch or mid states it in resources of that name."""

    request: PerResource = PerResource()
    limit: PerResource = PerResource()
    sidecar: bool = False
    """Of init containers: it goes on running next to the others."""


class PodShape(msgspec.Struct, frozen=True, gc=False):
    """All that a pod asks. Pods of one shape are judged alike."""

    containers: tuple[ContainerAsk, ...] = ()
    init: tuple[ContainerAsk, ...] = ()
    overhead: Amount = NOTHING
    scaling: PerResource = PerResource()
    """Percents by which this pod's own annotation wants its use to be estimated."""


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """A pod, as far as load is concerned."""

    uid: str
    key: str
    """namespace/name"""
    shape: PodShape = PodShape()
    owner: str = ""
    """What made it, such as `default/ReplicaSet/nginx-7d9`: its pods behave alike."""
    priority_class: PriorityClass = PriorityClass.NONE
    daemon: bool = False
    by_class: PodShape | None = None
    """What it asks in the resources of its class alone, where that is something else."""

    @property
    def prod(self) -> bool:
        return self.priority_class is PriorityClass.PROD


class BoundPod(msgspec.Struct, frozen=True, gc=False):
    """A pod on its node."""

    pod: PodFacts
    node: str
    bound_at: float


class PodUsage(msgspec.Struct, frozen=True, gc=False):
    """What one pod is measured to use."""

    amount: Amount
    time: float
    prod: bool = False
    """Whether it counts as what prod pods use."""
