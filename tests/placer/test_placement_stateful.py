"""Any history of events by both ways in, of restarts, faults and changes of machine and configuration.

No CPU is assigned twice, no exclusive CPU is leaked, no container is lost, and what runs has what it should.
"""

import asyncio
import errno
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from colocate.cpus import CpuMode
from colocate.cpus.placer.section import CpuPoolSection
from colocate.model.container import RuntimeSandbox
from colocate.model.cpu_shapes import machine
from colocate.model.cpuset import EMPTY, CpuSet
from colocate.model.pod import QosClass
from colocate.model.values import CpuAmount
from tests.placer.fake_runtime import GIB, resources
from tests.placer.placing import SECTION, SHAPE, PlacingTest
from tests.support.broken_disk import broken

T = TypeVar("T")

CLASSES = st.sampled_from(
    [QosClass.GUARANTEED, QosClass.GUARANTEED, QosClass.BURSTABLE, QosClass.BEST_EFFORT]
)
WISHES = st.sampled_from(["", "", "strict", "shared", "spread", "opt-out", "nonsense", "exclusive, strict"])
AMOUNTS = st.sampled_from([1000, 2000, 3000, 4000, 6000, 1500, 500])
CONFIGURATIONS = [
    SECTION,
    msgspec.structs.replace(SECTION, reserved_cpus="0,8"),
    msgspec.structs.replace(SECTION, reserved=CpuAmount(750)),
    msgspec.structs.replace(SECTION, pools=(CpuPoolSection(name="own", size=4, namespaces=("own",)),)),
    msgspec.structs.replace(SECTION, reserved_cpus="99"),
    msgspec.structs.replace(SECTION, exclusive_guaranteed=False, pin_memory=False),
]


