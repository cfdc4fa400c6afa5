"""Requests as tests write them, and what is free by a count of its own."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from colocate.cpus import CpuAllocator, CpuAssignment, CpuMode, CpuRequest, CpuWishes, PoolKind, PoolTree
from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass

Ask: TypeAlias = Callable[..., CpuRequest]
"""`shared` or `guaranteed`."""

_names = itertools.count()


def shared(cpu: float, name: str = "", **more: Any) -> CpuRequest:
    """A burstable container."""
    return _request(cpu, name, QosClass.BURSTABLE, more)


def guaranteed(cpu: float, name: str = "", **more: Any) -> CpuRequest:
    """A guaranteed container: its limit is its request."""
    return _request(cpu, name, QosClass.GUARANTEED, {"limit": round(cpu * 1000), **more})


def wishing(**wishes: Any) -> CpuWishes:
    return CpuWishes(**wishes)


def _request(cpu: float, name: str, qos: QosClass, more: dict[str, Any]) -> CpuRequest:
    pod = str(more.pop("pod", "") or f"pod-{next(_names)}")
    return CpuRequest(pod=pod, container=name or "main", cpu=round(cpu * 1000), **{"qos": qos, **more})


def taken(allocator: CpuAllocator, cpus: CpuSet) -> None:
    """CPUs that another container has alone."""
    request = CpuRequest(pod="taken", container="taken", cpu=len(cpus) * 1000, qos=QosClass.GUARANTEED)
    allocator.put(CpuAssignment(request=request, mode=CpuMode.EXCLUSIVE, cpus=cpus))


def half_filled(topology: CpuTopology) -> dict[str, CpuSet]:
    """Halves of a machine, by what they are halves of."""
    tree = PoolTree(topology)

    def of(pools: Iterable[CpuSet]) -> CpuSet:
        return CpuSet.of(cpu for pool in pools for cpu in pool)

    kinds = {kind: [pool.cpus for pool in tree.kind(kind)] for kind in PoolKind}
    return {
        "sockets": of(kinds[PoolKind.SOCKET][::2]),
        "NUMA nodes": of(kinds[PoolKind.NUMA][::2]),
        "CCXs": of(kinds[PoolKind.CCX][::2]),
        "cores": of(CpuSet(core) for cell in tree.cells for core in cell.cores[::2]),
        "threads": CpuSet.of(
            cpu for cell in tree.cells for core in cell.cores for cpu in list(CpuSet(core))[1:]
        ),
    }
