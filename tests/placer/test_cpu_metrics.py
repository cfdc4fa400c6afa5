"""What the metrics tell of the CPUs that containers were given."""

from colocate.cpus import CpuAllocator, CpuRequest
from colocate.cpus.placer.report import tell_cpus
from colocate.model.cpu_shapes import HYGON, machine
from colocate.telemetry import CPUS_BELOW_LIMIT, CPUS_SHORT


def test_containers_with_fewer_cpus_than_their_limit_are_counted() -> None:
    allocator = CpuAllocator(machine(HYGON))
    for name, cpu, limit in (("burst", 6000, 80_000), ("calm", 6000, 8000), ("short", 200_000, 200_000)):
        allocator.assign(CpuRequest(pod=name, container="main", cpu=cpu, limit=limit))
    tell_cpus(allocator)
    assert (CPUS_BELOW_LIMIT._value.get(), CPUS_SHORT._value.get()) == (2, 1)
    allocator.release(("burst", "main"))
    allocator.release(("short", "main"))
    tell_cpus(allocator)
    assert (CPUS_BELOW_LIMIT._value.get(), CPUS_SHORT._value.get()) == (0, 0)
