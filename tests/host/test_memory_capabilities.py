"""What a machine allows is found by looking, and what is missing comes with the reason."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.cgroup_trees import FakeTree, pressure_file, write_meminfo, write_numa

from colocate.host.cgroups import Naming
from colocate.host.memory_capabilities import MemoryCapabilities, memory_capabilities
from colocate.model.memory import Demotion, MemoryControls, NumaMemory, PodMemory, Pressure
from colocate.model.pod import QosClass

GIB = 1 << 30
POD = PodMemory(
    uid="a-b", qos=QosClass.BURSTABLE, usage=GIB, anon=0, file=0, inactive_file=0, swap=0, pressure=Pressure()
)
NEAR = NumaMemory(id=0, total=8 * GIB, free=GIB, distances={0: 10, 2: 50})
FAR = NumaMemory(id=2, total=4 * GIB, free=3 * GIB, has_cpus=False, distances={0: 50, 2: 10})

DEMOTION = Demotion(tiers={0: 4, 2: 22}, promotes=True)


class Machine:
    """A machine with everything, of which a test takes something away."""

    def __init__(self, folder: Path, version: int = 2) -> None:
        self.fake = FakeTree(folder / "cg", version, Naming.SYSTEMD)
        self.fake.write(POD)
        self.fake.write_group(self.fake.root, POD)
        (self.fake.memory / "memory.reclaim").write_text("")
        self.proc, self.sys = folder / "proc", folder / "sys"
        self.meminfo(swap=GIB)
        (self.proc / "pressure").mkdir()
        (self.proc / "pressure/memory").write_text(pressure_file(Pressure()))
        (self.proc / "self").mkdir()
        self.capabilities((1 << 41) - 1)
        write_numa(self.sys, NEAR, FAR)
        for name, text in (
            ("sys/kernel/mm/numa/demotion_enabled", "false"),
            ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0"),
            ("sys/devices/virtual/memory_tiering/memory_tier22/nodelist", "2"),
            ("proc/sys/vm/swappiness", "60"),
            ("proc/sys/kernel/numa_balancing", "2"),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text}\n")

    def meminfo(self, swap: int) -> None:
        amounts = {"MemTotal": 16 * GIB, "MemFree": GIB, "MemAvailable": GIB, "Inactive(file)": 0}
        write_meminfo(self.proc, amounts | {"SwapTotal": swap, "SwapFree": swap})

    def capabilities(self, mask: int) -> None:
        (self.proc / "self/status").write_text(f"Name:\tx\nCapPrm:\t0\nCapEff:\t{mask:016x}\n")

    def look(self) -> MemoryCapabilities:
        return memory_capabilities(self.fake.tree, proc=self.proc, sys=self.sys)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_with_everything(machine: Machine) -> None:
    found = machine.look()
    assert found.controls == MemoryControls(
        cgroup=2, writable=True, reclaim=True, high=True, swap=True, migrate=True, demotion=DEMOTION
    )
    assert all(getattr(found, name).here for name in found.__struct_fields__ if name != "cgroup")
    assert found.pods.found == f"cgroup v2, pods in {machine.fake.root} (systemd)"
    assert found.far_nodes.found == "NUMA node 2: 4096 MiB, 3072 MiB free"


def test_cgroup_v1_has_limits_and_reclaim_by_them_and_no_more(tmp_path: Path) -> None:
    found = Machine(tmp_path, 1).look()
    assert found.controls == MemoryControls(
        cgroup=1, writable=True, swap=True, migrate=True, demotion=DEMOTION
    )
    assert (found.reclaim.here, found.swap_limits.here) == (True, True)
    assert "lowering the limit" in found.reclaim.found
    assert (found.throttle.here, found.pod_pressure.here, found.node_pressure.here) == (False, False, True)


def test_one_numa_node(machine: Machine) -> None:
    write_numa(machine.sys, NEAR)
    found = machine.look()
    assert (found.far_nodes.here, found.migration.here) == (False, False)
    assert "one NUMA node" in found.migration.found


def test_numa_nodes_that_all_have_cpus(machine: Machine) -> None:
    write_numa(machine.sys, NEAR, NumaMemory(id=1, total=GIB, free=GIB))
    found = machine.look()
    assert (found.far_nodes.here, found.migration.here) == (False, True)
    assert "each of the 2 NUMA nodes has CPUs" in found.far_nodes.found


@pytest.mark.parametrize(("bit", "name"), [(23, "CAP_SYS_NICE"), (19, "CAP_SYS_PTRACE")])
def test_a_process_without_the_right_to_move_pages(machine: Machine, bit: int, name: str) -> None:
    machine.capabilities(((1 << 41) - 1) & ~(1 << bit))
    assert not machine.look().migration.here
    assert name in machine.look().migration.found


def test_a_process_that_does_not_see_those_of_pods(machine: Machine) -> None:
    procs = machine.fake.folder(POD) / "cgroup.procs"
    procs.write_text("17\n18\n")
    assert machine.look().migration.here
    procs.write_text("0\n0\n")
    found = machine.look()
    assert (found.migration.here, found.demotion.here) == (False, True)
    assert "hostPID: true" in found.migration.found


def test_a_kernel_that_demotes_nothing(machine: Machine) -> None:
    (machine.sys / "kernel/mm/numa/demotion_enabled").unlink()
    assert "Linux 5.15" in machine.look().controls.demotion.missing


def test_an_old_kernel_without_memory_reclaim(machine: Machine) -> None:
    (machine.fake.memory / "memory.reclaim").unlink()
    found = machine.look()
    assert (found.reclaim.here, found.controls.reclaim) == (False, False)
    assert "5.19" in found.reclaim.found


def test_control_groups_mounted_read_only(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    class ReadOnly:
        def __init__(self, path: Any) -> None:
            self.f_flag = real(path).f_flag | os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", ReadOnly)
    found = machine.look()
    assert found.controls == MemoryControls(
        cgroup=2, writable=False, swap=True, migrate=True, demotion=DEMOTION
    )
    for each in (found.limits, found.reclaim, found.throttle):
        assert "mounted read-only" in each.found


def test_files_that_may_not_be_written(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "run as root" in machine.look().limits.found


def test_a_memory_controller_that_is_not_handed_down(machine: Machine) -> None:
    (machine.fake.root / "memory.max").unlink()
    assert "not enabled for pods" in machine.look().limits.found


def test_no_pods_yet(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.fake.root.rename(tmp_path / "elsewhere")
    found = machine.look()
    assert not found.pods.here
    assert "kubepods" in found.pods.found
    assert found.limits.here


def test_no_memory_controller(machine: Machine) -> None:
    (machine.fake.mount / "cgroup.controllers").write_text("cpu pids\n")
    found = machine.look()
    assert (found.pods.here, found.limits.here, found.controls.writable) == (False, False, False)


def test_no_swap_no_swap_accounting_no_pressure(machine: Machine) -> None:
    machine.meminfo(swap=0)
    (machine.fake.root / "memory.swap.max").unlink()
    (machine.proc / "pressure/memory").unlink()
    found = machine.look()
    assert not any(
        each.here for each in (found.swap, found.swap_limits, found.node_pressure, found.pod_pressure)
    )
    assert "only page cache" in found.swap.found
    assert "psi=1" in found.node_pressure.found
