"""Limits of a pod's groups, made of files: marks of what is ours, and containers whose groups are not found."""

from pathlib import Path

import pytest

from colocate.apps.memory import pod_limits
from colocate.host.group_files import group_files
from colocate.host.kept_files import DescriptorBudget
from colocate.host.memory_group import MemoryGroup
from colocate.memory.actions import PodRef, Throttle, Unthrottle
from colocate.model.memory import OurHigh, PodMemory
from colocate.model.pod import QosClass
from tests.support.cgroup_trees import v2_files

MIB = 1 << 20
POD = PodRef("u", "default", "batch")


def group(folder: Path, high: int | None = None, limit: int | None = None) -> MemoryGroup:
    said = PodMemory(
        uid="u",
        qos=QosClass.BEST_EFFORT,
        usage=MIB,
        anon=MIB,
        file=0,
        inactive_file=0,
        high=high,
        limit=limit,
    )
    folder.mkdir(exist_ok=True)
    for name, text in v2_files(said).items():
        (folder / name).write_text(text)
    return MemoryGroup(folder, 2)


def read(group: MemoryGroup) -> PodMemory:
    files = group_files(2, group.folder, DescriptorBudget(None))
    try:
        return files.pod("u", QosClass.BEST_EFFORT)
    finally:
        files.close()


@pytest.mark.parametrize("before", [None, 64 * MIB])
def test_a_memory_high_of_ours_is_marked_with_what_it_was_until_it_is_given_back(
    tmp_path: Path, before: int | None
) -> None:
    pod = group(tmp_path, high=before)
    assert read(pod).our_high is None
    for high in (32 * MIB, 16 * MIB):
        assert pod_limits.throttle(pod, Throttle(pod=POD, high=high, before=before, reason=""))
        found = read(pod)
        assert (found.high, found.our_high) == (high, OurHigh(before))
    assert pod_limits.let_go(pod, Unthrottle(pod=POD, to=before, reason=""))
    found = read(pod)
    assert (found.high, found.our_high) == (before, None)


def test_where_no_mark_can_be_left_a_pod_is_throttled_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(95, "Operation not supported")

    for name in ("setxattr", "removexattr", "getxattr"):
        monkeypatch.setattr(f"colocate.host.high_mark.os.{name}", refuse)
    pod = group(tmp_path)
    pod_limits.throttle(pod, Throttle(pod=POD, high=MIB, before=None, reason=""))
    assert (read(pod).high, read(pod).our_high) == (MIB, None)
    pod_limits.let_go(pod, Unthrottle(pod=POD, to=None, reason=""))
    assert read(pod).high is None
