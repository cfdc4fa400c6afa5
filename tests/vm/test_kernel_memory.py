"""What the memory ladder leans on, as this kernel does it: limits, pressure, reclaim into the pool and back."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.topology import Topology

pytestmark = pytest.mark.vm("mini")

ROOT = Path("/sys/fs/cgroup")
MIB = 1 << 20
HELD_MIB = 48

# Fills memory with what is no zero page, says so, and keeps it.
HOLD = f"held = bytearray(b'x') * ({HELD_MIB} << 20); print('held', flush=True); input()"


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group for a test's processes."""
    folder = ROOT / "colocate-test"
    folder.mkdir()
    yield folder
    (folder / "cgroup.kill").write_text("1")
    with (folder / "cgroup.events").open() as events:
        while "populated 1" in events.read():
            events.seek(0)
    folder.rmdir()


def run(group: Path, code: str, *prefix: str) -> subprocess.Popen[str]:
    """A Python program that is in the group from its first instruction on."""
    join = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    return subprocess.Popen(
        ["sh", "-c", join, "sh", *prefix, sys.executable, "-S", "-E", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def held(group: Path, *prefix: str) -> subprocess.Popen[str]:
    """A process that holds memory by now."""
    process = run(group, HOLD, *prefix)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def anonymous(group: Path, node: int) -> int:
    """MiB of anonymous memory that a group has on a NUMA node."""
    lines = (line.split() for line in (group / "memory.numa_stat").read_text().splitlines())
    figures = next(line[1:] for line in lines if line[0] == "anon")
    return int(dict(figure.split("=") for figure in figures)[f"N{node}"]) // MIB


def ended(process: subprocess.Popen[str]) -> int:
    with process:
        return process.wait()


def test_more_than_memory_max_is_killed_and_counted(group: Path) -> None:
    (group / "memory.max").write_text(f"{HELD_MIB // 2}M")
    assert ended(run(group, HOLD)) == -9
    assert "oom_kill 1\n" in (group / "memory.events").read_text()


def test_pressure_is_told_for_the_machine_and_for_a_group(group: Path) -> None:
    for pressure in (Path("/proc/pressure/memory"), group / "memory.pressure"):
        kinds = {line.split()[0] for line in pressure.read_text().splitlines()}
        assert kinds == {"some", "full"}


def test_cgroup_kill_ends_all_of_a_group(group: Path) -> None:
    process = held(group)
    (group / "cgroup.kill").write_text("1")
    assert ended(process) == -9


def test_a_cpuset_holds(group: Path) -> None:
    (group / "cpuset.cpus").write_text("1")
    process = run(group, "import os; print(os.sched_getaffinity(0)); os.sched_setaffinity(0, {0})")
    assert process.stdout is not None
    assert process.stdout.read() == "{1}\n"
    assert ended(process) == 1, "a process left its cpuset"


@pytest.fixture
def demotion() -> Iterator[None]:
    """The kernel may put cold memory on slower nodes; other tests want it dropped."""
    switch = Path("/sys/kernel/mm/numa/demotion_enabled")
    switch.write_text("1")
    yield
    switch.write_text("0")


@pytest.mark.usefixtures("demotion")
def test_reclaim_demotes_to_the_pool_and_pages_can_come_back(group: Path, topology: Topology) -> None:
    process = held(group, "numactl", "--preferred=0")
    before = anonymous(group, 0)
    assert before >= HELD_MIB
    assert anonymous(group, topology.pool) == 0

    (group / "memory.reclaim").write_text("32M")
    assert anonymous(group, topology.pool) >= 30
    assert anonymous(group, 0) <= before - 30

    subprocess.run(["migratepages", str(process.pid), str(topology.pool), "0"], check=True)
    assert anonymous(group, topology.pool) == 0
    assert anonymous(group, 0) >= HELD_MIB
    process.kill()
    ended(process)
