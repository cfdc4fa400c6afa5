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
"""The uid of a pod in the API and at the kubelet; its control group is found by it."""


class Pressure(msgspec.Struct, frozen=True):
    """Memory pressure (PSI): the share of time lost to it in percent, over 10, 60 and 300 seconds."""

    some10: float = 0.0
    some60: float = 0.0
    some300: float = 0.0
    """`some`: at least one process waited for memory."""
    full10: float = 0.0
    full60: float = 0.0
    full300: float = 0.0
    """`full`: all processes waited for memory."""
    some_total: int = 0
    """Microseconds ever lost while at least one process waited."""
    full_total: int = 0
    """Microseconds ever lost while all processes waited."""


class NumaMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One NUMA node that is online."""

    id: int
    total: Bytes
    free: Bytes
    file: Bytes = 0
    """Active and inactive file pages (not tmpfs): what can be dropped."""
    inactive_file: Bytes = 0
    has_cpus: bool = True
    """A node without CPUs has only memory: CXL, persistent memory."""
    distances: Mapping[int, int] = {}
    """Distances by the id of the other node, from the firmware; 10 to itself."""


class NodeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The whole machine: /proc/meminfo, the NUMA nodes, its pressure."""

    total: Bytes
    """MemTotal."""
    available: Bytes
    """MemAvailable: the kernel's estimate of what a new process could use without swapping."""
    free: Bytes
    """MemFree."""
    inactive_file: Bytes
    """Inactive(file): the kubelet also counts it as reclaimable."""
    hugepages: Bytes = 0
    """Reserved as huge pages, used or not; neither free nor available."""
    swap_total: Bytes = 0
    swap_free: Bytes = 0
    numa: tuple[NumaMemory, ...] = ()
    pressure: Pressure | None = None

    @property
    def working_set(self) -> Bytes:
        """What the kubelet counts as used when it evicts, including active page cache."""
        return max(0, self.total - self.free - self.inactive_file)


class OurHigh(msgspec.Struct, frozen=True):
    """A memory.high that the agent has set."""

    before: Bytes | None
    """memory.high before; None: there was no limit."""


class PodMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a pod's control group, including its containers."""

    uid: PodUid
    qos: QosClass
    usage: Bytes
    anon: Bytes
    file: Bytes
    """Active and inactive file pages (not tmpfs): what can be dropped."""
    inactive_file: Bytes
    shmem: Bytes = 0
    """tmpfs and shared memory, which the kernel cannot drop."""
    swap: Bytes | None = None
    """Bytes in swap."""
    limit: Bytes | None = None
    """memory.max or memory.limit_in_bytes; None where there is no limit."""
    high: Bytes | None = None
    """memory.high (v2); None where there is none."""
    our_high: OurHigh | None = None
    """The mark that `high` is ours; None where there is none."""
    swap_limit: Bytes | None = None
    """How much swap it may take (v2: memory.swap.max; v1: memsw less memory); None where there is no limit."""
    pressure: Pressure | None = None
    refaults: int | None = None
    """Number of pages that were ever read back soon after they were dropped."""
    numa: Mapping[int, Bytes] | None = None
    """By NUMA node, where its anonymous and file pages lie; without inactive file pages where the machine tells these
    by node (v2)."""

    @property
    def working_set(self) -> Bytes:
        """What the kubelet counts as used."""
        return max(0, self.usage - self.inactive_file)


class ContainerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one container of a pod requests."""

    name: str
    blocks: int = 0
    limit: Bytes | None = None
    """None, or 0 as Kubernetes has it: no limit."""
    request: Bytes | None = None
    init: bool = False
    """Whether it is an init container; with `sidecar`, one that keeps running."""
    sidecar: bool = False

    @property
    def has_ended_by_start(self) -> bool:
        """Whether it ends before the pod counts as started."""
        return self.init and not self.sidecar


class PodIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What the API says of a pod; the defaults where it has not answered yet."""

    uid: PodUid
    namespace: str
    name: str
    qos: QosClass = QosClass.BEST_EFFORT
    priority: int = 0
    created: float | None = None
    """Seconds since the epoch."""
    controller: str = ""
    """The kind of its controller, such as ReplicaSet; empty for a bare pod."""
    started: bool = False
    """Whether its init containers, except sidecars, have ended."""
    static: bool = False
    """Whether it is a static pod, made from a file on the node: the API cannot evict it."""
    may_move: bool = False
    """Whether its annotation allows the agent to create it again on another node."""
    terminating: bool = False
    limit: Bytes | None = None
    """Memory limit of the pod as a whole (pod-level resources); None where it has none."""
    whole_request: Bytes | None = None
    """Memory request of the pod as a whole (pod-level resources); None where it has none."""
    overhead: Bytes = 0
    """What its runtime class needs besides its containers."""
    containers: tuple[ContainerMemory, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def may_hold_blocks(self) -> bool:
        """Whether it requests blocks, or its containers are unknown."""
        return not self.containers or any(each.blocks for each in self.containers)

    @property
    def request(self) -> Bytes:
        """The memory that the scheduler reserves for it: its pod-level request, or else the sum of its containers."""
        containers = running_together([each.request or 0 for each in self.containers], self.containers)
        # With only a pod-level limit, the API server takes the containers' requests, or else the limit.
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
    """What the API says of the node."""

    absent: bool = False
    """There is no Node object of that name."""
    cordoned: bool = False
    draining: bool = False
    memory_pressure: bool = False
    reserves: KubeletReserves = KubeletReserves()


class Demotion(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's demotion: memory reclaimed from a NUMA node moves to one of a lower memory tier."""

    tiers: Mapping[int, int] = {}
    """The memory tier of each NUMA node; the higher, the slower."""
    enabled: bool = False
    """The kernel's switch, for the whole machine."""
    promotes: bool = False
    """Whether the kernel moves used pages back (kernel.numa_balancing has 2)."""
    missing: str = ""
    """Why this machine cannot demote, or the switch cannot be set; empty where it can."""

    @property
    def here(self) -> bool:
        return not self.missing


class MemoryControls(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine allows the agent to do to a pod's memory."""

    cgroup: int
    """1 or 2."""
    writable: bool = True
    """Whether the control groups can be written."""
    reclaim: bool = False
    """memory.reclaim (v2, Linux 5.19)."""
    high: bool = False
    """memory.high (v2)."""
    swap: bool = False
    """Whether a group's swap can be limited."""
    migrate: bool = False
    """Whether pages of other processes can be moved (CAP_SYS_NICE), and their ids are visible."""
    demotion: Demotion = Demotion(missing="not looked for yet")


def running_together(amounts: Sequence[Bytes], containers: Sequence[ContainerMemory]) -> Bytes:
    """The largest sum of `amounts`, one per container, of containers that run at the same time."""
    of = list(zip(amounts, containers, strict=True))
    return peak(
        (amount for amount, each in of if not each.init),
        ((amount, each.sidecar) for amount, each in of if each.init),
    )
