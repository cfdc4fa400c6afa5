"""Limits of a pod's groups, made of files: marks of what is ours, and containers whose groups are not found."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from colocate.clock import ManualClock
from colocate.host import memory_limits
from colocate.host.group_files import group_files
from colocate.host.kept_files import DescriptorBudget
from colocate.host.memory_group import MemoryGroup
from colocate.host.pod_groups import PodGroup
from colocate.memory.actions import (
    ActionOutcome,
    ActionResult,
    Ease,
    PodRef,
    RestoreLimit,
    SetLimit,
    Throttle,
)
from colocate.memory.agent import pod_limits
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.executor import Executor
from colocate.memory.agent.machine import Machine
from colocate.memory.agent.pod_moves import PodMoves
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


class OnePod:
    """A machine with one pod."""

    def __init__(self, pod: MemoryGroup) -> None:
        self._pod = PodGroup("u", QosClass.BEST_EFFORT, pod)

    async def find(self, uid: str) -> PodGroup | None:
        return self._pod if uid == "u" else None


def executor(pod: MemoryGroup) -> Executor:
    machine, cluster = cast(Machine, OnePod(pod)), cast(ClusterView, None)
    return Executor(machine, cluster, cast(PodMoves, None), ManualClock(), rate=1, most_pressure=1)


@pytest.mark.parametrize("before", [None, 64 * MIB])
def test_a_memory_high_of_ours_is_marked_with_what_it_was_until_it_is_given_back(
    tmp_path: Path, before: int | None
) -> None:
    pod = group(tmp_path, high=before)
    assert read(pod).our_high is None
    for high in (32 * MIB, 16 * MIB):
        assert memory_limits.throttle(pod, high, before)
        found = read(pod)
        assert (found.high, found.our_high) == (high, OurHigh(before))
    assert memory_limits.restore_high(pod, before)
    found = read(pod)
    assert (found.high, found.our_high) == (before, None)


def test_where_no_mark_can_be_left_a_pod_is_still_throttled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(95, "Operation not supported")

    for name in ("setxattr", "removexattr", "getxattr"):
        monkeypatch.setattr(f"colocate.host.memory_limits.os.{name}", refuse)
    pod = group(tmp_path)
    memory_limits.throttle(pod, MIB, None)
    assert (read(pod).high, read(pod).our_high) == (MIB, None)
    memory_limits.restore_high(pod, None)
    assert read(pod).high is None


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EOPNOTSUPP], ids=errno.errorcode.get
)
async def test_a_pod_that_neither_a_mark_nor_a_record_would_remember_is_not_throttled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("colocate.host.memory_limits.os.setxattr", refuse)
    pod = group(tmp_path, high=32 * MIB)
    throttle, ease = (
        kind(pod=POD, high=high * MIB, before=None, reason="") for kind, high in ((Throttle, 1), (Ease, 64))
    )
    [refused] = await executor(pod).carry_out([throttle], {"u"}, off=False, recorded=False)
    assert refused.result is ActionResult.FAILED
    assert "it could never be undone" in refused.message
    assert read(pod).high == 32 * MIB
    [done] = await executor(pod).carry_out([ease], {"u"}, off=False, recorded=False)
    assert done == ActionOutcome(ease, ActionResult.DONE)
    assert read(pod).high == 64 * MIB, "what only gives back needs neither"


# --- limits that another process sets at the same moment ------------------------------------------------


GIVE_BACK = RestoreLimit(pod=POD, to=MIB, reason="")


class Resized(MemoryGroup, frozen=True):
    """A group in which the kubelet and systemd set everything else just before each of our writes."""

    def write(self, name: str, value: str) -> None:
        for other in {"memory.high", "memory.max", "memory.swap.max"} - {name}:
            (self.folder / other).write_text(f"{128 * MIB}\n")
        super().write(name, value)


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda pod: memory_limits.throttle(pod, MIB, None, must_mark=True), "memory.high"),
        (lambda pod: memory_limits.throttle(pod, MIB, None), "memory.high"),
        (lambda pod: memory_limits.restore_high(pod, MIB), "memory.high"),
        (lambda pod: pod_limits.hold(pod, SetLimit(pod=POD, limit=MIB, swap=None, reason=""), {}), "memory.max"),
        (lambda pod: pod_limits.hold(pod, SetLimit(pod=POD, limit=None, swap=MIB, reason=""), {}), "memory.swap.max"),
        (lambda pod: pod_limits.restore(pod, GIVE_BACK, {}, None, off=False), "memory.max"),
    ],
    ids=["throttle", "ease", "let go", "hold", "hold swap", "restore"],
)  # fmt: skip
def test_a_limit_that_is_not_named_is_not_written_back_over_that_of_another_process(
    tmp_path: Path, act: Callable[[MemoryGroup], bool], named: str
) -> None:
    group(tmp_path, high=32 * MIB, limit=64 * MIB)
    (tmp_path / "memory.swap.max").write_text("max\n")
    assert act(Resized(tmp_path, 2))
    found = {
        name: (tmp_path / name).read_text().strip()
        for name in ("memory.high", "memory.max", "memory.swap.max")
    }
    assert found == {**dict.fromkeys(found, str(128 * MIB)), named: str(MIB)}


# --- containers that are held in groups of their own ----------------------------------------------------

RESTORE = RestoreLimit(pod=POD, to=None, containers=("main", "other"), reason="")
IDS = {"main": "aaa", "other": "bbb"}


def pod_with(folder: Path, *containers: str) -> MemoryGroup:
    """A pod's group with those of its sandbox and of these containers, all of them limited."""
    made = group(folder, limit=64 * MIB)
    for name in ("cri-containerd-5a5a.scope", *(f"cri-containerd-{id}.scope" for id in containers)):
        group(folder / name, limit=MIB)
    return made


def limit_of(pod: MemoryGroup, id: str) -> str:
    return (pod.folder / f"cri-containerd-{id}.scope" / "memory.max").read_text().strip()


def test_groups_of_containers_have_no_limit_again(tmp_path: Path) -> None:
    pod = pod_with(tmp_path, "aaa", "bbb")
    assert pod_limits.restore(pod, RESTORE, IDS, {"main", "other"}, off=True)
    assert (limit_of(pod, "aaa"), limit_of(pod, "bbb"), limit_of(pod, "5a5a")) == ("max", "max", str(MIB))


def test_a_container_that_runs_and_whose_group_is_not_found_is_told_and_the_others_are_restored(
    tmp_path: Path,
) -> None:
    pod = pod_with(tmp_path, "bbb")
    with pytest.raises(pod_limits.GroupMissing, match=r"has no control group for main, which may be running"):
        pod_limits.restore(pod, RESTORE, IDS, {"main", "other"}, off=True)
    assert limit_of(pod, "bbb") == "max"
    assert (pod.folder / "memory.max").read_text().strip() == "max"


def test_a_container_that_has_ended_is_done(tmp_path: Path) -> None:
    pod = pod_with(tmp_path, "bbb")
    assert pod_limits.restore(pod, RESTORE, IDS, {"other"}, off=True)


def test_where_it_is_unknown_which_containers_run_a_missing_group_is_told(tmp_path: Path) -> None:
    with pytest.raises(pod_limits.GroupMissing, match="for main, other, which may be running"):
        pod_limits.restore(pod_with(tmp_path, "aaa", "bbb"), RESTORE, {}, None, off=True)


def test_in_a_pod_without_any_container_nothing_is_missing(tmp_path: Path) -> None:
    assert pod_limits.restore(group(tmp_path, limit=MIB), RESTORE, {}, None, off=True)
