"""What the agent announces of its pods: who has and will have what, in one write, over crashes and tricks."""

import msgspec
import pytest

from colocate.gpus import (
    DOSLAB,
    SEAL,
    AnnouncedPod,
    GpuMatch,
    GpuPod,
    GpuRoom,
    GpuSettings,
    asks_of,
    dialect,
    wish_of,
)
from tests.gpus.node import KEY, TWO, Node, annotated, booked, gpu_pod

A, B = "GPU-aaaa", "GPU-bbbb"


def two_alike() -> Node:
    """Two equal pods on two GPUs; the kubelet admits the second in the first one's place."""
    node = Node()
    node.add(booked(gpu_pod("one", 10), [A], 1), booked(gpu_pod("two", 10), [B], 2))
    node.settle()
    node.announce()
    assert isinstance(node.allocate("two"), GpuMatch)
    return node


def test_a_booking_that_waits_is_announced_and_so_is_what_was_given() -> None:
    node = Node()
    node.add(booked(gpu_pod("waits", 10), [B], 7), gpu_pod("wishes", 4, gpus=A, time=1), gpu_pod("gets", 3))
    assert isinstance(node.allocate("gets"), GpuMatch)
    node.announce()
    assert node.announced.pods == {
        "waits": AnnouncedPod(rooms={B: GpuRoom(10, 0)}, number=7, due={DOSLAB.memory: ((B,),)}),
        "gets": AnnouncedPod(rooms={B: GpuRoom(3, 0)}),
    }
    assert node.start("gets") == ""
    assert node.holders()["gets"].settled


def test_what_a_slow_kubelet_has_not_taken_in_is_announced_if_it_is_booked() -> None:
    node = Node()
    node.add(booked(gpu_pod("slow", 10), [B], 7), gpu_pod("ghost", 4, gpus=A, time=1))
    node.settle()
    assert node.holders(absent={"slow", "ghost"}).keys() == {"slow"}
    assert node.holders(absent={"slow", "ghost"})["slow"].rooms == {B: GpuRoom(10, 0)}


def test_a_swap_is_one_write_and_no_gpu_looks_emptier_in_between() -> None:
    node = two_alike()
    before = node.used(node.announced.pods)
    assert node.announced.pods is not None
    assert node.announced.pods["one"].rooms == {A: GpuRoom(10, 0)}
    assert node.start("two") == ""
    node.announce()
    after = node.announced.pods
    assert {uid: list(pod.rooms) for uid, pod in after.items()} == {"one": [B], "two": [A]}
    assert {uid: pod.settled for uid, pod in after.items()} == {"one": False, "two": True}
    assert node.used(after) == before
    assert after["one"].number == after["two"].number == 3, "newer than either booking"


def test_annotations_of_a_swap_are_written_after_it_was_announced() -> None:
    node = two_alike()
    node.settle()
    node.patch_pods()
    assert [node.api[uid].annotations["doslab.io/gpu-uuid"] for uid in ("one", "two")] == [A, B]
    node.announce()
    node.patch_pods()
    assert [node.api[uid].annotations["doslab.io/gpu-uuid"] for uid in ("one", "two")] == [B, A]
    wish = wish_of(node.api["one"], DOSLAB, asks_of(node.api["one"], DOSLAB).containers, TWO, (KEY,))
    assert wish.sealed
    assert wish.number == 3


@pytest.mark.parametrize("written", ["one", "two", None])
def test_an_agent_killed_between_two_annotations_of_a_swap_goes_on_with_it(written: str | None) -> None:
    node = two_alike()
    node.settle()
    node.announce()
    if written is not None:
        node.api[written] = annotated(node.api[written], node.flags(written))
    node.crash()
    assert isinstance(node.allocate("one"), GpuMatch)
    assert [node.start(uid) for uid in ("one", "two")] == ["", ""]
    assert [node.gpus(uid) for uid in ("one", "two")] == [B, A]
    node.announce()
    node.write_flags()
    assert [node.api[uid].annotations["doslab.io/gpu-uuid"] for uid in ("one", "two")] == [B, A]


@pytest.mark.parametrize("crash", [False, True])
def test_a_seal_that_a_tenant_has_kept_from_before_a_swap_is_worth_nothing(crash: bool) -> None:
    node = two_alike()
    kept = dict(node.api["one"].annotations)
    node.settle()
    node.announce()
    node.write_flags()
    node.api["one"] = annotated(node.api["one"], kept)
    if crash:
        node.crash()
    assert isinstance(node.allocate("one"), GpuMatch)
    assert node.start("one") == ""
    assert node.gpus("one") == B
    assert node.holders()["one"].rooms == {B: GpuRoom(10, 0)}


