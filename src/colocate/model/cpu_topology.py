"""The CPUs of a machine as the kernel tells them: which threads share a core, an L3, a NUMA node, a socket.

Facts alone: an L3 that is wider than its NUMA node is told as it is, and what the machine does not tell is None.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import msgspec

from colocate.model.cpuset import EMPTY, CpuSet
from colocate.model.memory import Bytes

HERE = 10
ELSEWHERE = 20
"""Distances where the firmware tells none: to oneself, and to any other NUMA node."""

FREE_CCXS = "colocate.dev/free-ccxs"
"""The annotation of a node that tells schedulers which of its CCXs have room."""

_Id = TypeVar("_Id", bound=Hashable)


class LogicalCpu(msgspec.Struct, frozen=True, kw_only=True):
    """One CPU that is online: a thread of a core."""

    id: int
    core: int
    """The lowest CPU of its core: the kernel's own core_id is not unique in a machine."""
    l3: int | None
    """The group of CPUs that share its L3 cache (a CCX); None where the machine tells of no L3."""
    node: int
    die: int | None = None
    socket: int = 0


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node that is online; one without CPUs is memory alone (CXL, persistent memory)."""

    id: int
    cpus: CpuSet
    """Those of its CPUs that are online."""
    memory: Bytes | None = None
    free: Bytes | None = None
    """None where the machine does not tell."""
    distances: Mapping[int, int] = {}
    """By the id of the other node, as the firmware says."""

    def distance(self, other: int) -> int:
        """As the firmware says, else far from all others."""
        return self.distances.get(other, HERE if other == self.id else ELSEWHERE)


class ProcessorKind(msgspec.Struct, frozen=True, kw_only=True):
    """What /proc/cpuinfo says of the processor; all that is needed to judge a virtual machine."""

    vendor: str = ""
    name: str = ""
    virtual: bool = False
    """The processor says that a hypervisor is below it."""
    topoext: bool = False
    """An AMD or Hygon processor tells its L3 groups."""

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
    """Kept from the kernel's load balancing at boot: for those that ask for them alone."""
    kinds: Mapping[str, CpuSet] = {}
    """Of a machine with cores of several kinds, the CPUs of each; empty where all are alike."""
    processor: ProcessorKind | None = None
    doubts: tuple[str, ...] = ()
    """What was found odd while reading, a sentence each."""

    @property
    def online(self) -> CpuSet:
        return CpuSet.of(cpu.id for cpu in self.cpus)

    def cores(self) -> dict[int, CpuSet]:
        return self._by(lambda cpu: cpu.core)

    def l3s(self) -> dict[int, CpuSet]:
        """Empty where the machine tells of none."""
        groups = self._by(lambda cpu: -1 if cpu.l3 is None else cpu.l3)
        groups.pop(-1, None)
        return groups

    def sockets(self) -> dict[int, CpuSet]:
        return self._by(lambda cpu: cpu.socket)

    def dies(self) -> dict[tuple[int, int], CpuSet]:
        """By socket and number; empty where the machine tells of none."""
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
    """A virtual machine as its libvirt domain describes it: as much as decides what it sees of its host's CPUs.
    None and empty where the domain does not say."""

    mode: str = ""
    """Of the element cpu, such as host-passthrough."""
    cache: str = ""
    """The mode of its cache, such as passthrough."""
    required: frozenset[str] = frozenset()
    """CPU features that are required."""
    cores: int | None = None
    threads: int | None = None
    pins: Mapping[int, CpuSet] = {}
    """By virtual CPU, the CPUs of the host that it may run on."""