class PlacementHistories(RuleBasedStateMachine):
    """One node; its placers come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        fast = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(prefix="placement", dir=fast if fast.is_dir() else None))
        self.number = 0

    @initialize(nri=st.booleans())
    def start(self, nri: bool) -> None:
        async def begin() -> PlacingTest:
            test = PlacingTest(self.folder, nri=nri)
            await test.runtime.connect(test.placer)
            return test

        self.test = self.run(begin())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @rule(qos=CLASSES, cpu=AMOUNTS, wish=WISHES, namespace=st.sampled_from(["default", "own", "kube-system"]))
    def new_pod(self, qos: QosClass, cpu: int, wish: str, namespace: str) -> None:
        if len(self.test.runtime.sandboxes) > 12:
            return
        self.number += 1
        annotations = {"colocate.dev/cpus": wish} if wish else {}
        sandbox = self.test.runtime.sandbox(f"p{self.number}", qos, namespace, annotations)
        self.create(sandbox, "main", qos, cpu)

    @precondition(lambda self: self.test.runtime.sandboxes)
    @rule(data=st.data(), name=st.sampled_from(["main", "side", "init"]), cpu=AMOUNTS, fails=st.booleans())
    def create_or_restart(self, data: st.DataObject, name: str, cpu: int, fails: bool) -> None:
        sandbox = data.draw(st.sampled_from(list(self.test.runtime.sandboxes.values())))
        running = [
            each.about.name
            for each in self.test.runtime.running().values()
            if each.about.sandbox_id == sandbox.id
        ]
        if name not in running:
            qos = QosClass.BURSTABLE if "burstable" in sandbox.cgroup_parent else QosClass.GUARANTEED
            self.create(sandbox, name, qos, cpu, fails=fails)

    def create(
        self, sandbox: RuntimeSandbox, name: str, qos: QosClass, cpu: int, *, fails: bool = False
    ) -> None:
        asked = {
            QosClass.GUARANTEED: resources(cpu, cpu, GIB),
            QosClass.BURSTABLE: resources(cpu, 2 * cpu),
            QosClass.BEST_EFFORT: resources(0),
        }[qos]
        before = self.held(sandbox, name)
        own = self.run(self.test.runtime.create(self.test.placer, sandbox, name, asked, fails=fails))
        if own and before and len(before) * 1000 == cpu:
            assert self.test.runtime.containers[own].cpus == before, "it gets its CPUs again"

    def held(self, sandbox: RuntimeSandbox, name: str) -> CpuSet:
        """CPUs that are kept for a container, and that it can be given."""
        placements = self.test.keeper.placements
        found = placements.allocator.assignments.get((sandbox.id, name)) if placements else None
        return found.cpus if found is not None and placements and not placements.off else EMPTY

    @precondition(lambda self: self.test.runtime.running())
    @rule(data=st.data(), what=st.sampled_from(["stop", "stop unseen", "remove"]))
    def end(self, data: st.DataObject, what: str) -> None:
        own = data.draw(st.sampled_from(sorted(self.test.runtime.running())))
        placer = None if what == "stop unseen" else self.test.placer
        if what == "remove":
            self.run(self.test.runtime.remove(placer, own))
        else:
            self.run(self.test.runtime.stop(placer, own))

    @precondition(lambda self: self.test.runtime.sandboxes)
    @rule(data=st.data())
    def end_pod(self, data: st.DataObject) -> None:
        sandbox = data.draw(st.sampled_from(list(self.test.runtime.sandboxes.values())))
        self.run(self.test.runtime.end_sandbox(self.test.placer, sandbox))

    @precondition(lambda self: self.test.runtime.running())
    @rule(data=st.data(), cpu=AMOUNTS)
    def resize(self, data: st.DataObject, cpu: int) -> None:
        own = data.draw(st.sampled_from(sorted(self.test.runtime.running())))
        self.run(self.test.runtime.update(self.test.placer, own, resources(cpu, cpu, GIB)))

    @rule(nri=st.booleans(), lost=st.sampled_from(["", "", "gone", "garbage", "older"]))
    def restart_by_either_way(self, nri: bool, lost: str) -> None:
        self.test.runtime.nri = nri
        file = self.folder / "state" / "cpus-state.json"
        if lost == "gone":
            file.unlink(missing_ok=True)
        elif lost:
            file.write_bytes({"garbage": b'{"version": 1, "cpus": {"han', "older": b'{"version": 0}'}[lost])
        before = {own: each.cpus for own, each in self.test.runtime.running().items()}
        placements, unwritten = self.test.keeper.placements, self.test.keeper.unwritten
        self.run(self.test.again())
        if (
            placements
            and not lost
            and not unwritten
            and not placements.unpinned
            and self.test.keeper.placements
        ):
            assert {own: each.cpus for own, each in self.test.runtime.running().items()} == before

    @rule(why=st.sampled_from(["", "/sys is not there yet"]))
    def cpus_cannot_be_told_at_start_or_can_again(self, why: str) -> None:
        if why and not self.test.blind:
            self.test.blind = why
            self.run(self.test.again())
        elif not why:
            self.see_again()

    def see_again(self) -> None:
        self.test.blind = ""
        self.run(self.test.upkeep.audit())

    @rule(chosen=st.sampled_from(CONFIGURATIONS))
    def another_configuration(self, chosen: Any) -> None:
        self.test.section = chosen
        self.run(self.test.keeper.reconfigure(self.test.section))

    @rule(off=st.lists(st.integers(1, 15), max_size=5))
    def cpus_go_off_and_on(self, off: list[int]) -> None:
        self.test.shape = msgspec.structs.replace(SHAPE, offline=CpuSet.of(off))
        online = machine(self.test.shape).online
        before, self.test.runtime.everything = self.test.runtime.everything, online
        for own, each in self.test.runtime.running().items():
            # One that was never pinned has all that there are.
            all_of_them = each.cpus == before
            self.test.runtime.tamper(own, online if all_of_them else each.cpus & online or online)
        self.run(self.test.upkeep.audit())

    @precondition(lambda self: self.test.runtime.running())
    @rule(data=st.data(), cpu=st.integers(0, 15))
    def another_program_writes_a_cpuset(self, data: st.DataObject, cpu: int) -> None:
        own = data.draw(st.sampled_from(sorted(self.test.runtime.running())))
        if self.test.keeper.pins and cpu in self.test.runtime.everything:
            self.test.runtime.tamper(own, CpuSet.of([cpu]))
        self.run(self.test.upkeep.audit())

    @rule(off=st.booleans())
    def switch(self, off: bool) -> None:
        self.run(self.test.keeper.step("switch", lambda placements: placements.switch(off)))

    @rule(qos=CLASSES, cpu=AMOUNTS)
    def a_pod_while_the_disk_is_full(self, qos: QosClass, cpu: int) -> None:
        with broken(self.folder / "state", errno.ENOSPC, "mkstemp"):
            self.new_pod(qos, cpu, "", "default")

    @rule()
    def minutes_pass(self) -> None:
        self.run(self.test.upkeep.audit())

    @invariant()
    def all_is_as_it_should_be(self) -> None:
        test = self.test
        if test.keeper.is_blind:
            assert test.blind
            return
        self.run(test.settle())
        test.check()
        placements = test.keeper.placements
        assert placements is not None
        for own, each in test.runtime.running().items():
            found = placements.find(own)
            assert found is not None, f"{each.about.name} is not known"
            if placements.active:
                assert each.cpus == test.keeper.pins[found.key].cpus
            else:
                assert each.cpus == test.runtime.everything
        assert {key[0] for key in placements.allocator.assignments} <= set(test.runtime.sandboxes)

    def teardown(self) -> None:
        if hasattr(self, "test"):
            self.see_again()
            for sandbox in list(self.test.runtime.sandboxes.values()):
                self.run(self.test.runtime.end_sandbox(self.test.placer, sandbox))
            placements = self.test.keeper.placements
            assert placements is not None
            assert not placements.allocator.assignments
            assert not placements.containers
            assert not placements.allocator.occupancy().exclusive
            assert not any(
                each.mode is CpuMode.EXCLUSIVE for each in placements.allocator.assignments.values()
            )
            self.test.keeper.close()
        self.runner.close()
        shutil.rmtree(self.folder, ignore_errors=True)


TestPlacementHistories = PlacementHistories.TestCase
TestPlacementHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
