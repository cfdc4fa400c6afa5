"""Reads the memory of the whole machine: /proc/meminfo, the NUMA nodes in sysfs, the pressure.

A NUMA node may go offline while it is read; it is then left out, without an error.
"""

import errno
from pathlib import Path

from colocate.errors import Unavailable
from colocate.host import memory_files
from colocate.host.memory_files import Garbled
from colocate.model.memory import Bytes, NodeMemory, NumaMemory, Pressure

PROC = Path("/proc")
SYS = Path("/sys")

_GONE = (errno.ENOENT, errno.ENODEV)
_TRIES = 3


def read_node_memory(proc: Path = PROC, sys: Path = SYS) -> NodeMemory:
    """The memory of the machine now; Unavailable where /proc/meminfo cannot be read or parsed."""
    path = proc / "meminfo"
    try:
        data = path.read_bytes()
        return NodeMemory(
            total=_needed(data, "MemTotal"),
            available=_needed(data, "MemAvailable"),
            free=_needed(data, "MemFree"),
            inactive_file=_needed(data, "Inactive(file)"),
            hugepages=_hugepages(data),
            swap_total=memory_files.kibibytes(data, "SwapTotal") or 0,
            swap_free=memory_files.kibibytes(data, "SwapFree") or 0,
            numa=read_numa(sys),
            pressure=read_pressure(proc),
        )
    except (OSError, Garbled) as error:
        raise Unavailable(f"the memory of this machine cannot be read from {path}: {error}") from error


def read_pressure(proc: Path = PROC) -> Pressure | None:
    """The machine's memory pressure; None where the kernel does not measure it."""
    try:
        return memory_files.pressure((proc / "pressure" / "memory").read_bytes())
    except OSError as error:
        # A kernel booted with psi=0 has the file and refuses to open it.
        if error.errno in (*_GONE, errno.EOPNOTSUPP):
            return None
        raise


def read_numa(sys: Path = SYS) -> tuple[NumaMemory, ...]:
    """The NUMA nodes that are online; none on a kernel without NUMA."""
    folder = sys / "devices" / "system" / "node"
    for _ in range(_TRIES):
        ids = _online(folder)
        nodes = tuple(node for each in ids if (node := _read_numa_node(folder, each, ids)))
        # Distances are listed for the nodes online, so they match only if none came or went meanwhile.
        if ids == _online(folder):
            return nodes
    return nodes


def _online(folder: Path) -> list[int]:
    try:
        return memory_files.id_list((folder / "online").read_bytes())
    except FileNotFoundError:
        return []


def _read_numa_node(folder: Path, node: int, online: list[int]) -> NumaMemory | None:
    own = folder / f"node{node}"
    try:
        data = (own / "meminfo").read_bytes()
        cpus = (own / "cpulist").read_bytes()
        distances = [memory_files.number(each) for each in (own / "distance").read_bytes().split()]
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise
    inactive = memory_files.kibibytes(data, "Inactive(file)") or 0
    return NumaMemory(
        id=node,
        total=_needed(data, "MemTotal"),
        free=_needed(data, "MemFree"),
        file=inactive + (memory_files.kibibytes(data, "Active(file)") or 0),
        inactive_file=inactive,
        has_cpus=bool(cpus.strip()),
        distances=dict(zip(online, distances, strict=True)) if len(online) == len(distances) else {},
    )


def _needed(data: bytes, name: str) -> Bytes:
    amount = memory_files.kibibytes(data, name)
    if amount is None:
        raise Garbled(f"there is no line {name!r}")
    return amount


def _hugepages(data: bytes) -> Bytes:
    """Huge pages of every size; kernels before 4.19 list only the default size."""
    every = memory_files.kibibytes(data, "Hugetlb")
    if every is not None:
        return every
    count = memory_files.plain_count(data, "HugePages_Total") or 0
    return count * (memory_files.kibibytes(data, "Hugepagesize") or 0)
