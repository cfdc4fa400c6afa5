"""Histories of exclusive CPU requests as JSON files, plain or .gz: machines, and who came and went on each.

A history has steps, `["+", id, cpus]` for a container that comes and `["-", id]` for one that goes, and may have what
the kubelet gave each container on the same history: `kubelet_packed`, `kubelet_uncore`.
"""

import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from colocate.errors import UserError, system_reason
from colocate.model.cpu_topology import CpuTopology, LogicalCpu, NumaNode
from colocate.model.cpuset import LARGEST_CPU, CpuSet

_MOST_BYTES = 256 << 20
"""Of a file that is unpacked: a small .gz may hold gigabytes."""
_SHOWN = 60


class CpuRow(msgspec.Struct, frozen=True):
    """One CPU of a machine; its core has a number that no other core of the machine has."""

    cpu: int
    core: int
    l3: int
    numa: int
    socket: int


class Arrival(msgspec.Struct, frozen=True):
    """A container comes."""

    container: int
    cpus: int


class Departure(msgspec.Struct, frozen=True):
    """A container goes."""

    container: int


class CpuHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Who came and went on one machine."""

    machine: str
    kind: str
    """What is asked for there, in a word."""
    load: float
    """What is asked for on average, of what there is."""
    steps: Sequence[Arrival | Departure]
    given: Mapping[str, Mapping[int, CpuSet]]
    """By the allocator that was recorded, the CPUs of each container."""


class _Machine(msgspec.Struct):
    name: str
    cpus: list[CpuRow]


class _History(msgspec.Struct):
    topology: str
    ops: list[list[str | int]]
    dist: str = ""
    load: float = 0.0
    kubelet_packed: dict[str, str] = {}
    kubelet_uncore: dict[str, str] = {}


class _File(msgspec.Struct):
    topologies: list[_Machine]
    histories: list[_History]


def read_histories(path: Path) -> tuple[Mapping[str, CpuTopology], Sequence[CpuHistory]]:
    """The machines and histories of a file; a UserError says where one makes no sense."""
    try:
        read = msgspec.json.decode(_bytes(path), type=_File)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: no histories of CPU requests ({error}); give a file with such") from None
    try:
        machines = {each.name: topology_of(each.cpus) for each in read.topologies}
        histories = [
            _history(each, machines, f"history {number}")
            for number, each in enumerate(read.histories, start=1)
        ]
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    if not histories:
        raise UserError(f"{path}: no history in it; give at least one")
    return machines, histories


def topology_of(rows: Sequence[CpuRow]) -> CpuTopology:
    """The machine of these CPUs; ValueError where there is none of them."""
    rows = sorted(rows, key=lambda row: row.cpu)
    numbers = [row.cpu for row in rows]
    if not rows or numbers[0] < 0 or numbers[-1] > LARGEST_CPU or len(set(numbers)) < len(numbers):
        raise ValueError(f"a machine has different CPUs from 0 to {LARGEST_CPU}; number each once")
    first: dict[int, int] = {}
    for row in rows:
        first.setdefault(row.core, row.cpu)
    cpus = tuple(
        LogicalCpu(id=row.cpu, core=first[row.core], l3=row.l3, node=row.numa, socket=row.socket)
        for row in rows
    )
    nodes = tuple(
        NumaNode(id=number, cpus=CpuSet.of(cpu.id for cpu in cpus if cpu.node == number))
        for number in sorted({cpu.node for cpu in cpus})
    )
    return CpuTopology(cpus=cpus, nodes=nodes)


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(_MOST_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a whole gzip file ({error}); fetch it again") from None
    except OSError as error:
        raise UserError(f"{path}: {system_reason(error)}; name a file that can be read") from error
    if len(data) > _MOST_BYTES:
        raise UserError(f"{path}: more than {_MOST_BYTES >> 20} MiB; give fewer histories")
    return data


def _history(read: _History, machines: Mapping[str, CpuTopology], where: str) -> CpuHistory:
    topology = machines.get(read.topology)
    if topology is None:
        raise ValueError(
            f"{where} is of machine {read.topology[:_SHOWN]!r}, which is not among the topologies"
        )
    steps = [_step(op, f"{where}, step {number}") for number, op in enumerate(read.ops, start=1)]
    _check(steps, len(topology.cpus), where)
    containers = [step.container for step in steps if isinstance(step, Arrival)]
    recorded = {"kubelet_uncore": read.kubelet_uncore, "kubelet_packed": read.kubelet_packed}
    given = {name: _given(sets, containers, f"{where}, {name}") for name, sets in recorded.items() if sets}
    return CpuHistory(
        machine=read.topology, kind=read.dist[:_SHOWN], load=read.load, steps=steps, given=given
    )


def _step(op: list[str | int], where: str) -> Arrival | Departure:
    match op:
        case ["+", int(container), int(cpus)] if cpus > 0:
            return Arrival(container, cpus)
        case ["-", int(container)]:
            return Departure(container)
    raise ValueError(f'{where} is {str(op)[:_SHOWN]}; write ["+", id, cpus] or ["-", id]')


def _check(steps: Sequence[Arrival | Departure], cpus: int, where: str) -> None:
    """ValueError where a container comes twice, goes without having come, or finds no room."""
    running: dict[int, int] = {}
    seen: set[int] = set()
    free = cpus
    for number, step in enumerate(steps, start=1):
        if isinstance(step, Departure):
            if step.container not in running:
                raise ValueError(f"{where}, step {number}: container {step.container} goes and is not there")
            free += running.pop(step.container)
            continue
        if step.container in seen:
            raise ValueError(f"{where}, step {number}: container {step.container} comes a second time")
        if step.cpus > free:
            raise ValueError(
                f"{where}, step {number}: container {step.container} asks for {step.cpus} CPUs, and {free} are free"
            )
        seen.add(step.container)
        running[step.container] = step.cpus
        free -= step.cpus


def _given(sets: Mapping[str, str], containers: Sequence[int], where: str) -> Mapping[int, CpuSet]:
    found = {}
    for container in containers:
        text = sets.get(str(container))
        if text is None:
            raise ValueError(f"{where} has no CPUs for container {container}")
        try:
            found[container] = CpuSet.parse(text)
        except ValueError as error:
            raise ValueError(f"{where}, container {container}: {error}") from None
    return found
