"""The pools of a machine: CCXs, NUMA nodes, sockets and the machine, ordered by inclusion, with their cores.

A CCX is the part of an L3 group that lies in one NUMA node: an L3 that is wider is cut. Where the machine tells of no
L3, the NUMA node is the CCX. Sizes are those of every pool itself, never of the first one. Nothing is chosen here.
"""

from enum import StrEnum
from functools import cached_property

import msgspec

from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import CpuSet


class PoolKind(StrEnum):
    """From the smallest to the largest, on most machines."""

    CCX = "ccx"
    NUMA = "numa"
    SOCKET = "socket"
    MACHINE = "machine"


class CpuPool(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the machine that a container may be put on."""

    index: int
    """Its place in `PoolTree.pools`."""
    name: str
    """Stable as long as the machine tells the same ids: `ccx 3`, `numa 1`, `socket 0`, `machine`."""
    kind: PoolKind
    cpus: CpuSet
    nodes: frozenset[int]
    """The NUMA nodes of its CPUs."""

    @property
    def title(self) -> str:
        """As sentences call it."""
        if self.kind is PoolKind.MACHINE:
            return "the whole machine"
        number = self.name.partition(" ")[2]
        return {"ccx": "CCX", "numa": "NUMA node", "socket": "socket"}[self.kind] + f" {number}"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A CCX as the search for exclusive CPUs sees it."""

    pool: int
    l3: int
    """The L3 group as the machine tells it, of which this may be a part."""
    node: int
    socket: int
    mask: int
    cores: tuple[int, ...]
    """The CPUs of each core, as bits."""


class PoolTree:
    """All pools of a machine, and which of them hold which others."""

    def __init__(self, topology: CpuTopology) -> None:
        self.topology = topology
        self.pools: list[CpuPool] = []
        self.cells: list[Cell] = []
        self._add_ccxs()
        for node in topology.nodes:
            if node.cpus:
                self._add(PoolKind.NUMA, f"numa {node.id}", node.cpus)
        for socket, cpus in sorted(topology.sockets().items()):
            self._add(PoolKind.SOCKET, f"socket {socket}", cpus)
        self._add(PoolKind.MACHINE, "machine", topology.online)
        self.by_name = {pool.name: pool for pool in self.pools}
        rank = {PoolKind.CCX: 0, PoolKind.NUMA: 1, PoolKind.SOCKET: 2, PoolKind.MACHINE: 3}
        if self.sockets_in_nodes:
            rank |= {PoolKind.SOCKET: 1, PoolKind.NUMA: 2}
        self.holders: list[tuple[int, ...]] = [
            tuple(
                other.index
                for other in self.pools
                if pool.cpus <= other.cpus and rank[pool.kind] < rank[other.kind]
            )
            for pool in self.pools
        ]
        """Of each pool, those that it lies in."""

    def kind(self, kind: PoolKind) -> list[CpuPool]:
        return [pool for pool in self.pools if pool.kind is kind]

    @property
    def machine(self) -> CpuPool:
        return self.pools[-1]

    @cached_property
    def sockets_in_nodes(self) -> bool:
        """Whether a NUMA node spans sockets, and not the other way round."""
        nodes = [node.cpus for node in self.topology.nodes if node.cpus]
        sockets = list(self.topology.sockets().values())
        return len(nodes) < len(sockets) and all(any(socket <= node for node in nodes) for socket in sockets)

    def distance(self, one: int, other: int) -> int:
        """Between two NUMA nodes, as the firmware says."""
        return self._distances[one].get(other, 0)

    def _add(self, kind: PoolKind, name: str, cpus: CpuSet) -> CpuPool:
        nodes = frozenset(node.id for node in self.topology.nodes if not node.cpus.isdisjoint(cpus))
        pool = CpuPool(index=len(self.pools), name=name, kind=kind, cpus=cpus, nodes=nodes)
        self.pools.append(pool)
        return pool

    def _add_ccxs(self) -> None:
        topology = self.topology
        self._distances = {
            one.id: {other.id: one.distance(other.id) for other in topology.nodes} for one in topology.nodes
        }
        parts: dict[tuple[int, int, int], int] = {}
        cores: dict[tuple[int, int, int], dict[int, int]] = {}
        spans: dict[int, set[tuple[int, int]]] = {}
        for cpu in topology.cpus:
            l3 = -1 - cpu.node if cpu.l3 is None else cpu.l3
            key = (l3, cpu.node, cpu.socket)
            parts[key] = parts.get(key, 0) | 1 << cpu.id
            own = cores.setdefault(key, {})
            own[cpu.core] = own.get(cpu.core, 0) | 1 << cpu.id
            spans.setdefault(l3, set()).add((cpu.node, cpu.socket))
        for (l3, node, socket), mask in sorted(parts.items(), key=lambda part: part[1] & -part[1]):
            whole = f"{node}" if l3 < 0 else f"{l3}"
            cut = f".{node}" if len({home for home, _ in spans[l3]}) > 1 else ""
            cut += f".{socket}" if len({home for _, home in spans[l3]}) > 1 else ""
            pool = self._add(PoolKind.CCX, f"ccx {whole}{cut}", CpuSet(mask))
            own = cores[l3, node, socket]
            ordered = tuple(own[core] for core in sorted(own))
            self.cells.append(
                Cell(pool=pool.index, l3=l3, node=node, socket=socket, mask=mask, cores=ordered)
            )
