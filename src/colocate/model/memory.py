"""Memory of a node, its NUMA nodes and its pods, as it was read. Nothing is judged or decided here.

None stands for what the machine does not report: cgroup v1 has no pressure per pod, an old kernel no refaults. A
reading is of one moment; all readings of a round are taken close together.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from colocate.model.pod import QosClass, peak

Bytes: TypeAlias = int
"""An amount of memory."""

PodUid: TypeAlias = str
"""The uid of a pod, by which its control groups are found."""


class Pressure(msgspec.Struct, frozen=True):
    """Memory pressure (PSI): the share of time lost, in percent, over 10, 60 and 300 seconds."""

    some10: float = 0.0
    some60: float = 0.0
    some300: float = 0.0
    """The share of time in which some task waited for memory."""
    full10: float = 0.0
    full60: float = 0.0
    full300: float = 0.0
    """The share of time in which all tasks waited for memory."""
    some_total: int = 0
    full_total: int = 0
    """Microseconds lost since boot."""


class NumaMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One NUMA node that is online."""

    id: int
    total: Bytes
    free: Bytes
    file: Bytes = 0
    """Active and inactive file pages (not tmpfs): what can be dropped."""
    inactive_file: Bytes = 0
    has_cpus: bool = True
    """Whether it has CPUs; a node without CPUs is CXL or persistent memory."""
    distances: Mapping[int, int] = {}
    """Distances by the id of the other node, as the firmware reports them; 10 to itself."""


class NodeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The whole machine: /proc/meminfo, the NUMA nodes, its pressure."""

    total: Bytes
    """MemTotal."""
    available: Bytes
    """MemAvailable: the kernel's estimate of what a new process could get without swapping."""
    free: Bytes
    """MemFree."""
    inactive_file: Bytes
    """Inactive(file), which the kubelet also counts as reclaimable."""
    hugepages: Bytes = 0
    """Memory reserved as huge pages, used or not; it is neither free nor available."""
    swap_total: Bytes = 0
    swap_free: Bytes = 0
    numa: tuple[NumaMemory, ...] = ()
    pressure: Pressure | None = None

    @property
    def working_set(self) -> Bytes:
        """Used memory as the kubelet counts it for eviction: active page cache included."""
        return max(0, self.total - self.free - self.inactive_file)


class OurHigh(msgspec.Struct, frozen=True):
    """A memory.high that Colocate set because of a debt."""

    before: Bytes | None
    """The memory.high before that; None where there was none."""


class PodMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one pod's control group, with everything below it."""

    uid: PodUid
    qos: QosClass
    usage: Bytes
    anon: Bytes
    file: Bytes
    """Active and inactive file pages (not tmpfs): what can be dropped."""
    inactive_file: Bytes
    shmem: Bytes = 0
    """tmpfs and shared memory, which cannot be dropped either."""
    swap: Bytes | None = None
    """Memory in swap."""
    limit: Bytes | None = None
    """memory.max or memory.limit_in_bytes; None where there is no limit."""
    high: Bytes | None = None
    """memory.high (v2); None where there is none."""
    our_high: OurHigh | None = None
    """The memory.high that Colocate set, where the group is marked so."""
    swap_limit: Bytes | None = None
    """How much swap it may take (v2: memory.swap.max; v1: memsw less memory); None where there is no limit."""
    pressure: Pressure | None = None
    refaults: int | None = None
    """Pages of cache and anonymous memory that were read back soon after they were dropped, since the group was
    made."""
    numa: Mapping[int, Bytes] | None = None
    """Anonymous and file pages by NUMA node; without inactive file pages where the machine reports these by node
    (v2)."""

    @property
    def working_set(self) -> Bytes:
        """Used memory as the kubelet counts it."""
        return max(0, self.usage - self.inactive_file)


class ContainerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one container of a pod requests."""

    name: str
    blocks: int = 0
    limit: Bytes | None = None
    """The memory limit; None or 0, as in Kubernetes, means no limit."""
    request: Bytes | None = None
    init: bool = False
    """Whether it is an init container; with `sidecar`, it keeps running beside the others."""
    sidecar: bool = False

    @property
    def has_ended_by_start(self) -> bool:
        """Whether it is an init container that ends before the pod counts as started."""
        return self.init and not self.sidecar


class PodIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What the API says about a pod; defaults until the API has answered."""

    uid: PodUid
    namespace: str
    name: str
    qos: QosClass = QosClass.BEST_EFFORT
    priority: int = 0
    created: float | None = None
    """Creation time, in seconds since the epoch."""
    controller: str = ""
    """The kind of its controller, such as ReplicaSet; empty for a bare pod."""
    started: bool = False
    """Whether its init containers have ended, except for sidecars."""
    static: bool = False
    """Whether it mirrors a static pod, which the API cannot evict."""
    may_move: bool = False
    """Whether its annotation allows Colocate to evict it so that it is created on another node."""
    terminating: bool = False
    limit: Bytes | None = None
    whole_request: Bytes | None = None
    """The request of the pod as a whole (pod-level resources); None where it states none."""
    overhead: Bytes = 0
    """What its runtime needs in addition to its containers."""
    containers: tuple[ContainerMemory, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def may_hold_blocks(self) -> bool:
        """Whether it requests blocks, as far as is known."""
        return not self.containers or any(each.blocks for each in self.containers)

    @property
    def request(self) -> Bytes:
        """The memory that the scheduler counts for it: the pod-level request, else the sum of its containers."""
        containers = running_together([each.request or 0 for each in self.containers], self.containers)
        # Only a limit: the API server then sets the request to the containers' sum, or else to the whole limit.
        asked = self.whole_request or containers or self.limit or 0
        return asked + self.overhead


class KubeletReserves(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that the kubelet keeps from pods: from the node's status, and from configz where that is allowed."""

    capacity: Bytes | None = None
    allocatable: Bytes | None = None
    """Allocatable `memory` in the node's status."""
    kube_reserved: Bytes | None = None
    system_reserved: Bytes | None = None
    eviction_hard: Bytes | None = None
    eviction_soft: Bytes | None = None
    """The memory.available below which it evicts; percentages are converted to bytes of the capacity."""


class NodeWord(msgspec.Struct, frozen=True, kw_only=True):
    """What the API says about the node."""

    absent: bool = False
    """Whether there is no Node object of that name."""
    cordoned: bool = False
    draining: bool = False
    memory_pressure: bool = False
    reserves: KubeletReserves = KubeletReserves()


class Demotion(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's demotion: pages reclaimed from a NUMA node move to a node of a lower memory tier."""

    tiers: Mapping[int, int] = {}
    """The memory tier of each NUMA node; the higher, the slower."""
    enabled: bool = False
    """The kernel's switch for the whole machine."""
    promotes: bool = False
    """Whether the kernel moves used pages back (kernel.numa_balancing contains 2)."""
    missing: str = ""
    """Why demotion is impossible, or why it cannot be switched on; empty where it can."""

    @property
    def here(self) -> bool:
        return not self.missing


class MemoryControls(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine allows to be done to a pod's memory."""

    cgroup: int
    """1 or 2."""
    writable: bool = True
    """Whether the control groups can be written at all."""
    reclaim: bool = False
    """Whether there is memory.reclaim (v2, Linux 5.19)."""
    high: bool = False
    """memory.high (v2)."""
    swap: bool = False
    """Whether a group's swap can be limited."""
    migrate: bool = False
    """Whether pages of other processes may be moved (CAP_SYS_NICE), and their process ids are visible."""
    demotion: Demotion = Demotion(missing="it was not looked for")


def running_together(amounts: Sequence[Bytes], containers: Sequence[ContainerMemory]) -> Bytes:
    """The highest sum of these amounts, one per container, that is requested at one time."""
    of = list(zip(amounts, containers, strict=True))
    return peak(
        (amount for amount, each in of if not each.init),
        ((amount, each.sidecar) for amount, each in of if each.init),
    )
