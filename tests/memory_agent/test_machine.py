"""One look at the machine, on control groups made of files."""

from pathlib import Path

import msgspec
import pytest

from colocate.host.cgroups import Naming
from colocate.memory.agent.machine import Machine
from colocate.model.memory import NodeMemory, NumaMemory, PodMemory
from colocate.model.pod import QosClass
from tests.support.cgroup_trees import LAYOUTS, FakeTree

MIB = 1 << 20
POD = PodMemory(
    uid="00000000-5b1c-4f0e-9d6c-000000000000",
    qos=QosClass.BEST_EFFORT,
    usage=64 * MIB,
    anon=64 * MIB,
    file=0,
    inactive_file=0,
    numa={0: 48 * MIB, 1: 16 * MIB},
)
NEAR = NumaMemory(id=0, total=1 << 30, free=1 << 29)
ONE = NodeMemory(total=1 << 30, available=1 << 29, free=1 << 29, inactive_file=0, numa=(NEAR,))


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_numa_node_that_comes_while_the_agent_runs_is_looked_at_and_one_that_goes_is_not(
    tmp_path: Path, layout: tuple[int, Naming]
) -> None:
    fake = FakeTree(tmp_path / "cg", *layout)
    fake.write(POD)
    node = ONE
    machine = Machine(mount=fake.mount, read_node=lambda: node)

    async def where() -> object:
        (read,) = (await machine.read()).pods.pods
        return read.numa

    assert await where() is None
    node = msgspec.structs.replace(ONE, numa=(NEAR, NumaMemory(id=1, total=1 << 30, free=0, has_cpus=False)))
    assert await where() == POD.numa
    node = ONE
    assert await where() is None
    machine.close()
