"""The machine's memory is what /proc and sysfs say; a NUMA node may go while it is read."""

import errno
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cgroup_trees import pressure_file, write_meminfo, write_numa

from colocate.errors import Unavailable
from colocate.host.node_memory import read_node_memory, read_numa
from colocate.model.memory import NumaMemory, Pressure

GIB = 1 << 30
AMOUNTS = {
    "MemTotal": 16 * GIB,
    "MemFree": 2 * GIB,
    "MemAvailable": 9 * GIB,
    "Active(file)": 3 * GIB,
    "Inactive(file)": 4 * GIB,
    "SwapTotal": 6 * GIB,
    "SwapFree": 5 * GIB,
    "Hugetlb": 1 * GIB,
}

kibibytes = st.integers(0, 1 << 34).map(lambda n: n * 1024)


@st.composite
def machines(draw: st.DrawFn) -> list[NumaMemory]:
    ids = sorted(draw(st.sets(st.integers(0, 31), max_size=5)))
    nodes = []
    for each in ids:
        inactive = draw(kibibytes)
        nodes.append(
            NumaMemory(
                id=each,
                total=draw(kibibytes),
                free=draw(kibibytes),
                file=inactive + draw(kibibytes),
                inactive_file=inactive,
                has_cpus=draw(st.booleans()),
                distances={other: 10 if other == each else draw(st.integers(11, 254)) for other in ids},
            )
        )
    return nodes


@given(machines())
def test_numa_nodes_are_read_as_written(nodes: list[NumaMemory]) -> None:
    with tempfile.TemporaryDirectory() as sys:
        write_numa(Path(sys), *nodes)
        assert list(read_numa(Path(sys))) == nodes


def test_the_machine_as_a_whole(tmp_path: Path) -> None:
    write_meminfo(tmp_path, AMOUNTS)
    (tmp_path / "pressure").mkdir()
    pressure = Pressure(1.5, 0.25, 0.1, 0.75, 0.0, 0.0, 123456, 4567)
    (tmp_path / "pressure/memory").write_text(pressure_file(pressure))
    node = read_node_memory(tmp_path, tmp_path)
    assert (node.total, node.available, node.free) == (16 * GIB, 9 * GIB, 2 * GIB)
    assert (node.inactive_file, node.hugepages) == (4 * GIB, GIB)
    assert (node.swap_total, node.swap_free) == (6 * GIB, 5 * GIB)
    assert node.working_set == 10 * GIB
    assert node.pressure == pressure
    assert node.numa == ()


def test_huge_pages_of_an_old_kernel(tmp_path: Path) -> None:
    old = {name: amount for name, amount in AMOUNTS.items() if name != "Hugetlb"}
    write_meminfo(
        tmp_path, old, "AnonHugePages:         0 kB", "HugePages_Total:       3", "Hugepagesize:    2048 kB"
    )
    assert read_node_memory(tmp_path, tmp_path).hugepages == 6 << 20


def test_a_kernel_that_measures_no_pressure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_meminfo(tmp_path, AMOUNTS)
    assert read_node_memory(tmp_path, tmp_path).pressure is None
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure/memory").write_text("")
    real = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == "memory":
            raise OSError(errno.EOPNOTSUPP, "Operation not supported", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert read_node_memory(tmp_path, tmp_path).pressure is None


@pytest.mark.parametrize("content", [None, "", "MemTotal: 12 kB\n", "MemTotal: rubbish kB\n"])
def test_a_meminfo_that_is_missing_or_rubbish_is_one_sentence(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "meminfo").write_text(content)
    with pytest.raises(Unavailable, match="the memory of this machine cannot be read from"):
        read_node_memory(tmp_path, tmp_path)


NODES = [
    NumaMemory(id=0, total=8 * GIB, free=GIB, distances={0: 10, 1: 20, 2: 50}),
    NumaMemory(id=1, total=8 * GIB, free=GIB, distances={0: 20, 1: 10, 2: 50}),
    NumaMemory(id=2, total=4 * GIB, free=3 * GIB, has_cpus=False, distances={0: 50, 1: 50, 2: 10}),
]


@pytest.mark.parametrize("file", ["meminfo", "cpulist", "distance"])
@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENODEV])
def test_a_node_that_goes_offline_while_it_is_read_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, code: int
) -> None:
    write_numa(tmp_path, *NODES)
    real = Path.read_bytes

    def going(path: Path) -> bytes:
        if path.parent.name == "node2" and path.name == file:
            (tmp_path / "devices/system/node/online").write_text("0-1\n")
            for other, row in ((0, "10 20\n"), (1, "20 10\n")):
                (tmp_path / f"devices/system/node/node{other}/distance").write_text(row)
            raise OSError(code, "gone", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", going)
    left = read_numa(tmp_path)
    assert [node.id for node in left] == [0, 1]
    assert left[0].distances == {0: 10, 1: 20}


def test_a_node_that_comes_and_goes_all_the_time_does_not_hold_the_reading_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_numa(tmp_path, *NODES)
    real = Path.read_bytes
    turns = iter(["0-1", "0-2"] * 100)

    def restless(path: Path) -> bytes:
        return next(turns).encode() if path.name == "online" else real(path)

    monkeypatch.setattr(Path, "read_bytes", restless)
    assert {0, 1} <= {node.id for node in read_numa(tmp_path)}


def test_this_machine() -> None:
    node = read_node_memory()
    assert 0 < node.available <= node.total
    assert all(each.distances[each.id] == 10 for each in node.numa)
