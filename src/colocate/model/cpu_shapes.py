"""Made-up machines of any shape, from a few numbers: for tests, benches and `colocate cpus plan --shape`.

A shape says how many sockets, NUMA nodes, CCXs, cores and threads there are, and what the machine does not report.
"""

import re
from enum import StrEnum

import msgspec

from colocate.model.cpu_topology import HERE, CpuTopology, LogicalCpu, NumaNode
from colocate.model.cpuset import EMPTY, LARGEST_CPU, CpuSet
from colocate.model.memory import Bytes

_GIB = 1 << 30
_SHAPE = re.compile(r"\d{1,5}(x\d{1,5}){4}", re.ASCII)


class ThreadOrder(StrEnum):
    """How threads are numbered."""

    FAR = "far"
    """All first threads, then all second ones: the numbering of most servers' firmware."""
    NEAR = "near"
    """The threads of a core one after the other: QEMU's numbering."""


class CpuShape(msgspec.Struct, frozen=True, kw_only=True):
    """A machine in numbers. CCXs of a node may differ: `ccx_cores` has the number of cores of each; all nodes are
    alike."""

    sockets: int = 1
    nodes_per_socket: int = 1
    ccx_cores: tuple[int, ...] = (4,)
    threads: int = 2
    thread_order: ThreadOrder = ThreadOrder.FAR
    single_thread_cores: int = 0
    """How many of the last cores of every CCX have only one thread (a hybrid machine)."""
    stride: int = 1
    """CPU numbers are multiples of this, which makes ids sparse."""
    tells_l3: bool = True
    tells_dies: bool = False
    """Whether the machine reports each NUMA node as a die."""
    l3_per_socket: bool = False
    """One L3 over all NUMA nodes of a socket, as sub-NUMA clustering has it."""
    node_memory: Bytes | None = 64 * _GIB
    memory_only: tuple[Bytes, ...] = ()
    """Sizes of the NUMA nodes without CPUs."""
    same_socket: int = 16
    other_socket: int = 28
    distances: tuple[tuple[int, ...], ...] = ()
    """The matrix of distances, row by row, where the two figures above are not enough."""
    offline: CpuSet = EMPTY
    isolated: CpuSet = EMPTY

    @property
    def nodes(self) -> int:
        return self.sockets * self.nodes_per_socket

    @property
    def cpus(self) -> int:
        return self.nodes * sum(
            self._threads(place, cores) for cores in self.ccx_cores for place in range(cores)
        )

    def _threads(self, place: int, cores: int) -> int:
        return 1 if place >= cores - self.single_thread_cores else self.threads


HYGON = CpuShape(
    sockets=2,
    nodes_per_socket=4,
    ccx_cores=(4, 4),
    distances=(
        (10, 16, 16, 16, 28, 28, 22, 28),
        (16, 10, 16, 16, 28, 28, 28, 22),
        (16, 16, 10, 16, 22, 28, 28, 28),
        (16, 16, 16, 10, 28, 22, 28, 28),
        (28, 28, 22, 28, 10, 16, 16, 16),
        (28, 28, 28, 22, 16, 10, 16, 16),
        (22, 28, 28, 28, 16, 16, 10, 16),
        (28, 22, 28, 28, 16, 16, 16, 10),
    ),
)
"""A Hygon server: 128 CPUs in 16 CCXs on 8 NUMA nodes; each node has one near partner in the other socket."""

SHAPES = {
    "hygon": HYGON,
    "epyc-7451": CpuShape(sockets=2, nodes_per_socket=4, ccx_cores=(3, 3), node_memory=None),
    "epyc": CpuShape(sockets=2, nodes_per_socket=1, ccx_cores=(8,) * 12, other_socket=32),
    "xeon": CpuShape(sockets=2, ccx_cores=(32,), other_socket=21),
    "xeon-snc": CpuShape(sockets=2, nodes_per_socket=2, ccx_cores=(20,), l3_per_socket=True, same_socket=12),
    "arm": CpuShape(sockets=2, nodes_per_socket=2, ccx_cores=(32,), threads=1, tells_l3=False),
    "hybrid": CpuShape(ccx_cores=(16,), single_thread_cores=8),
}
"""Machines by name."""


