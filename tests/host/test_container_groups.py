"""The cpuset of a container is found in every layout of control groups; words from outside lead nowhere."""

from pathlib import Path

import pytest
from tests.support.cgroup_trees import LAYOUTS

from colocate.host.cgroups import Naming, pod_path
from colocate.host.container_groups import ContainerGroups, GroupCpus
from colocate.host.device_nodes import device_nodes
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass

UID = "7c9f0a1e-52d0-4a77-9f2b-5d4e00000001"
ID = "ab" * 32


def tree(mount: Path, version: int, naming: Naming, qos: QosClass, parent: Path = Path()) -> Path:
    """A container's group with a cpuset; the mount."""
    root = mount if version == 2 else mount / "cpuset"
    name = f"cri-containerd-{ID}.scope" if naming is Naming.SYSTEMD else ID
    folder = root / parent / pod_path(UID, qos, naming) / name
    folder.mkdir(parents=True)
    words = (
        ("cpuset.cpus.effective", "cpuset.mems.effective")
        if version == 2
        else ("cpuset.effective_cpus", "cpuset.effective_mems")
    )
    (folder / "cpuset.cpus").write_text("2-3\n")
    (folder / words[0]).write_text("2-3\n")
    (folder / words[1]).write_text("0-1\n")
    if version == 2:
        (mount / "cgroup.controllers").write_text("cpuset cpu\n")
        (folder / "cpu.weight").write_text("39\n")
        (folder / "cpu.max").write_text("200000 100000\n")
    else:
        cpu = mount / "cpu" / folder.relative_to(root)
        cpu.mkdir(parents=True)
        for file, text in (
            ("cpu.shares", "1024"),
            ("cpu.cfs_quota_us", "200000"),
            ("cpu.cfs_period_us", "100000"),
        ):
            (cpu / file).write_text(text)
    return mount


@pytest.mark.parametrize(("version", "naming"), LAYOUTS)
@pytest.mark.parametrize("qos", list(QosClass))
@pytest.mark.parametrize("parent", [Path(), Path("node/inner")])
def test_a_container_is_found_by_its_pod_and_id(
    tmp_path: Path, version: int, naming: Naming, qos: QosClass, parent: Path
) -> None:
    groups = ContainerGroups(tree(tmp_path, version, naming, qos, parent))
    expected = GroupCpus(cpus=CpuSet.parse("2-3"), effective=CpuSet.parse("2-3"), mems=(0, 1))
    assert groups.cpus(UID, ID) == expected
    told = groups.resources(UID, ID)
    assert told is not None
    assert (told.cpu_quota, told.cpu_period) == (200_000, 100_000)
    assert abs(told.cpu_shares - 1024) < 30
    assert groups.cpus(UID, "cd" * 32) is None
    assert groups.cpus("other", ID) is None


def test_a_container_right_below_the_group_that_the_kubelet_named_is_found(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset\n")
    folder = tmp_path / "test" / "pod1" / ID
    folder.mkdir(parents=True)
    for name in ("cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems.effective"):
        (folder / name).write_text("0\n")
    groups = ContainerGroups(tmp_path)
    assert groups.cpus("uid", ID, "/test/pod1") is not None
    assert groups.cpus("uid", ID, "/test/../test/pod1") is None
    assert groups.resources("uid", ID, "/test/pod1") is None


@pytest.mark.parametrize("word", ["..", "../../etc", "a/b", "", ".", "x" * 300, "a\0b"])
def test_words_that_would_lead_elsewhere_find_nothing(tmp_path: Path, word: str) -> None:
    groups = ContainerGroups(tree(tmp_path, 2, Naming.CGROUPFS, QosClass.GUARANTEED))
    assert groups.cpus(word, ID) is None
    assert groups.cpus(UID, word) is None
    assert groups.cpus("none", word, word) is None


def test_a_group_that_says_garbage_tells_nothing(tmp_path: Path) -> None:
    groups = ContainerGroups(tree(tmp_path, 2, Naming.CGROUPFS, QosClass.GUARANTEED))
    folder = groups.folder(UID, ID)
    assert folder is not None
    (folder / "cpuset.cpus.effective").write_text("0-99999999999\n")
    (folder / "cpu.weight").write_text("heavy\n")
    assert groups.cpus(UID, ID) is None
    assert groups.resources(UID, ID) is None


def test_devices_tell_their_numa_node_where_sysfs_does(tmp_path: Path) -> None:
    pci = tmp_path / "bus" / "pci" / "devices" / "0000:3b:00.0"
    pci.mkdir(parents=True)
    (pci / "numa_node").write_text("1\n")
    unknown = tmp_path / "bus" / "pci" / "devices" / "0000:3c:00.0"
    unknown.mkdir()
    (unknown / "numa_node").write_text("-1\n")
    null = tmp_path / "dev" / "char"
    null.mkdir(parents=True)
    device = tmp_path / "devices" / "gpu" / "drm" / "card0"
    device.mkdir(parents=True)
    (tmp_path / "devices" / "gpu" / "numa_node").write_text("2\n")
    (null / "1:3").symlink_to(device)
    names = [
        "0000:3b:00.0",
        "0000:3c:00.0",
        "/dev/null",
        "/etc/passwd",
        "/dev/../etc/shadow",
        "vendor.com/gpu=0",
        "a\0",
    ]
    assert device_nodes(names, sys=tmp_path) == (1, 2)
    assert device_nodes([], sys=tmp_path) == ()
