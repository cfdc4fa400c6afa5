"""Writes a made machine as the files of sysfs, with whatever real machines leave out left out."""

import bz2
import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import CpuSet

CPU = "devices/system/cpu"
NODE = "devices/system/node"


def mask_text(cpus: CpuSet) -> str:
    """A mask as the kernel writes it."""
    shifts = range((max(1, cpus.mask.bit_length()) - 1) // 32 * 32, -1, -32)
    return ",".join(f"{cpus.mask >> shift & 0xFFFFFFFF:08x}" for shift in shifts)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine tells."""

    l3_ids: bool = True
    l3_lists: bool = True
    cpulists: bool = True
    """Of NUMA nodes; masks otherwise."""
    node_links: bool = False
    """Links cpuN/nodeM, in the place of lists and masks of nodes."""
    sibling_lists: bool = True
    siblings: bool = True
    distances: bool = True
    memory: bool = True


def files(topology: CpuTopology, told: Told | None = None) -> dict[str, str]:
    """Paths below /sys, and what they say."""
    told = told or Told()
    written = {
        f"{CPU}/online": str(topology.online),
        f"{CPU}/offline": str(topology.offline),
        f"{CPU}/isolated": str(topology.isolated),
    }
    cores, l3s = topology.cores(), topology.l3s()
    for cpu in topology.cpus:
        own = f"{CPU}/cpu{cpu.id}"
        written[f"{own}/topology/physical_package_id"] = str(cpu.socket)
        written[f"{own}/topology/core_id"] = str(cpu.core)
        if cpu.die is not None:
            written[f"{own}/topology/die_id"] = str(cpu.die)
        if told.siblings and told.sibling_lists:
            written[f"{own}/topology/thread_siblings_list"] = str(cores[cpu.core])
        elif told.siblings:
            written[f"{own}/topology/thread_siblings"] = mask_text(cores[cpu.core])
        written |= _cache(f"{own}/cache/index0", 1, cpu.core, cores[cpu.core])
        if cpu.l3 is not None:
            written |= _cache(f"{own}/cache/index3", 3, cpu.l3, l3s[cpu.l3], told)
        if told.node_links:
            written[f"{own}/node{cpu.node}"] = ""
    for node in topology.nodes:
        own = f"{NODE}/node{node.id}"
        if not told.node_links:
            name = "cpulist" if told.cpulists else "cpumap"
            written[f"{own}/{name}"] = str(node.cpus) if told.cpulists else mask_text(node.cpus)
        if told.distances:
            written[f"{own}/distance"] = " ".join(str(node.distance(other.id)) for other in topology.nodes)
        if told.memory and node.memory is not None:
            kib, free = node.memory >> 10, (node.free or 0) >> 10
            written[f"{own}/meminfo"] = (
                f"Node {node.id} MemTotal:       {kib} kB\nNode {node.id} MemFree:        {free} kB"
            )
        written.setdefault(f"{own}/numastat", "")
    return {path: f"{text}\n" for path, text in written.items()}


def write(root: Path, contents: dict[str, str]) -> Path:
    """The files below a folder."""
    for path, text in contents.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def archive(
    contents: dict[str, str], packing: str = "", prefix: str = "sys/", extra: Iterable[tarfile.TarInfo] = ()
) -> bytes:
    """The files as a tar archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:") as tar:
        for path, text in contents.items():
            member = tarfile.TarInfo(prefix + path)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
        for member in extra:
            tar.addfile(member)
    if packing == "gz":
        return gzip.compress(packed.getvalue())
    return bz2.compress(packed.getvalue()) if packing == "bz2" else packed.getvalue()


def _cache(own: str, level: int, number: int, cpus: CpuSet, told: Told | None = None) -> dict[str, str]:
    told = told or Told()
    written = {f"{own}/level": str(level), f"{own}/type": "Unified" if level > 1 else "Data"}
    if told.l3_ids:
        written[f"{own}/id"] = str(number)
    if told.l3_lists:
        written[f"{own}/shared_cpu_list"] = str(cpus)
    return written
