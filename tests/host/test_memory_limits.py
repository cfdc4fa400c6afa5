"""Limits are written where they differ, in an order that v1 accepts, and what stands in the way is reported."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from tests.support.cgroup_trees import LAYOUTS, V1_NO_LIMIT, FakeTree
from tests.support.memory_probe import oom_kills

from colocate.errors import Unavailable
from colocate.host.cgroups import Naming
from colocate.host.memory_group import GroupGone, MemoryGroup
from colocate.host.memory_limits import GroupLimits, LimitChange, LimitsSet, read_limits, set_limits
from colocate.model.memory import PodMemory
from colocate.model.pod import QosClass

MIB = 1 << 20
POD = PodMemory(
    uid="a-b", qos=QosClass.BURSTABLE, usage=100 * MIB, anon=60 * MIB, file=40 * MIB, inactive_file=0, swap=0
)

_BOTH = "memory.memsw.limit_in_bytes"

amounts = st.none() | st.integers(0, 1 << 20).map(lambda pages: pages * 4096)


def group_in(folder: Path, version: int) -> MemoryGroup:
    fake = FakeTree(folder / "cg", version, Naming.SYSTEMD)
    fake.write(POD)
    return MemoryGroup(fake.folder(POD), version)


class StrictV1(MemoryGroup, frozen=True):
    """Refuses, as a kernel does, that memory and swap together are limited below memory alone."""

    def write(self, name: str, value: str) -> None:
        super().write(name, str(V1_NO_LIMIT) if value == "-1" else value)
        memory = int(self.read("memory.limit_in_bytes"))
        both = int(self.read(_BOTH)) if self.has(_BOTH) else V1_NO_LIMIT
        if memory > both:
            raise OSError(errno.EINVAL, f"{name} = {value}: memory {memory}, both {both}")


@given(steps=st.lists(st.builds(GroupLimits, memory=amounts, swap=amounts), min_size=1, max_size=4))
def test_v1_is_never_asked_for_less_in_all_than_for_memory_alone(steps: list[GroupLimits]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = StrictV1(group_in(Path(folder), 1).folder, 1)
        for wanted in steps:
            assert set_limits(group, wanted).busy is None
            assert read_limits(group) == GroupLimits(
                memory=wanted.memory, swap=None if wanted.memory is None else wanted.swap
            )


@given(
    steps=st.lists(st.builds(GroupLimits, memory=amounts, high=amounts, swap=amounts), min_size=1, max_size=4)
)
def test_v2_limits_are_read_as_they_were_set(steps: list[GroupLimits]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = group_in(Path(folder), 2)
        for wanted in steps:
            set_limits(group, wanted)
            assert read_limits(group) == wanted


named = st.just(UNSET) | amounts
changes = st.lists(st.builds(LimitChange, memory=named, swap=named), min_size=1, max_size=4)


@given(
    before=st.builds(GroupLimits, memory=amounts, swap=amounts),
    steps=changes,
    version=st.sampled_from([1, 2]),
)
def test_a_limit_that_is_not_named_stays_as_it_is(
    before: GroupLimits, steps: list[LimitChange], version: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = group_in(Path(folder), version)
        group = group if version == 2 else StrictV1(group.folder, 1)
        set_limits(group, before)
        for change in steps:
            there = read_limits(group)
            done = set_limits(group, change)
            memory = there.memory if change.memory is UNSET else change.memory
            swap = there.swap if change.swap is UNSET else change.swap
            assert done.busy is None
            assert read_limits(group) == GroupLimits(
                memory=memory, swap=None if memory is None and version == 1 else swap
            )
            name = "memory.max" if version == 2 else "memory.limit_in_bytes"
            assert change.memory is not UNSET or name not in done.written


def test_a_limit_of_nothing_can_be_raised(tmp_path: Path) -> None:
    group = StrictV1(group_in(tmp_path, 1).folder, 1)
    set_limits(group, GroupLimits(memory=0, swap=0))
    set_limits(group, LimitChange(memory=MIB))
    assert read_limits(group) == GroupLimits(memory=MIB, swap=0)


def test_v1_is_not_touched_for_a_memory_high(tmp_path: Path) -> None:
    group = group_in(tmp_path, 1)
    assert set_limits(group, LimitChange(high=MIB)) == LimitsSet(missing=("memory.high",))
    assert set_limits(group, LimitChange(high=None)) == LimitsSet()


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryGroup:
    made = group_in(tmp_path, request.param)
    return made if made.version == 2 else StrictV1(made.folder, 1)


def test_asserting_what_is_so_writes_nothing(group: MemoryGroup) -> None:
    wanted = GroupLimits(memory=512 * MIB, swap=0)
    assert set_limits(group, wanted).written
    before = {file: file.stat().st_mtime_ns for file in group.folder.iterdir()}
    assert set_limits(group, wanted) == LimitsSet()
    assert {file: file.stat().st_mtime_ns for file in group.folder.iterdir()} == before


def test_a_limit_that_is_no_whole_number_of_pages_is_not_written_again_and_again(group: MemoryGroup) -> None:
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    # What a kernel makes of 100 000 000.
    (group.folder / name).write_text("99999744\n")
    assert name not in set_limits(group, GroupLimits(memory=100_000_000)).written


def test_every_write_announces_itself(group: MemoryGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[str] = []
    monkeypatch.setattr("colocate.host.memory_group.reached", announced.append)
    done = set_limits(group, GroupLimits(memory=64 * MIB, swap=0))
    assert announced == [f"cgroup.{name}" for name in done.written]
    assert len(announced) == 2


def test_putting_back_what_was_read_restores_it(group: MemoryGroup) -> None:
    before = read_limits(group)
    set_limits(group, GroupLimits(memory=64 * MIB, swap=0))
    set_limits(group, before)
    assert read_limits(group) == before == GroupLimits()


def test_a_kernel_without_swap_accounting_says_so_and_the_rest_is_set(group: MemoryGroup) -> None:
    name = "memory.swap.max" if group.version == 2 else "memory.memsw.limit_in_bytes"
    (group.folder / name).unlink()
    done = set_limits(group, GroupLimits(memory=64 * MIB, swap=0))
    assert done.missing == (name,)
    assert read_limits(group).memory == 64 * MIB
    assert set_limits(group, GroupLimits(memory=64 * MIB)).missing == ()


def test_v1_has_no_memory_high(tmp_path: Path) -> None:
    done = set_limits(group_in(tmp_path, 1), GroupLimits(memory=64 * MIB, high=60 * MIB))
    assert done.missing == ("memory.high",)


def test_a_limit_that_v1_cannot_reclaim_down_to_is_reported_with_what_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_in(tmp_path, 1)
    refuse_writes(monkeypatch, errno.EBUSY)
    assert set_limits(group, GroupLimits(memory=64 * MIB)) == LimitsSet(busy=100 * MIB)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.EROFS, "mounted read-only"), (errno.EACCES, "run it as root"), (errno.EPERM, "run it as root")],
)
def test_a_tree_that_cannot_be_written_is_one_sentence_with_the_remedy(
    group: MemoryGroup, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    refuse_writes(monkeypatch, code)
    with pytest.raises(Unavailable, match=remedy):
        set_limits(group, GroupLimits(memory=64 * MIB))


def test_a_group_that_is_gone_is_no_other_error(group: MemoryGroup) -> None:
    for file in group.folder.iterdir():
        file.unlink()
    group.folder.rmdir()
    for act in (
        lambda: set_limits(group, GroupLimits(memory=MIB)),
        lambda: group.usage,
        lambda: group.write("memory.max", "1"),
    ):
        with pytest.raises(GroupGone):
            act()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_deaths_are_counted_in_the_whole_pod(layout: tuple[int, Naming], tmp_path: Path) -> None:
    fake = FakeTree(tmp_path / "cg", *layout)
    fake.write(POD)
    group = MemoryGroup(fake.folder(POD), layout[0])
    if group.version == 1:
        for name, deaths in (("main", 2), ("sidecar", 1)):
            (group.folder / name).mkdir()
            (group.folder / name / "memory.oom_control").write_text(f"under_oom 0\noom_kill {deaths}\n")
    else:
        (group.folder / "memory.events").write_text("oom 4\noom_kill 3\n")
    assert oom_kills(group) == 3


def refuse_writes(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    real = os.open

    def refused(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_WRONLY:
            raise OSError(code, os.strerror(code), str(path))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refused)
