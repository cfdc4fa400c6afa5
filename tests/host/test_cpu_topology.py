"""Machines read from sysfs: whole ones, ones that leave things out, hostile dumps, and real dumps."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import msgspec
import pytest
from tests.support import dumps, sysfs
from tests.support.sysfs import CPU, NODE, Told

from colocate.errors import UserError
from colocate.host import system_files
from colocate.host.cpu_topology import read_topology
from colocate.model.cpu_shapes import HYGON, SHAPES, CpuShape, ThreadOrder, machine
from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import CpuSet

ODD_SHAPES = {
    **SHAPES,
    "asymmetric": CpuShape(ccx_cores=(2, 4, 3), nodes_per_socket=2),
    "sparse": CpuShape(sockets=2, stride=3),
    "near threads": CpuShape(sockets=2, thread_order=ThreadOrder.NEAR, tells_dies=True, nodes_per_socket=2),
    "memory alone": CpuShape(sockets=2, memory_only=(1 << 34,)),
    "offline": CpuShape(sockets=2, offline=CpuSet.parse("1,9"), isolated=CpuSet.parse("2-3")),
    "four threads": CpuShape(threads=4, ccx_cores=(2, 2)),
}


def same(found: CpuTopology, made: CpuTopology) -> None:
    assert msgspec.structs.replace(found, processor=None) == made


@pytest.mark.parametrize("name", ODD_SHAPES)
def test_a_machine_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    made = machine(ODD_SHAPES[name])
    same(read_topology(sysfs.write(tmp_path, sysfs.files(made))), made)


@pytest.mark.parametrize(
    "told",
    [
        Told(l3_ids=False),
        Told(l3_lists=False),
        Told(cpulists=False),
        Told(node_links=True),
        Told(sibling_lists=False),
        Told(siblings=False),
    ],
)
def test_what_is_left_out_is_found_otherwise(told: Told, tmp_path: Path) -> None:
    made = machine(HYGON)
    same(read_topology(sysfs.write(tmp_path, sysfs.files(made, told))), made)


def test_without_distances_and_memory_none_are_told(tmp_path: Path) -> None:
    found = read_topology(
        sysfs.write(tmp_path, sysfs.files(machine(HYGON), Told(distances=False, memory=False)))
    )
    assert [node.memory for node in found.nodes] == [None] * 8
    assert found.nodes[0].distance(0) == 10
    assert found.nodes[0].distance(7) == 20


def test_without_numa_nodes_all_cpus_are_on_node_0(tmp_path: Path) -> None:
    contents = {path: text for path, text in sysfs.files(machine(HYGON)).items() if not path.startswith(NODE)}
    found = read_topology(sysfs.write(tmp_path, contents))
    assert [str(node.cpus) for node in found.nodes] == ["0-127"]


@pytest.mark.parametrize("packing", ["", "gz", "bz2"])
@pytest.mark.parametrize("prefix", ["", "sys/", "./sys/", "a-machine/sys/", "/sys/"])
def test_archives_are_read_as_folders_are(packing: str, prefix: str, tmp_path: Path) -> None:
    made = machine(CpuShape(sockets=2))
    path = tmp_path / "dump"
    path.write_bytes(sysfs.archive(sysfs.files(made), packing, prefix))
    same(read_topology(path), made)


def test_long_names_and_links_within_an_archive_are_followed(tmp_path: Path) -> None:
    made = machine(CpuShape(sockets=2))
    contents = sysfs.files(made)
    prefix = f"{'deep/' * 40}sys/"
    moved = f"{CPU}/cpu3/topology/core_id"
    del contents[moved]
    hard = tarfile.TarInfo(prefix + moved)
    hard.type, hard.linkname = tarfile.LNKTYPE, f"{prefix}{CPU}/cpu3/cache/index0/id"
    path = tmp_path / "dump.tar"
    path.write_bytes(sysfs.archive(contents, "", prefix, [hard]))
    same(read_topology(path), made)


def test_cpuinfo_beside_sys_tells_the_processor(tmp_path: Path) -> None:
    sysfs.write(tmp_path / "sys", sysfs.files(machine(CpuShape())))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(
        "processor\t: 0\nvendor_id\t: HygonGenuine\nmodel name\t: Hygon C86\nflags\t\t: fpu hypervisor\n\n"
        * 2
    )
    processor = read_topology(tmp_path).processor
    assert processor is not None
    assert (processor.is_amd, processor.virtual, processor.topoext) == (True, True, False)


def test_kinds_of_cores_are_told(tmp_path: Path) -> None:
    contents = sysfs.files(machine(SHAPES["hybrid"]))
    named = contents | {"devices/cpu_core/cpus": "0-7,16-23\n", "devices/cpu_atom/cpus": "8-15\n"}
    assert {
        kind: str(cpus) for kind, cpus in read_topology(sysfs.write(tmp_path / "a", named)).kinds.items()
    } == {
        "performance": "0-7,16-23",
        "efficiency": "8-15",
    }
    arm = contents | {f"{CPU}/cpu{cpu}/cpu_capacity": "1024" if cpu < 4 else "512" for cpu in range(24)}
    assert list(read_topology(sysfs.write(tmp_path / "b", arm)).kinds) == ["capacity 1024", "capacity 512"]


def test_ids_and_lists_of_l3_that_disagree_are_a_doubt_and_the_finer_one_counts(tmp_path: Path) -> None:
    contents = sysfs.files(machine(CpuShape(ccx_cores=(4, 4))))
    for cpu in range(16):
        contents[f"{CPU}/cpu{cpu}/cache/index3/id"] = "0\n"
    found = read_topology(sysfs.write(tmp_path, contents))
    assert sorted(str(cpus) for cpus in found.l3s().values()) == ["0-3,8-11", "4-7,12-15"]
    assert "disagree" in found.doubts[0]


@pytest.mark.parametrize(
    ("path", "text", "doubt"),
    [
        (f"{NODE}/node0/distance", "10 20 30", "distances"),
        (f"{NODE}/node1/cpulist", "0-7", "two NUMA nodes"),
        (f"{NODE}/node0/cpulist", "0-1", "in no NUMA node"),
        (f"{CPU}/cpu1/topology/physical_package_id", "-1", "socket 0"),
        (f"{CPU}/cpu1/topology/thread_siblings_list", "2", "contradict"),
    ],
)
def test_contradictions_are_doubts(path: str, text: str, doubt: str, tmp_path: Path) -> None:
    contents = sysfs.files(machine(CpuShape(sockets=2))) | {path: text}
    found = read_topology(sysfs.write(tmp_path, contents))
    assert any(doubt in each for each in found.doubts)
    assert len(found.online) == 16
    assert sum(len(node.cpus) for node in found.nodes) == 16


@pytest.mark.parametrize(
    "path",
    [
        f"{CPU}/online",
        f"{CPU}/cpu0/topology/core_id",
        f"{CPU}/cpu0/topology/physical_package_id",
        f"{CPU}/cpu0/topology/thread_siblings_list",
        f"{CPU}/cpu0/cache/index3/id",
        f"{CPU}/cpu0/cache/index3/shared_cpu_list",
        f"{NODE}/node0/cpulist",
        f"{NODE}/node0/distance",
    ],
)
@pytest.mark.parametrize("garbage", ["garbage", "0-99999999999", "99999999999999999999", "\x00\xff", "1.5"])
def test_garbage_in_a_file_is_one_sentence_that_names_it(path: str, garbage: str, tmp_path: Path) -> None:
    contents = sysfs.files(machine(CpuShape(sockets=2)), Told(siblings="siblings" in path)) | {path: garbage}
    with pytest.raises(UserError) as refused:
        read_topology(sysfs.write(tmp_path, contents))
    assert path in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400 + len(str(tmp_path))


@pytest.mark.parametrize("packing", ["folder", "", "gz"])
def test_a_dump_without_online_is_refused(packing: str, tmp_path: Path) -> None:
    contents = sysfs.files(machine(CpuShape()))
    del contents[f"{CPU}/online"]
    path = tmp_path / "dump"
    if packing == "folder":
        sysfs.write(path, contents)
    else:
        path.write_bytes(sysfs.archive(contents, packing))
    with pytest.raises(UserError, match="there is no devices/system/cpu/online"):
        read_topology(path)


def test_what_is_no_dump_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello" * 1000)
    (tmp_path / "cut.gz").write_bytes(sysfs.archive(sysfs.files(machine(HYGON)), "gz")[:2000])
    (tmp_path / "zip").write_bytes(b"PK\x03\x04")
    os.mkfifo(tmp_path / "fifo")
    for name, said in [
        ("empty", "there is no devices/system/cpu in it"),
        ("text", "not a tar archive"),
        ("cut.gz", "damaged"),
        ("zip", "gzip or bzip2"),
        ("absent", "no such file"),
    ]:
        with pytest.raises(UserError, match=said) as refused:
            read_topology(tmp_path / name)
        assert "\n" not in str(refused.value)


def test_a_folder_cannot_lead_out_of_itself(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0-3\n")
    root = sysfs.write(tmp_path / "dump", sysfs.files(machine(CpuShape())))
    online = root / CPU / "online"
    online.unlink()
    online.symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="leads out of the dump"):
        read_topology(root)
    online.unlink()
    os.mkfifo(online)
    with pytest.raises(UserError, match="not a plain file"):
        read_topology(root)


def test_an_archive_cannot_lead_out_of_itself(tmp_path: Path) -> None:
    contents = sysfs.files(machine(CpuShape()))
    del contents[f"{CPU}/online"]
    for kind, target in [
        (tarfile.SYMTYPE, "/etc/hostname"),
        (tarfile.SYMTYPE, "../" * 20 + "etc/hostname"),
        (tarfile.LNKTYPE, "/etc/hostname"),
    ]:
        link = tarfile.TarInfo(f"sys/{CPU}/online")
        link.type, link.linkname = kind, target
        path = tmp_path / "dump.tar"
        path.write_bytes(sysfs.archive(contents, "", "sys/", [link]))
        with pytest.raises(UserError, match="there is no devices/system/cpu/online"):
            read_topology(path)


def test_sizes_that_lie_and_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = sysfs.files(machine(CpuShape()))
    path = tmp_path / "dump.tar"
    large = tarfile.TarInfo(f"sys/{CPU}/online")
    large.size = 1 << 40
    path.write_bytes(large.tobuf(tarfile.GNU_FORMAT) + sysfs.archive(contents))
    with pytest.raises(UserError, match="1099511627776 bytes"):
        read_topology(path)
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 33
    path.write_bytes(header.tobuf(tarfile.GNU_FORMAT) + b"\0" * 512)
    with pytest.raises(UserError, match="a name of 8589934592 bytes"):
        read_topology(path)
    monkeypatch.setattr(system_files, "_LARGEST_ARCHIVE", 1 << 20)
    bomb = tarfile.TarInfo("zeros")
    bomb.size = 8 << 20
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(bomb, io.BytesIO(bytes(bomb.size)))
    path.write_bytes(packed.getvalue())
    with pytest.raises(UserError, match="unpacks to more than any machine has"):
        read_topology(path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.REGTYPE])
def test_names_and_links_count_as_what_is_kept(
    kind: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_files, "_LARGEST_KEPT", 1 << 18)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
        for number in range(100):
            member = tarfile.TarInfo(f"{'a/' * 1500}{number}/{CPU}/online")
            member.type, member.linkname = kind, "x" * 3000 if kind == tarfile.SYMTYPE else ""
            tar.addfile(member)
    path = tmp_path / "dump.tar.gz"
    path.write_bytes(packed.getvalue())
    with pytest.raises(UserError, match="larger than those of any machine"):
        read_topology(path)


@pytest.mark.parametrize("text", ["", "\n", "\0\0\0"])
def test_an_empty_list_of_cpus_is_told_from_a_missing_one(text: str, tmp_path: Path) -> None:
    contents = {**sysfs.files(machine(CpuShape())), f"{CPU}/online": text}
    with pytest.raises(UserError, match="names no CPU"):
        read_topology(sysfs.write(tmp_path / "dump", contents))


def test_two_machines_in_an_archive_are_refused(tmp_path: Path) -> None:
    contents = sysfs.files(machine(CpuShape()))
    both = {f"{name}/{path}": text for name in ("a", "b") for path, text in contents.items()}
    path = tmp_path / "dump.tar"
    path.write_bytes(sysfs.archive(both, "", ""))
    with pytest.raises(UserError, match="several machines"):
        read_topology(path)


def test_this_machine_is_read() -> None:
    found = read_topology()
    assert found.online == CpuSet.parse(Path("/sys/devices/system/cpu/online").read_text())
    assert sum(len(node.cpus) for node in found.nodes) == len(found.cpus)


def test_dumps_of_this_machine_made_by_cp_or_tar_are_read(tmp_path: Path) -> None:
    places = ["/sys/devices/system/cpu", "/sys/devices/system/node", "/proc/cpuinfo"]
    existing = [place for place in places if Path(place).exists()]
    here = read_topology()
    # Some files of sysfs cannot be read at all, or are shorter than they claim: both tools go on, and complain.
    subprocess.run(["tar", "-czf", "tar.gz", *existing], cwd=tmp_path, capture_output=True)
    (tmp_path / "copy").mkdir()
    subprocess.run(["cp", "-r", "--parents", *existing, "copy"], cwd=tmp_path, capture_output=True)
    subprocess.run(["tar", "-cf", "copy.tar", "copy"], cwd=tmp_path, check=True)
    for name in ("tar.gz", "copy", "copy.tar"):
        found = read_topology(tmp_path / name)
        assert found.cpus == here.cpus, name
        assert [node.cpus for node in found.nodes] == [node.cpus for node in here.nodes], name
    assert found.processor == here.processor


def test_the_hygon_dump_is_its_generated_twin() -> None:
    found, twin = read_topology(dumps.dump(dumps.HYGON)), machine(HYGON)
    assert found.cpus == twin.cpus
    assert [node.cpus for node in found.nodes] == [node.cpus for node in twin.nodes]
    assert [dict(node.distances) for node in found.nodes] == [dict(node.distances) for node in twin.nodes]
    assert all(node.memory and node.memory > 60 << 30 for node in found.nodes)
    assert found.doubts == ()


def test_the_epyc_dump_is_its_generated_twin() -> None:
    found, twin = read_topology(dumps.dump(dumps.EPYC)), machine(SHAPES["epyc-7451"])
    assert found.cpus == twin.cpus
    assert [node.cpus for node in found.nodes] == [node.cpus for node in twin.nodes]
    assert found.processor is not None
    assert found.processor.topoext