@pytest.mark.parametrize(
    "change",
    [
        {"doslab.io/gpu-uuid": B},
        {SEAL: ""},
        {"doslab.io/gpu-assume-time": "x"},
        {"doslab.io/gpu-uuid": "", SEAL: "1:00"},
        {"DOSLAB_IO_GPU_UUID": B, "colocate.dev/gpu-models": "m" * 600},
    ],
)
@pytest.mark.parametrize("crash", [False, True])
def test_whatever_a_tenant_writes_later_the_booking_stays(change: dict[str, str], crash: bool) -> None:
    node = Node()
    node.add(booked(gpu_pod("p", 10), [A], 5))
    node.settle()
    node.announce()
    node.api["p"] = annotated(node.api["p"], change)
    if crash:
        node.crash()
    node.settle()
    assert node.holders()["p"].rooms == {A: GpuRoom(10, 0)}
    assert isinstance(node.allocate("p"), GpuMatch)
    assert node.gpus("p") == A
    assert node.start("p") == ""


@pytest.mark.parametrize(
    "changes",
    [
        [{SEAL: "", "doslab.io/gpu-uuid": B}],
        [{"doslab.io/gpu-uuid": B}, {SEAL: "1:00"}, {SEAL: "2:00"}, {SEAL: ""}],
    ],
)
def test_a_booking_that_was_stripped_before_the_agent_settled_stays(changes: list[dict[str, str]]) -> None:
    node = Node()
    node.hear(booked(gpu_pod("p", 10), [A], 5))
    for change in changes:
        node.hear(annotated(node.api["p"], change))
    assert isinstance(node.allocate("p"), GpuMatch)
    assert node.gpus("p") == A
    assert node.start("p") == ""


def test_of_two_seals_between_two_settlements_the_newer_one_counts() -> None:
    node = Node()
    older, newer = booked(gpu_pod("p", 10), [B], 4), booked(gpu_pod("p", 10), [A], 5)
    for state in (older, newer, older):
        node.hear(state)
    node.settle()
    assert node.holders()["p"].rooms == {A: GpuRoom(10, 0)}


def test_a_pod_in_two_dialects_is_announced_with_both() -> None:
    share = dialect("gpushare", 2)
    node = Node()
    node.settings = GpuSettings(dialects=(DOSLAB, share))
    body = msgspec.to_builtins(gpu_pod("p", 4))
    body["spec"]["containers"][0]["resources"]["limits"] = {DOSLAB.memory: "4", share.memory: "3"}
    node.add(msgspec.convert(body, GpuPod))
    assert isinstance(node.allocate("p"), GpuMatch)
    assert sum(room.memory for room in node.holders()["p"].rooms.values()) == 4 + 3 * 2


def test_a_condemned_pod_is_announced_with_nothing() -> None:
    node = Node()
    node.add(booked(gpu_pod("one", 10), [A], 1), booked(gpu_pod("two", 10, cores=7), [B], 2))
    assert isinstance(node.allocate("two"), GpuMatch)
    assert "must not start" in node.start("two")
    node.announce()
    pods = node.announced.pods
    assert pods is not None
    assert pods["two"] == AnnouncedPod(settled=True)
    assert pods["one"].rooms == {A: GpuRoom(10, 0)}


def test_a_condemned_pod_that_may_still_start_is_announced_with_what_it_holds() -> None:
    node = Node()
    node.add(gpu_pod("p", 10, gpus=A, time=1))
    assert isinstance(node.allocate("p"), GpuMatch)
    node.crash()
    node.api["p"] = annotated(node.api["p"], {"doslab.io/gpu-uuid": "nonsense"})
    assert "must not start" in node.start("p")
    assert node.holders() == {"p": AnnouncedPod(rooms={A: GpuRoom(10, 0)}, settled=True)}
    node.api["p"] = annotated(node.api["p"], {"doslab.io/gpu-uuid": A})
    assert node.start("p") == ""
    assert node.holders()["p"].rooms == {A: GpuRoom(10, 0)}


def test_a_booking_of_a_condemned_pod_that_may_still_start_stays_announced() -> None:
    node = Node()
    node.add(booked(gpu_pod("p", 10), [A], 3))
    assert isinstance(node.allocate("p"), GpuMatch)
    [(key, held)] = node.held.items()
    node.held[key] = msgspec.structs.replace(held, injected=None)
    node.crash()
    assert "cannot be read back" in node.start("p")
    assert node.holders()["p"].rooms == {A: GpuRoom(10, 0)}
