"""Words from the cluster that become paths: whatever they are, nothing outside of the folder meant is reached."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cgroup_trees import LAYOUTS, FakeTree

from colocate.host.cgroups import Naming, pod_path
from colocate.host.files import LeadsElsewhere, below
from colocate.host.pod_groups import PodTier, find_pod, find_tiers
from colocate.lab.pod_runtime import ProcessRuntime
from colocate.memory.agent.objects import ApiPod
from colocate.memory.agent.store import MemoryStore, PodNote
from colocate.memory.ladder.state import GaveUp, Ladder, LeavingPod, Moved, Throttled
from colocate.memory.settings import Rung
from colocate.memory.state import MemoryState, state_from_json, state_to_json
from colocate.model.memory import PodIdentity, PodMemory
from colocate.model.path_word import LONGEST, is_path_word
from colocate.model.pod import Container, Metadata, Pod, PodSpec, QosClass

UID = "11111111-2222-3333-4444-555555555555"
PARTS = [
    "..",
    ".",
    "/",
    "\0",
    "a",
    UID,
    "…",
    "-",
    "_",
    " ",
    "\n",
    "pod",
    ".slice",
    "kubepods",
    "\\",
    "%2f",
    "ä",
    "\ud800",
    "x" * 250,
]
HOSTILE = st.one_of(
    st.sampled_from(
        ["", "..", ".", "/", f"{UID}/..", f"{UID}/../..", "/etc", "a/b", "a\0", "…/..", "a" * 4096, "\n"]
    ),
    st.lists(st.sampled_from(PARTS), max_size=6).map("".join),
    st.text(max_size=40),
    st.uuids().map(str),
)


def lies_right_in(path: Path, folder: Path) -> bool:
    """As the kernel would walk it, not as it is written."""
    return Path(os.path.normpath(path)).parent == Path(os.path.normpath(folder)) and path.name not in (
        "",
        ".",
        "..",
    )


def refused_or_right_in(folder: Path, made: Callable[[], Path]) -> bool:
    """Whether it was made; nothing but a refusal or a path right in the folder may come of it."""
    try:
        path = made()
    except LeadsElsewhere:
        return False
    assert lies_right_in(path, folder), path
    assert "\0" not in str(path)
    return True


@given(HOSTILE)
def test_a_name_leads_nowhere_but_into_its_folder(word: str) -> None:
    refused_or_right_in(Path("/top/folder"), lambda: below(Path("/top/folder"), word))


@given(HOSTILE)
def test_a_uid_leads_nowhere_but_to_a_group_of_a_pod(word: str) -> None:
    for naming, after in ((Naming.CGROUPFS, ""), (Naming.SYSTEMD, ".slice")):
        for qos in QosClass:
            right = pod_path("uid", qos, naming).parent
            made = refused_or_right_in(right, partial(pod_path, word, qos, naming))
            tier = PodTier(qos, Path("/cg/kubepods"), Path("/cg/kubepods/burstable"), "pod", after)
            assert refused_or_right_in(tier.folder, partial(tier.path, word)) == made
            assert made == is_path_word(word)
            if made:
                assert tier.uid(tier.path(word).name) == word, "and back"


@given(HOSTILE)
def test_a_note_of_a_pod_is_kept_in_the_state_folder_or_not_at_all(word: str) -> None:
    folder = Path("/var/lib/colocate")
    made = refused_or_right_in(folder, lambda: MemoryStore(folder)._manifest(word))
    assert made == is_path_word(word)


@given(HOSTILE, HOSTILE)
def test_the_embedded_runtime_writes_and_removes_below_its_own_folder_alone(uid: str, container: str) -> None:
    folder = Path("/lab/pods")
    runtime = ProcessRuntime(folder, parent="lab", mount=Path("/nowhere"))
    pod = Pod(Metadata("p", uid=uid), PodSpec((Container("c"),)))
    try:
        path = runtime.log_file(pod, container)
    except LeadsElsewhere:
        return
    assert lies_right_in(path.parent, folder)
    assert lies_right_in(path, path.parent)


@given(st.text(max_size=LONGEST + 5))
def test_a_word_is_letters_digits_and_dashes(word: str) -> None:
    plain = all(char.isascii() and (char.isalnum() or char == "-") for char in word)
    assert is_path_word(word) == (plain and 0 < len(word) <= LONGEST and not word.startswith("-"))


@pytest.mark.parametrize(("version", "naming"), LAYOUTS)
def test_a_uid_with_dots_after_a_pods_own_does_not_find_the_group_of_a_whole_qos_class(
    tmp_path: Path, version: int, naming: Naming
) -> None:
    fake = FakeTree(tmp_path, version, naming)
    victim = PodMemory(uid=UID, qos=QosClass.BEST_EFFORT, usage=0, anon=0, file=0, inactive_file=0)
    fake.write(victim)
    tiers = find_tiers(fake.tree)
    found = find_pod(fake.tree, tiers, UID)
    assert found is not None
    assert found.group.folder == fake.folder(victim)
    hostile = f"{UID.replace('-', '_') if naming is Naming.SYSTEMD else UID}"
    for word in (f"{hostile}/..", f"{hostile}.slice/..", f"{hostile}/../..", f"{hostile}.slice/../x"):
        with pytest.raises(LeadsElsewhere, match="not a uid of a pod"):
            find_pod(fake.tree, tiers, word)


def test_a_stored_state_with_uids_that_lead_elsewhere_is_read_without_them() -> None:
    bad = f"{UID}/.."
    both = (UID, bad)
    state = MemoryState(
        holders=dict.fromkeys(both, ("CM-0000",)),
        pods={
            **{uid: PodIdentity(uid=uid, namespace="n", name="p") for uid in both},
            "other": PodIdentity(uid=bad, namespace="n", name="p"),
        },
        ladder=Ladder(
            throttled={uid: Throttled(None, 1) for uid in both},
            moved={uid: Moved(0, (), ()) for uid in both},
            leaving={uid: LeavingPod(Rung.EVICT, 0.0) for uid in both},
            gave_up=tuple(GaveUp(Rung.FAR, uid, "") for uid in both),
        ),
    )
    read = state_from_json(state_to_json(state))
    ladder = read.ladder
    for known in (read.holders, read.pods, ladder.throttled, ladder.moved, ladder.leaving):
        assert set(known) == {UID}
    assert [each.uid for each in ladder.gave_up] == [UID]


def test_a_note_about_a_pod_that_no_pod_can_be_is_set_aside(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    hostile = PodNote("../../etc/x", "n", "p", {})
    with pytest.raises(LeadsElsewhere):
        store.remember(hostile)
    (tmp_path / "memory-recreate-a.json").write_bytes(msgspec.json.encode(hostile))
    moves = store.moves()
    assert not moves.manifests
    assert len(moves.lost) == 1
    assert (tmp_path / "memory-recreate-a.json.unreadable").exists()


def test_an_id_of_a_container_that_is_none_is_not_taken() -> None:
    states = [
        {"name": f"c{n}", "containerID": f"containerd://{id}"}
        for n, id in enumerate(["../..", "", "a/b", "0af"])
    ]
    body = {"metadata": {"name": "p", "uid": "u"}, "status": {"containerStatuses": states}}
    assert msgspec.convert(body, ApiPod).container_ids == {"c3": "0af"}
