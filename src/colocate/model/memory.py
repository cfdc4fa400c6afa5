"""Memory of a node, its NUMA nodes and its pods, as it was read. Nothing is judged or decided here.

None stands for what the machine does not tell: cgroup v1 has no pressure of a pod, an old kernel no refaults.
A reading is of one moment; all of a turn are taken close together.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from colocate.model.pod import QosClass, peak

Bytes: TypeAlias = int
"""An amount of memory."""

PodUid: TypeAlias = str
"""A pod as the API and the kubelet know it; control groups are found by it."""


class Pressure(msgspec.Struct, frozen=True):
    """Memory pressure (PSI): the share of time lost to it in percent, over 10, 60 and 300 seconds."""

    some10: float = 0.0
    some60: float = 0.0
    some300: float = 0.0
    """Somebody waited for memory."""
    full10: float = 0.0
    full60: float = 0.0
    full300: float = 0.0
    """Everybody did."""
    some_total: int = 0
    full_total: int = 0
    """Microseconds ever lost."""


class NumaMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One NUMA node that is online."""

    id: int
    total: Bytes
    free: Bytes
    file: Bytes = 0
    """Active and inactive file pages (not tmpfs): what can be dropped."""
    inactive_file: Bytes = 0
    has_cpus: bool = True
    """A node without any is memory alone: CXL, persistent memory."""
    distances: Mapping[int, int] = {}
    """By the id of the other node, as the firmware says; 10 to itself."""


class NodeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The whole machine: /proc/meminfo, the NUMA nodes, its pressure."""

    total: Bytes
    """MemTotal."""
    available: Bytes
    """MemAvailable: what the kernel thinks that a new process could have without swapping."""
    free: Bytes
    """MemFree."""
    inactive_file: Bytes
    """Inactive(file): what the kubelet, too, takes for reclaimable."""
    hugepages: Bytes = 0
    """Set aside as huge pages, used or not; neither free nor available."""
    swap_total: Bytes = 0
    swap_free: Bytes = 0
    numa: tuple[NumaMemory, ...] = ()
    pressure: Pressure | None = None

    @property
    def working_set(self) -> Bytes:
        """What is used by the kubelet's reckoning, which its eviction goes by: active page cache included."""
        return max(0, self.total - self.free - self.inactive_file)


class OurHigh(msgspec.Struct, frozen=True):
    """A memory.high that was set here, for a debt."""

    before: Bytes | None
    """What it was then; None: there was none."""


class PodMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's control group, everything in it together."""

    uid: PodUid
    qos: QosClass
    usage: Bytes
    anon: Bytes
    file: Bytes
    """Active and inactive file pages (not tmpfs): what can be dropped."""
    inactive_file: Bytes
    shmem: Bytes = 0
    """tmpfs and shared memory: held as firmly as anonymous memory."""
    swap: Bytes | None = None
    """What lies in swap."""
    limit: Bytes | None = None
    """memory.max or memory.limit_in_bytes; None where there is no limit."""
    high: Bytes | None = None
    """memory.high (v2); None where there is none."""
    our_high: OurHigh | None = None
    """Where it is marked as ours."""
    swap_limit: Bytes | None = None
    """How much swap it may take (v2: memory.swap.max; v1: memsw less memory); None where there is no limit."""
    pressure: Pressure | None = None
    refaults: int | None = None
    """Pages of cache and anonymous memory ever read back soon after they were dropped."""
    numa: Mapping[int, Bytes] | None = None
    """By NUMA node, where its anonymous and file pages lie; without inactive file pages where the machine tells these
    by node (v2)."""

    @property
    def working_set(self) -> Bytes:
        """What is used by the kubelet's reckoning."""
        return max(0, self.usage - self.inactive_file)


class ContainerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one container of a pod asks for."""

    name: str
    blocks: int = 0
    limit: Bytes | None = None
    """None, or 0 as Kubernetes has it: no limit."""
    request: Bytes | None = None
    init: bool = False
    """It runs before the others; with `sidecar`, and from then on beside them."""
    sidecar: bool = False

    @property
    def has_ended_by_start(self) -> bool:
        """Whether it is one of those that end before the pod counts as started."""
        return self.init and not self.sidecar


class PodIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What the API says of a pod; defaults where it has not been asked yet."""

    uid: PodUid
    namespace: str
    name: str
    qos: QosClass = QosClass.BEST_EFFORT
    priority: int = 0
    created: float | None = None
    """Seconds since the epoch."""
    controller: str = ""
    """The kind of what would create it again, such as ReplicaSet; empty for a bare pod."""
    started: bool = False
    """Its init containers have ended, but for sidecars."""
    static: bool = False
    """A mirror of a file on the node: the API cannot evict it."""
    may_move: bool = False
    """Its annotation allows that it is created again on another node."""
    terminating: bool = False
    limit: Bytes | None = None
    whole_request: Bytes | None = None
    """Of the pod as a whole, where it says so itself (pod-level resources)."""
    overhead: Bytes = 0
    """What its runtime needs besides its containers."""
    containers: tuple[ContainerMemory, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def may_hold_blocks(self) -> bool:
        """Whether it asks for any, as far as is known."""
        return not self.containers or any(each.blocks for each in self.containers)

    @property
    def request(self) -> Bytes:
        """The memory that the scheduler set aside for it: what it says as a whole goes before its containers' sum."""
        containers = running_together([each.request or 0 for each in self.containers], self.containers)
        # A limit alone: the API server has it ask for what its containers do, or else for all of the limit.
        asked = self.whole_request or containers or self.limit or 0
        return asked + self.overhead


class KubeletReserves(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet keeps from pods: from the node's status, and from its configz where that is allowed."""

    capacity: Bytes | None = None
    allocatable: Bytes | None = None
    """`memory` in the node's status."""
    kube_reserved: Bytes | None = None
    system_reserved: Bytes | None = None
    eviction_hard: Bytes | None = None
    eviction_soft: Bytes | None = None
    """memory.available below which it evicts, percentages already taken of the capacity."""


class NodeWord(msgspec.Struct, frozen=True, kw_only=True):
    """What the API says of the node itself."""

    absent: bool = False
    """There is no Node object of that name."""
    cordoned: bool = False
    draining: bool = False
    memory_pressure: bool = False
    reserves: KubeletReserves = KubeletReserves()


class Demotion(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel has of demotion: what it reclaims from a NUMA node goes to one of a lower memory tier."""

    tiers: Mapping[int, int] = {}
    """The memory tier of each NUMA node; the higher, the slower."""
    enabled: bool = False
    """The kernel's switch, which is one for the whole machine."""
    promotes: bool = False
    """Whether the kernel moves pages back that are used (kernel.numa_balancing has 2)."""
    missing: str = ""
    """Why nothing would be demoted, whatever the switch says, or why it cannot be switched on; empty where it can."""

    @property
    def here(self) -> bool:
        return not self.missing


class MemoryControls(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine lets one do to a pod's memory."""

    cgroup: int
    """1 or 2."""
    writable: bool = True
    """Whether the control groups can be written at all."""
    reclaim: bool = False
    """memory.reclaim (v2, Linux 5.19)."""
    high: bool = False
    """memory.high (v2)."""
    swap: bool = False
    """Whether a group's swap can be limited."""
    migrate: bool = False
    """Whether pages of other processes may be moved (CAP_SYS_NICE), and their ids are seen."""
    demotion: Demotion = Demotion(missing="nobody has looked for it")


def running_together(amounts: Sequence[Bytes], containers: Sequence[ContainerMemory]) -> Bytes:
    """The most of those amounts, one for each container, that is asked for at one time."""
    of = list(zip(amounts, containers, strict=True))
    return peak(
        (amount for amount, each in of if not each.init),
        ((amount, each.sidecar) for amount, each in of if each.init),
    )
