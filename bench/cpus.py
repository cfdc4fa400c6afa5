"""One allocation of CPUs at 128, 512 and 2048 CPUs of which 90 % are taken: at most linear in CPUs.

Measured is the mean of three: a container with CPUs of its own comes and goes, one that shares, one that is split.
A machine of four times the CPUs may take four times as long.
"""

import asyncio
import random
import time

from bench.measure import Sample, side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate.cpus import CpuAllocator, CpuAssignment, CpuMode, CpuRequest
from colocate.model.cpu_shapes import CpuShape, machine
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass

SHAPES = {
    128: CpuShape(sockets=2, nodes_per_socket=4, ccx_cores=(4, 4)),
    512: CpuShape(sockets=2, nodes_per_socket=4, ccx_cores=(4,) * 8),
    2048: CpuShape(sockets=8, nodes_per_socket=4, ccx_cores=(4,) * 8),
}
TAKEN = 0.9
MIDDLE = Ratio("an allocation of CPUs on 512 CPUs, 90 % taken", "on 128 CPUs", 4.0)
LARGE = Ratio("an allocation of CPUs on 2048 CPUs, 90 % taken", "on 128 CPUs", 16.0)
RATIOS = (MIDDLE, LARGE)
_TIMES = 3


def bench() -> list[Row]:
    small, middle, large = (used(count) for count in SHAPES)
    return [_row(MIDDLE, middle, small, 512), _row(LARGE, large, small, 2048)]


def used(count: int) -> CpuAllocator:
    """A machine of which nine of ten CPUs are other containers' own, core by core."""
    allocator = CpuAllocator(machine(SHAPES[count]))
    chance = random.Random(count)
    cores = sorted(allocator.tree.topology.cores().values(), key=lambda cpus: cpus.first)
    taken = [cpus for cpus in cores if chance.random() < TAKEN]
    for number in range(0, len(taken), 4):
        cpus = CpuSet.of(cpu for core in taken[number : number + 4] for cpu in core)
        request = CpuRequest(
            pod=f"taken-{number}", container="main", cpu=len(cpus) * 1000, qos=QosClass.GUARANTEED
        )
        allocator.put(CpuAssignment(request=request, mode=CpuMode.EXCLUSIVE, cpus=cpus))
    return allocator


def allocate(allocator: CpuAllocator) -> None:
    """Three containers come and go."""
    for name, cpu, qos in (
        ("own", 4000, QosClass.GUARANTEED),
        ("shared", 1500, QosClass.BURSTABLE),
        ("split", 5500, QosClass.BURSTABLE),
    ):
        change = allocator.assign(CpuRequest(pod="new", container=name, cpu=cpu, qos=qos))
        assert change.assignment is not None
        assert not change.assignment.short
    allocator.release_pod("new")


def _row(ratio: Ratio, ours: CpuAllocator, theirs: CpuAllocator, count: int) -> Row:
    def timed(allocator: CpuAllocator) -> Sample:
        async def seconds() -> float:
            start = time.process_time()
            for _ in range(_TIMES):
                allocate(allocator)
            return (time.process_time() - start) / _TIMES / 3

        return seconds

    measured = asyncio.run(side_by_side(timed(ours), timed(theirs), at_least=10))
    return ratio.row(
        measured.ratio,
        Figure(f"{count} CPUs", measured.ours * 1e3, "ms"),
        Figure("128 CPUs", measured.theirs * 1e3, "ms"),
        Figure("containers", len(ours.assignments)),
    )