def parse_shape(text: str) -> CpuShape:
    """A name of `SHAPES`, or SOCKETSxNODESxCCXSxCORESxTHREADS; ValueError for anything else."""
    if text in SHAPES:
        return SHAPES[text]
    if not _SHAPE.fullmatch(text):
        raise ValueError(
            f"{text[:40]!r} is no shape; write {', '.join(SHAPES)}, or sockets x NUMA nodes x CCXs x cores x "
            "threads, each per one of the former, such as 2x4x2x4x2"
        )
    sockets, nodes, ccxs, cores, threads = map(int, text.split("x"))
    count = sockets * nodes * ccxs * cores * threads
    if not 0 < count <= LARGEST_CPU + 1:
        raise ValueError(f"{text} has {count} CPUs; a machine has 1 to {LARGEST_CPU + 1}")
    if sockets * nodes > 1024 or threads > 16:
        raise ValueError(f"{text} has more than 1024 NUMA nodes or 16 threads per core, which no machine has")
    return CpuShape(sockets=sockets, nodes_per_socket=nodes, ccx_cores=(cores,) * ccxs, threads=threads)


def machine(shape: CpuShape) -> CpuTopology:
    """The machine of that shape."""
    cpus = [cpu for cpu in _cpus(shape) if cpu.id not in shape.offline]
    by_node: dict[int, list[int]] = {}
    for cpu in cpus:
        by_node.setdefault(cpu.node, []).append(cpu.id)
    count = shape.nodes + len(shape.memory_only)
    nodes = [
        NumaNode(
            id=number,
            cpus=CpuSet.of(by_node.get(number, ())),
            memory=(memory := _memory(shape, number)),
            free=memory,
            distances={other: _distance(shape, number, other) for other in range(count)},
        )
        for number in range(count)
    ]
    return CpuTopology(
        cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)),
        nodes=tuple(nodes),
        offline=shape.offline,
        isolated=shape.isolated,
    )


def _cpus(shape: CpuShape) -> list[LogicalCpu]:
    cores = [
        (node, ccx, shape._threads(place, size))
        for node in range(shape.nodes)
        for ccx, size in enumerate(shape.ccx_cores)
        for place in range(size)
    ]
    numbers: list[list[int]] = [[] for _ in cores]
    if shape.thread_order is ThreadOrder.NEAR:
        order = [core for core, (_, _, threads) in enumerate(cores) for _ in range(threads)]
    else:
        order = [core for turn in range(shape.threads) for core, one in enumerate(cores) if turn < one[2]]
    for number, core in enumerate(order):
        numbers[core].append(number * shape.stride)
    return [
        LogicalCpu(
            id=number,
            core=own[0],
            l3=_l3(shape, node, ccx),
            node=node,
            die=node % shape.nodes_per_socket if shape.tells_dies else None,
            socket=node // shape.nodes_per_socket,
        )
        for own, (node, ccx, _) in zip(numbers, cores, strict=True)
        for number in own
    ]


def _l3(shape: CpuShape, node: int, ccx: int) -> int | None:
    if not shape.tells_l3:
        return None
    return node // shape.nodes_per_socket if shape.l3_per_socket else node * len(shape.ccx_cores) + ccx


def _memory(shape: CpuShape, node: int) -> Bytes | None:
    return shape.node_memory if node < shape.nodes else shape.memory_only[node - shape.nodes]


def _distance(shape: CpuShape, one: int, other: int) -> int:
    if one == other:
        return HERE
    if one < len(shape.distances) and other < len(shape.distances):
        return shape.distances[one][other]
    if max(one, other) >= shape.nodes:
        return 2 * shape.other_socket
    same = one // shape.nodes_per_socket == other // shape.nodes_per_socket
    return shape.same_socket if same else shape.other_socket
