"""A placer for tests: on a made machine, its state in a folder of the test, its runtime made of plain files."""

from pathlib import Path

from colocate.clock import Clock, ManualClock, SystemClock
from colocate.cpus import CpuMode
from colocate.cpus.placer.keeper import DEADLINE, PlacementKeeper
from colocate.cpus.placer.machine import PlacementMachine
from colocate.cpus.placer.placer import Placer
from colocate.cpus.placer.section import CpusSection
from colocate.cpus.placer.store import PlacementStore
from colocate.cpus.placer.upkeep import Upkeep
from colocate.errors import UserError
from colocate.kubelet.paths import KubeletPaths
from colocate.model.cpu_shapes import CpuShape, machine
from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import EMPTY, CpuSet
from tests.placer.fake_runtime import FakeRuntime

SHAPE = CpuShape(sockets=1, nodes_per_socket=2, ccx_cores=(2, 2))
"""16 CPUs in 4 CCXs of 4 (two cores of two threads) on 2 NUMA nodes."""
SECTION = CpusSection(wish_namespaces=("default",))


class PatientClock(SystemClock):
    """Never cuts a decision off: a busy machine may take longer for one than a node's deadline allows."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(3600 if seconds == DEADLINE else seconds)


class PlacingTest:
    """A machine, its runtime, and one placer after the other."""

    def __init__(
        self,
        folder: Path,
        shape: CpuShape = SHAPE,
        section: CpusSection = SECTION,
        *,
        nri: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.folder = folder
        self.shape = shape
        self.section = section
        self.clock = clock or PatientClock()
        self.blind = ""
        """Why the CPU topology cannot be read; empty: it can."""
        topology = machine(shape)
        mems = tuple(node.id for node in topology.nodes)
        self.runtime = FakeRuntime(folder / "cgroup", topology.online, mems, nri=nri)
        self.placer = self.begun()

    def begun(self) -> Placer:
        """A placer that has restored the stored state."""
        facts = PlacementMachine(
            self._read,
            mount=self.runtime.mount,
            kubelet=KubeletPaths(self.folder / "kubelet"),
            clock=ManualClock(),  # A busy machine may take longer than a kubelet is given.
        )
        self.placer = Placer(self.section, PlacementStore(self.folder / "state"), facts, self.clock)
        self.upkeep = Upkeep(self.placer)
        self.keeper.begin()
        return self.placer

    @property
    def keeper(self) -> PlacementKeeper:
        return self.placer.keeper

    def _read(self) -> CpuTopology:
        if self.blind:
            raise UserError(self.blind)
        return machine(self.shape)

    async def again(self) -> Placer:
        """End the placer, whatever it was doing, and begin the next."""
        self.keeper.close()
        self.begun()
        await self.runtime.connect(self.placer)
        return self.placer

    async def settle(self) -> None:
        """Write until nothing is left to write."""
        for _ in range(3):
            if await self.upkeep.write() and not self.keeper.unwritten:
                return
        raise AssertionError("the runtime does not take it")

    def check(self) -> None:
        """No CPU is given to two containers; no container runs on exclusive CPUs of another."""
        placer = self.placer
        assert placer.keeper.placements is not None
        own = EMPTY
        exclusive: dict[str, CpuSet] = {}
        for each in placer.keeper.placements.allocator.assignments.values():
            if each.mode is CpuMode.EXCLUSIVE:
                assert each.cpus.isdisjoint(own), "a CPU is given twice"
                own |= each.cpus
                exclusive[placer.keeper.placements.containers[each.key].id] = each.cpus
        for container_id, running in self.runtime.running().items():
            theirs = own - exclusive.get(container_id, EMPTY)
            assert running.cpus.isdisjoint(theirs), f"{container_id} runs on {running.cpus & theirs}"

    def agree(self) -> None:
        """Every container that runs is known, and has what it should."""
        for container_id, running in self.runtime.running().items():
            found = self.keeper.placements.find(container_id) if self.keeper.placements else None
            assert found is not None, f"{container_id} is not known"
            assert running.cpus == self.keeper.pins[found.key].cpus


def manual(folder: Path, **more: object) -> PlacingTest:
    """A `PlacingTest` whose clock the test moves."""
    return PlacingTest(folder, clock=ManualClock(), **more)  # type: ignore[arg-type]
