"""The CPUs of a machine as the kernel reports them: which threads share a core, an L3, a NUMA node, a socket.

Facts only: an L3 wider than its NUMA node is kept as reported, and what the machine does not report is None.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import msgspec

from colocate.model.cpuset import EMPTY, CpuSet
from colocate.model.memory import Bytes

HERE = 10
ELSEWHERE = 20
"""Default distances where the firmware reports none: to the node itself, and to any other NUMA node."""

FREE_CCXS = "colocate.dev/free-ccxs"
"""The node annotation that tells schedulers which CCXs have room."""

_Id = TypeVar("_Id", bound=Hashable)


class LogicalCpu(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU that is online: a thread of a core."""

    id: int
    core: int
    """The lowest CPU of its core: the kernel's own core_id is not unique in a machine."""
    l3: int | None
    """The group of CPUs that share its L3 cache (a CCX); None where the machine reports no L3."""
    node: int
    die: int | None = None
    socket: int = 0


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node that is online; a node without CPUs has only memory (CXL, persistent memory)."""

    id: int
    cpus: CpuSet
    """Its CPUs that are online."""
    memory: Bytes | None = None
    free: Bytes | None = None
    """Free memory; None where the machine does not report it."""
    distances: Mapping[int, int] = {}
    """Distances by the id of the other node, as the firmware reports them."""

    def distance(self, other: int) -> int:
        """The firmware's distance to another node; the default where it reports none."""
        return self.distances.get(other, HERE if other == self.id else ELSEWHERE)


class ProcessorKind(msgspec.Struct, frozen=True, kw_only=True):
    """What /proc/cpuinfo says about the processor: enough to judge a virtual machine."""

    vendor: str = ""
    name: str = ""
    virtual: bool = False
    """Whether the processor reports a hypervisor."""
    topoext: bool = False
    """Whether an AMD or Hygon processor reports its L3 groups."""

    @property
    def is_amd(self) -> bool:
        return self.vendor in ("AuthenticAMD", "HygonGenuine")


class CpuTopology(msgspec.Struct, frozen=True, kw_only=True):
    """A whole machine."""

    cpus: tuple[LogicalCpu, ...]
    """In the order of their numbers."""
    nodes: tuple[NumaNode, ...]
    offline: CpuSet = EMPTY
    isolated: CpuSet = EMPTY
    """CPUs that the kernel excluded from load balancing at boot; only containers that ask for them get them."""
    kinds: Mapping[str, CpuSet] = {}
    """The CPUs of each kind of core; empty where all cores are alike."""
    processor: ProcessorKind | None = None
    doubts: tuple[str, ...] = ()
    """Contradictions found while reading, one sentence each."""

    @property
    def online(self) -> CpuSet:
        return CpuSet.of(cpu.id for cpu in self.cpus)

    def cores(self) -> dict[int, CpuSet]:
        return self._by(lambda cpu: cpu.core)

    def l3s(self) -> dict[int, CpuSet]:
        """CPUs by L3 group; empty where the machine reports none."""
        groups = self._by(lambda cpu: -1 if cpu.l3 is None else cpu.l3)
        groups.pop(-1, None)
        return groups

    def sockets(self) -> dict[int, CpuSet]:
        return self._by(lambda cpu: cpu.socket)

    def dies(self) -> dict[tuple[int, int], CpuSet]:
        """CPUs by socket and die number; empty where the machine reports none."""
        found = self._by(lambda cpu: (cpu.socket, -1 if cpu.die is None else cpu.die))
        return {key: cpus for key, cpus in found.items() if key[1] >= 0}

    def node(self, number: int) -> NumaNode:
        return next(node for node in self.nodes if node.id == number)

    def _by(self, key: Callable[[LogicalCpu], _Id]) -> dict[_Id, CpuSet]:
        masks: dict[_Id, int] = {}
        for cpu in self.cpus:
            group = key(cpu)
            masks[group] = masks.get(group, 0) | 1 << cpu.id
        return {group: CpuSet(mask) for group, mask in masks.items()}


class VirtualDomain(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a libvirt domain that decide what the virtual machine sees of its host's CPUs; None or empty
    where the domain does not say."""

    mode: str = ""
    """The mode of the element cpu, such as host-passthrough."""
    cache: str = ""
    """The mode of the element cache, such as passthrough."""
    required: frozenset[str] = frozenset()
    """CPU features that are required."""
    cores: int | None = None
    threads: int | None = None
    pins: Mapping[int, CpuSet] = {}
    """The host CPUs that each virtual CPU may run on, by the number of the virtual CPU."""
