"""Trees of both versions, made of plain folders; real kernels are used by the pod tests."""

from pathlib import Path

import pytest

from colocate.errors import Unavailable
from colocate.host import cgroups

pytestmark = pytest.mark.vm("mini", here=True)


def v2(mount: Path, controllers: str = "cpuset cpu io memory pids") -> cgroups.Tree:
    mount.mkdir()
    (mount / "cgroup.controllers").write_text(controllers)
    (mount / "cgroup.subtree_control").write_text("")
    return cgroups.find_tree(mount)


def v1(mount: Path, *controllers: str) -> cgroups.Tree:
    for controller in controllers:
        (mount / controller).mkdir(parents=True)
        (mount / controller / "cgroup.procs").write_text("")
    return cgroups.find_tree(mount)


def test_v2_is_one_tree(tmp_path: Path) -> None:
    tree = v2(tmp_path / "cg")
    assert tree.version == 2
    assert tree.folders(Path("kubepods")) == [tmp_path / "cg" / "kubepods"]


def test_v2_without_the_memory_controller(tmp_path: Path) -> None:
    assert "memory" not in v2(tmp_path / "cg", "cpu").roots


def test_v1_is_a_tree_for_each_controller_that_is_there(tmp_path: Path) -> None:
    tree = v1(tmp_path / "cg", "memory", "pids", "freezer")
    assert tree.version == 1
    cgroups.create(tree, Path("a/b"))
    assert (tmp_path / "cg/memory/a/b").is_dir()
    assert (tmp_path / "cg/pids/a/b").is_dir()
    assert not (tmp_path / "cg/freezer/a").exists()
    cgroups.remove(tree, Path("a"))
    assert not (tmp_path / "cg/memory/a").exists()


def test_members_of_a_group_and_below(tmp_path: Path) -> None:
    (tmp_path / "pod/main").mkdir(parents=True)
    (tmp_path / "pod/cgroup.procs").write_text("12\n")
    (tmp_path / "pod/main/cgroup.procs").write_text("34\n56\n")
    assert cgroups.members(tmp_path / "pod") == [12, 34, 56]
    assert cgroups.members(tmp_path / "gone") == []


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no control groups"):
        cgroups.find_tree(tmp_path)
