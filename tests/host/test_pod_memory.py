"""What is read of pods is what their control groups say, in every layout; what cannot be read harms no other."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cgroup_trees import LAYOUTS, FakeTree, as_read

from colocate.host import pod_groups
from colocate.host.cgroups import Naming
from colocate.host.pod_groups import container_groups
from colocate.host.pod_memory import PodMemoryReader
from colocate.model.memory import PodMemory, Pressure
from colocate.model.pod import QosClass

MIB = 1 << 20
UIDS = [f"{n:08x}-5b1c-4f0e-9d6c-000000000000" for n in range(6)]

amounts = st.integers(0, 1 << 44)
limits = st.none() | st.integers(0, 1 << 44).map(lambda pages: pages // 4096 * 4096)
percents = st.integers(0, 10_000).map(lambda n: n / 100)
pressures = st.builds(Pressure, *[percents] * 6, amounts, amounts)


@st.composite
def pods(draw: st.DrawFn) -> PodMemory:
    inactive, swap = draw(amounts), draw(st.none() | amounts)
    return PodMemory(
        uid="",
        qos=draw(st.sampled_from(QosClass)),
        usage=draw(amounts),
        anon=draw(amounts),
        file=inactive + draw(amounts),
        inactive_file=inactive,
        shmem=draw(amounts),
        swap=swap,
        limit=draw(limits),
        high=draw(limits),
        swap_limit=None if swap is None else draw(limits),
        pressure=draw(st.none() | pressures),
        refaults=draw(st.none() | amounts),
        numa=draw(st.dictionaries(st.integers(0, 9), amounts.map(lambda n: n // 4096 * 4096), min_size=1)),
    )


def pod(uid: str = UIDS[0], qos: QosClass = QosClass.BURSTABLE, usage: int = 100 * MIB) -> PodMemory:
    return PodMemory(
        uid=uid, qos=qos, usage=usage, anon=60 * MIB, file=40 * MIB, inactive_file=10 * MIB, swap=0
    )


def with_uid(uid: str, of: PodMemory) -> PodMemory:
    return PodMemory(**{**{name: getattr(of, name) for name in of.__struct_fields__}, "uid": uid})


def by_uid(pods: tuple[PodMemory, ...]) -> list[PodMemory]:
    return sorted(pods, key=lambda each: each.uid)


def same_groups(fake: FakeTree, before: list[PodMemory], now: list[PodMemory]) -> bool:
    """Whether groups stay and only what they say changes."""
    return [(fake.folder(each), list(fake.files(each))) for each in before] == [
        (fake.folder(each), list(fake.files(each))) for each in now
    ]


@settings(max_examples=50)
@given(
    layout=st.sampled_from(LAYOUTS),
    turns=st.lists(st.dictionaries(st.sampled_from(UIDS), pods(), max_size=4), min_size=1, max_size=3),
    descriptors=st.sampled_from([None, 0, 7]),
)
def test_what_is_read_is_what_was_written_turn_after_turn(
    layout: tuple[int, Naming], turns: list[dict[str, PodMemory]], descriptors: int | None
) -> None:
    """Pods come, change and go, with all files kept open, some of them or none."""
    with tempfile.TemporaryDirectory() as folder:
        version, naming = layout
        fake = FakeTree(Path(folder) / "cg", version, naming)
        reader = PodMemoryReader(fake.tree, by_node=True, descriptors=descriptors)
        there: list[PodMemory] = []
        for turn in turns:
            now = [with_uid(uid, each) for uid, each in turn.items()]
            if not same_groups(fake, there, now):
                for old in there:
                    fake.remove(old)
                assert reader.read().pods == ()
            there = now
            fake.write(*there)
            reading = reader.read()
            assert by_uid(reading.pods) == by_uid(tuple(as_read(each, version) for each in there))
            assert reading.unread == ()
        reader.close()


@pytest.fixture(params=LAYOUTS, ids=lambda layout: f"v{layout[0]} {layout[1]}")
def fake(request: pytest.FixtureRequest, tmp_path: Path) -> FakeTree:
    version, naming = request.param
    return FakeTree(tmp_path / "cg", version, naming)


def test_the_working_set_is_the_kubelets(fake: FakeTree) -> None:
    fake.write(pod())
    (read,) = PodMemoryReader(fake.tree).read().pods
    assert read.working_set == 90 * MIB


def test_the_uid_is_the_apis_whatever_the_group_is_called(fake: FakeTree) -> None:
    static = "d41d8cd98f00b204e9800998ecf8427e"
    fake.write(pod(UIDS[0], QosClass.GUARANTEED), pod(static, QosClass.BEST_EFFORT))
    read = PodMemoryReader(fake.tree).read().pods
    assert {(each.uid, each.qos) for each in read} == {
        (UIDS[0], QosClass.GUARANTEED),
        (static, QosClass.BEST_EFFORT),
    }


def test_a_machine_without_pods_and_a_kubelet_that_starts_later(fake: FakeTree) -> None:
    reader = PodMemoryReader(fake.tree)
    assert reader.read().pods == ()
    fake.write(pod())
    assert [each.uid for each in reader.read().pods] == [UIDS[0]]


def test_a_kubelet_whose_groups_are_taken_away_and_made_again(fake: FakeTree) -> None:
    fake.write(pod())
    reader = PodMemoryReader(fake.tree)
    reader.read()
    fake.root.rename(fake.root.with_name("away"))
    assert reader.read().pods == ()
    fake.write(pod(UIDS[1]))
    assert [each.uid for each in reader.read().pods] == [UIDS[1]]


def test_a_pod_that_has_ended_is_not_there_and_its_files_are_closed(fake: FakeTree) -> None:
    fake.write(pod(UIDS[0]), pod(UIDS[1]))
    reader = PodMemoryReader(fake.tree)
    reader.read()
    before = open_files()
    fake.remove(pod(UIDS[0]))
    assert [each.uid for each in reader.read().pods] == [UIDS[1]]
    assert open_files() < before


def test_a_group_that_vanishes_after_it_was_listed_is_a_pod_that_ended(
    fake: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.write(pod(UIDS[0]), pod(UIDS[1]))
    reader = PodMemoryReader(fake.tree, descriptors=0)
    real = os.open

    def vanishing(path: Path, flags: int, *more: Any, **others: Any) -> int:
        if UIDS[0].replace("-", "_") in str(path).replace("-", "_") and fake.folder(pod()).exists():
            fake.remove(pod(UIDS[0]))
        return real(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", vanishing)
    reading = reader.read()
    assert [each.uid for each in reading.pods] == [UIDS[1]]
    assert reading.unread == ()


GARBAGE = [b"", b"\n", b"rubbish\n", b"-1\n", b"1_000\n", b"\xff\xfe\x00", b"12 34\n"]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_file_full_of_rubbish_costs_one_pod_with_the_reason(fake: FakeTree, garbage: bytes) -> None:
    fake.write(pod(UIDS[0]), pod(UIDS[1]))
    for name in ("memory.current", "memory.usage_in_bytes"):
        if (file := fake.folder(pod(UIDS[0])) / name).exists():
            file.write_bytes(garbage)
    reading = PodMemoryReader(fake.tree).read()
    assert [each.uid for each in reading.pods] == [UIDS[1]]
    assert [each.uid for each in reading.unread] == [UIDS[0]]
    assert "is not a number" in reading.unread[0].reason


def test_a_stat_without_its_lines_is_named(fake: FakeTree) -> None:
    fake.write(pod())
    (fake.folder(pod()) / "memory.stat").write_text("cache 12\n")
    (unread,) = PodMemoryReader(fake.tree).read().unread
    assert "memory.stat has no line" in unread.reason


def test_pods_below_a_group_of_ones_choice_and_no_others(tmp_path: Path) -> None:
    mine = FakeTree(tmp_path / "cg", 2, Naming.CGROUPFS, Path("colocate-demo-7"))
    mine.write(pod(UIDS[0]))
    mine.another_kubelet(Naming.SYSTEMD).write(pod(UIDS[1]))
    uids = [each.uid for each in PodMemoryReader(mine.tree, below=Path("colocate-demo-7")).read().pods]
    assert uids == [UIDS[0]]
    assert {each.uid for each in PodMemoryReader(mine.tree).read().pods} == {UIDS[0], UIDS[1]}


def test_a_kubelet_with_a_cgroup_root_of_its_own_as_in_kind(tmp_path: Path) -> None:
    fake = FakeTree(tmp_path / "cg", 2, Naming.SYSTEMD)
    fake.write(pod())
    kind = fake.memory / "kubelet.slice" / "kubelet-kubepods.slice"
    tier = kind / "kubelet-kubepods-burstable.slice"
    tier.mkdir(parents=True)
    name = f"kubelet-kubepods-burstable-pod{UIDS[2].replace('-', '_')}.slice"
    fake.folder(pod()).rename(tier / name)
    (read,) = PodMemoryReader(fake.tree).read().pods
    assert (read.uid, read.qos) == (UIDS[2], QosClass.BURSTABLE)


def test_remains_of_the_other_naming_do_not_hide_the_pod(tmp_path: Path) -> None:
    now = FakeTree(tmp_path / "cg", 2, Naming.SYSTEMD)
    now.write(pod(usage=100 * MIB))
    now.another_kubelet(Naming.CGROUPFS).write(pod(usage=0))
    (now.folder(pod()) / "cgroup.procs").write_text("17\n")
    reader = PodMemoryReader(now.tree)
    assert [each.usage for each in reader.read().pods] == [100 * MIB]
    found = reader.find(UIDS[0])
    assert found is not None
    assert found.group.folder == now.folder(pod())


def test_a_kubelet_that_comes_back_with_the_other_naming_is_found_by_its_first_pod(tmp_path: Path) -> None:
    before = FakeTree(tmp_path / "cg", 2, Naming.CGROUPFS)
    before.write(pod(UIDS[0]))
    reader = PodMemoryReader(before.tree)
    reader.read()
    before.another_kubelet(Naming.SYSTEMD).write(pod(UIDS[1]))
    assert reader.find(UIDS[1]) is not None
    assert {each.uid for each in reader.read().pods} == {UIDS[0], UIDS[1]}


def test_a_pod_is_found_before_the_first_reading_and_not_once_it_is_gone(fake: FakeTree) -> None:
    reader = PodMemoryReader(fake.tree)
    assert reader.find(UIDS[0]) is None
    fake.write(pod())
    found = reader.find(UIDS[0])
    assert found is not None
    assert (found.qos, found.group.usage) == (QosClass.BURSTABLE, 100 * MIB)
    fake.remove(pod())
    assert reader.find(UIDS[0]) is None


def test_containers_are_found_by_their_ids(fake: FakeTree) -> None:
    fake.write(pod())
    names = ["cri-containerd-0a1b.scope", "crio-2c3d.scope", "4e5f", "main"]
    for name in names:
        (fake.folder(pod()) / name).mkdir()
    found = PodMemoryReader(fake.tree).find(UIDS[0])
    assert found is not None
    groups = container_groups(found.group)
    assert {key: group.folder.name for key, group in groups.items()} == dict(
        zip(["0a1b", "2c3d", "4e5f", "main"], names, strict=True)
    )


def test_never_more_descriptors_than_the_budget(fake: FakeTree) -> None:
    fake.write(*(pod(uid) for uid in UIDS))
    before = open_files()
    reader = PodMemoryReader(fake.tree, descriptors=9)
    for _ in range(3):
        assert len(reader.read().pods) == len(UIDS)
    assert open_files() == before + 9
    reader.close()
    assert open_files() == before


def test_pressure_that_the_kernel_does_not_measure_is_unknown(tmp_path: Path) -> None:
    fake = FakeTree(tmp_path / "cg", 2, Naming.SYSTEMD)
    fake.write(pod())
    (read,) = PodMemoryReader(fake.tree).read().pods
    assert read.pressure is None
    assert read.refaults is None


def test_refaults_of_an_old_kernel(fake: FakeTree) -> None:
    fake.write(pod())
    stat = fake.folder(pod()) / "memory.stat"
    total = "total_" if fake.version == 1 else ""
    stat.write_text(stat.read_text() + f"{total}workingset_refault 12\n")
    (read,) = PodMemoryReader(fake.tree).read().pods
    assert read.refaults == 12


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("naming", Naming)
def test_a_user_who_makes_a_group_of_pods_in_a_group_of_its_own_is_no_kubelet(
    naming: Naming, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd gives each user's manager a group, and the user makes others in it, of any name."""
    tree = FakeTree(tmp_path, 2, naming)
    tree.write(pod(usage=100 * MIB))
    theirs = Path("user.slice", "user-1000.slice", "user@1000.service")
    for planted in Naming:
        user = tree.another_kubelet(planted, theirs)
        user.write(pod(usage=900 * MIB))
        user.write(pod(UIDS[1]))

    def owner(folder: Path) -> int:
        return 1000 if (tmp_path / theirs) in (folder, *folder.parents) else 0

    monkeypatch.setattr(pod_groups, "_owner", owner)
    reader = PodMemoryReader(tree.tree)
    assert [(read.uid, read.usage) for read in reader.read().pods] == [(UIDS[0], 100 * MIB)]
    assert reader.find(UIDS[1]) is None
    found = reader.find(UIDS[0])
    assert found is not None
    assert found.group.folder == tree.folder(pod())


def test_a_group_is_its_owners(tmp_path: Path) -> None:
    assert pod_groups._owner(tmp_path) == os.geteuid()
    assert pod_groups._owner(tmp_path / "gone") is None
