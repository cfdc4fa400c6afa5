"""Which pod an Allocate is for: pods are found by what containers ask for, in the order of their bookings."""

import msgspec
import pytest

from colocate.gpus import (
    COUNT_WISH,
    DOSLAB,
    GPUSHARE,
    SEAL,
    VOLCANO,
    Dialect,
    GpuAnswers,
    GpuBook,
    GpuMatch,
    GpuRefusal,
    GpuRoom,
    GpuSettings,
    Unassumed,
    asks_of,
    claim_of,
    dialect,
    waiting_pods,
    wish_of,
)
from colocate.gpus.answers import claimed_booking
from colocate.gpus.matching import _wished
from colocate.model.gpu import Gpu, GpuInventory
from tests.gpus.node import KEY, TWO, Node, annotated, booked, gpu_pod

A, B = "GPU-aaaa", "GPU-bbbb"


def matched(result: GpuMatch | GpuRefusal) -> tuple[str, str, tuple[str, ...]]:
    assert isinstance(result, GpuMatch), result
    return result.answer.key.uid, result.answer.key.container, result.answer.gpus


def refused(result: GpuMatch | GpuRefusal | None) -> GpuRefusal:
    assert isinstance(result, GpuRefusal)
    return result


def test_the_pod_that_asks_for_so_much_gets_the_gpu_that_its_annotation_names() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1), gpu_pod("q", 5, gpus=B, time=2))
    assert matched(node.allocate("q")) == ("q", "c0", (B,))
    assert matched(node.allocate("p")) == ("p", "c0", (A,))


def test_every_candidate_is_itself_and_not_the_last_of_the_loop() -> None:
    """The seed kept a pointer to its loop variable: every candidate was the last pod."""
    node = Node()
    node.add(*(gpu_pod(f"p{n}", n, gpus=A if n % 2 else B, time=n) for n in range(1, 6)))
    for n in range(1, 6):
        assert matched(node.allocate(f"p{n}")) == (f"p{n}", "c0", (A if n % 2 else B,))


def test_containers_are_compared_one_by_one_and_not_by_their_sum() -> None:
    """The seed compared the pod's sum with one container's request: several GPU containers never matched."""
    node = Node()
    node.add(gpu_pod("other", 7, gpus=A, time=1), gpu_pod("p", 3, 4, gpus=B, time=2))
    assert node.admit("p") is None
    assert (node.gpus("p", "c0"), node.gpus("p", "c1")) == (B, B)
    assert not node.start("p", "c0")
    assert not node.start("p", "c1")


def test_init_containers_hand_on_their_slices_and_their_gpu_holds_both() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, 3, init=(6,), gpus=A, time=1))
    assert node.admit("p") is None
    for container in ("i0", "c0", "c1"):
        assert not node.start("p", container), container
    assert node.answers.book(TWO).free(A).memory == 16 - 7


def test_an_init_container_of_the_same_size_as_its_successor_is_told_from_it() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, init=(4,), gpus=A, time=1), gpu_pod("q", 4, gpus=B, time=0))
    node.blind.add("q")
    assert node.admit("p") is None
    node.blind.clear()
    assert not node.start("p", "i0")
    assert not node.start("p", "c0")
    assert matched(node.allocate("q")) == ("q", "c0", (B,))


def test_among_equals_the_earliest_booking_goes_first_and_times_that_cannot_be_read_last() -> None:
    node = Node(settings=GpuSettings())
    late = 2_000_000_000_000_000_000
    node.add(
        gpu_pod("odd", 4, gpus=A, time="yesterday"),
        gpu_pod("second", 4, gpus=B, time=late + 1),
        gpu_pod("first", 4, gpus=A, time=late),
        gpu_pod("none", 4),
    )
    order = [matched(node.allocate(uid))[0] for uid in ("none", "first", "second", "odd")]
    assert order == ["none", "first", "second", "odd"]


def test_pods_that_say_the_same_time_go_as_they_were_heard_of() -> None:
    node = Node(settings=GpuSettings())
    for uid in ("z", "b", "x", "a"):
        node.add(gpu_pod(uid, 2, gpus=A, time=1, cores=len(node.api)))
    assert [matched(node.allocate(uid))[0] for uid in "zbxa"] == ["z", "b", "x", "a"]


@pytest.mark.parametrize("time", [0, 1, "0000", "-5", "1e3", "१", "9" * 30])
def test_a_tenant_who_writes_his_own_time_does_not_go_before_a_booking_of_ours(time: int | str) -> None:
    node = Node()
    ours = booked(gpu_pod("ours", 4, created=50), [A], time=1_900_000_000_000_000_000)
    node.add(gpu_pod("tenant", 4, gpus=B, time=time, created=10), ours)
    assert matched(node.allocate("ours"))[0] == "ours"


def test_without_seals_a_time_before_the_pod_was_created_counts_as_its_creation() -> None:
    node = Node(settings=GpuSettings())
    second = 1_767_225_600  # 2026-01-01
    node.add(
        gpu_pod("tenant", 4, gpus=B, time=0, created=30),
        gpu_pod("earlier", 4, gpus=A, time=(second + 20) * 10**9, created=1),
    )
    assert matched(node.allocate("earlier"))[0] == "earlier"


@pytest.mark.parametrize("change", [{"doslab.io/gpu-uuid": B}, {"doslab.io/gpu-assume-time": "7"}])
def test_a_booking_that_was_changed_afterwards_is_a_wish(change: dict[str, str]) -> None:
    node = Node()
    changed = annotated(booked(gpu_pod("changed", 4), [A], time=1), change)
    node.add(changed, booked(gpu_pod("ours", 4), [A], time=9))
    assert matched(node.allocate("ours"))[0] == "ours"


@pytest.mark.parametrize("rewritten", ["1", "3", "64", "all", ""])
def test_a_number_of_gpus_that_is_wished_for_later_changes_nothing_that_was_booked(rewritten: str) -> None:
    """Else a tenant would make his booking a wish, and its GPUs look free to others."""
    node = Node()
    two = booked(gpu_pod("two", 4, annotations={COUNT_WISH: "2"}), [A, B], time=1)
    node.add(annotated(two, {COUNT_WISH: rewritten}))
    claim = claim_of(node.api["two"], DOSLAB, TWO, node.settings)
    assert claim is not None
    assert claim.wish.sealed
    assert not claim.problem
    assert [ask.count for ask in claim.asks.containers] == [2]
    assert node.admit("two") is None
    assert node.gpus("two") == f"{A},{B}"
    node.api["two"] = annotated(node.api["two"], {COUNT_WISH: "1"})
    assert node.start("two") == ""
    assert node.answers.book(TWO).used == {A: GpuRoom(4), B: GpuRoom(4)}


def test_what_nobody_booked_is_asked_for_as_the_tenant_wishes() -> None:
    pod = gpu_pod("p", 4, gpus=f"{A},{B}", time=1, annotations={COUNT_WISH: "1", SEAL: "1:nonsense"})
    claim = claim_of(pod, DOSLAB, TWO, GpuSettings(keys=(KEY,)))
    assert claim is not None
    assert not claim.wish.sealed
    assert claim.gpus("c0") == (A,)


def test_a_booking_in_another_unit_is_refused_by_name() -> None:
    node = Node()
    node.add(booked(gpu_pod("p", 4), [A], dialect=dialect("doslab", 64)))
    refused = node.admit("p")
    assert refused is not None
    assert (
        "its scheduler has booked doslab.io/gpu-memory in units of 64 MiB, and this node counts it in 1 MiB; set the "
        "unit of gpus.dialects[doslab] alike" in refused.sentence
    )


def test_a_seal_copied_from_another_pod_is_worth_nothing() -> None:
    node = Node()
    ours = booked(gpu_pod("ours", 4), [A], time=9)
    node.add(annotated(gpu_pod("thief", 4), ours.annotations), ours)
    assert matched(node.allocate("ours"))[0] == "ours"


def test_a_wish_takes_nothing_that_is_booked_for_a_pod_still_to_come() -> None:
    node = Node()
    node.add(booked(gpu_pod("ours", 15), [A]), gpu_pod("wish", 4, gpus=A, time=1))
    refusal = refused(node.allocate("wish"))
    assert refusal.uid == "wish"
    assert f"GPU {A} has 1 MiB of 16 MiB free, and 4 MiB are asked for" in refusal.sentence
    assert matched(node.allocate("ours")) == ("ours", "c0", (A,))


def test_a_wish_for_more_than_its_gpu_has_is_refused_whatever_other_gpus_have() -> None:
    node = Node()
    node.add(gpu_pod("p", 10, gpus=A, time=1), gpu_pod("q", 10, gpus=A, time=2))
    assert matched(node.allocate("p"))[0] == "p"
    assert "6 MiB of 16 MiB free" in refused(node.allocate("q")).sentence


def test_cores_are_not_oversold_either() -> None:
    node = Node()
    node.add(gpu_pod("p", 1, gpus=A, time=1, cores=60), gpu_pod("q", 2, gpus=A, time=2, cores=60))
    assert matched(node.allocate("p"))[0] == "p"
    assert "40 of 100 cores free, and 60" in refused(node.allocate("q")).sentence


def test_a_pod_that_cannot_be_served_does_not_stand_before_one_that_can() -> None:
    node = Node()
    node.add(gpu_pod("nonsense", 4, gpus="GPU-none", time=1), gpu_pod("good", 4, gpus=A, time=2))
    assert matched(node.allocate("good")) == ("good", "c0", (A,))
    assert "GPU-none" in refused(node.allocate("nonsense")).sentence


def test_several_gpus_each_give_that_much_and_are_told_joined_by_commas() -> None:
    node = Node()
    node.add(gpu_pod("p", 6, gpus=f"{A},{B}", time=1, count=2))
    assert matched(node.allocate("p")) == ("p", "c0", (A, B))
    assert node.gpus("p") == f"{A},{B}"
    book = node.answers.book(TWO)
    assert (book.free(A).memory, book.free(B).memory) == (10, 10)


def test_several_gpus_that_the_agent_chooses_are_of_one_model_where_there_are_enough() -> None:
    models = ("T4", "A100", "T4", "A100")
    gpus = GpuInventory(
        tuple(
            Gpu(uuid=f"GPU-{place}aaa", index=place, memory=16 + place % 2, model=model)
            for place, model in enumerate(models)
        )
    )
    node = Node(gpus)
    node.add(gpu_pod("u", 4, annotations={COUNT_WISH: "2"}), gpu_pod("v", 17, annotations={COUNT_WISH: "2"}))
    assert node.admit("v") is None
    assert node.gpus("v") == "GPU-1aaa,GPU-3aaa"
    assert node.admit("u") is None
    assert node.gpus("u") == "GPU-0aaa,GPU-2aaa"
    node.add(gpu_pod("w", 1, annotations={COUNT_WISH: "3"}))
    refused = node.admit("w")
    assert refused is not None
    assert "each of 3 GPUs" in refused.sentence


def test_each_container_may_have_a_gpu_of_its_own() -> None:
    node = Node()
    node.add(gpu_pod("p", 9, 9, gpus=f"{A};{B}", time=1))
    assert node.admit("p") is None
    assert (node.gpus("p", "c0"), node.gpus("p", "c1")) == (A, B)


def test_one_that_nobody_booked_gets_the_fullest_gpu_that_fits_after_all_bookings() -> None:
    node = Node()
    node.add(booked(gpu_pod("ours", 12), [A]), gpu_pod("p", 3), gpu_pod("q", 5))
    assert matched(node.allocate("q")) == ("q", "c0", (B,))
    assert matched(node.allocate("p")) == ("p", "c0", (A,))
    assert matched(node.allocate("ours")) == ("ours", "c0", (A,))


def test_one_that_nobody_booked_leaves_others_the_gpu_that_they_wish_for_where_it_can() -> None:
    node = Node(settings=GpuSettings())
    node.add(gpu_pod("p", 10), gpu_pod("wish", 12, gpus=A, time=1), gpu_pod("last", 9))
    assert matched(node.allocate("p"))[2] == (B,)
    assert matched(node.allocate("last"))[2] == (A,)


def test_one_that_nobody_booked_is_refused_with_who_should_have_where_that_is_wanted() -> None:
    node = Node(settings=GpuSettings(unassumed=Unassumed.REFUSE))
    node.add(gpu_pod("p", 3))
    sentence = refused(node.allocate("p")).sentence
    assert "doslab.io/gpu-assume-time and doslab.io/gpu-uuid, which the GPU scheduler writes" in sentence
    assert "schedulerName: doslab-gpu-scheduler" in sentence


def test_with_a_key_one_that_wrote_its_own_booking_is_refused_where_only_booked_ones_are_wanted() -> None:
    node = Node(settings=GpuSettings(unassumed=Unassumed.REFUSE, keys=(KEY,)))
    node.add(gpu_pod("own", 3, gpus=A, time=1))
    assert f"no usable annotation {SEAL}" in refused(node.allocate("own")).sentence
    node.add(booked(gpu_pod("ours", 3), [A], time=2))
    assert matched(node.allocate("ours"))[0] == "ours"


def test_pods_that_cannot_be_served_or_were_refused_come_after_all_others() -> None:
    """Else whoever is admitted behind one of them would get its refusal."""
    pods = [gpu_pod("nonsense", 3, gpus="GPU-none", time=1), gpu_pod("refused", 3), gpu_pod("next", 3)]
    order = waiting_pods(["a", "b", "c"], DOSLAB, pods, GpuAnswers(), TWO, GpuSettings(), {"refused"})
    assert order[0].uid == "next"
    assert len(order) == 3


def test_of_two_bookings_that_exceed_a_gpu_together_the_earlier_one_starts() -> None:
    node = Node()
    node.add(booked(gpu_pod("late", 10), [A], time=9), booked(gpu_pod("early", 10), [A], time=1))
    assert node.admit("early") is None
    assert "10 MiB are asked for" in refused(node.allocate("late")).sentence


def test_one_without_room_is_told_what_is_free_where() -> None:
    node = Node()
    node.add(gpu_pod("p", 10, gpus=A, time=1), gpu_pod("q", 10, gpus=B, time=2), gpu_pod("r", 8))
    assert node.admit("p") is None
    assert node.admit("q") is None
    sentence = refused(node.allocate("r")).sentence
    assert (
        f"8 MiB of one GPU, and this node has free, beside what is booked for other pods: {A} 6 MiB"
        in sentence
    )


def test_an_allocate_for_nobody_says_what_others_ask_for() -> None:
    node = Node()
    node.add(gpu_pod("p", 3), gpu_pod("gone", 5))
    node.blind.add("gone")
    refusal = refused(node.allocate("gone"))
    assert refusal.unknown
    assert "waits for 5 of doslab.io/gpu-memory (others ask for 3)" in refusal.sentence


def test_pods_that_end_or_have_ended_are_no_candidates() -> None:
    node = Node()
    node.add(gpu_pod("done", 4, gpus=A, time=1, phase="Succeeded"), gpu_pod("p", 4, gpus=B, time=2))
    assert matched(node.allocate("p")) == ("p", "c0", (B,))


def test_a_retry_gets_the_same_gpu_whether_the_agent_remembers_or_not() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=B, time=1), gpu_pod("q", 4))
    assert matched(node.allocate("p", stored=False))[2] == (B,)
    assert matched(node.allocate("p", stored=False))[:2] == ("p", "c0")
    node.answers = type(node.answers)()
    assert matched(node.allocate("p"))[2] == (B,)
    assert not node.start("p")


def test_a_pod_deleted_while_it_was_admitted_leaves_nothing_behind() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1), gpu_pod("q", 4, gpus=A, time=2))
    assert node.admit("p") is None
    node.delete("p")
    assert node.admit("q") is None
    assert not node.start("q")
    assert [answer.key.uid for answer in node.answers] == ["q"]


def test_an_answer_that_the_kubelet_never_took_is_forgotten_after_a_while() -> None:
    node = Node()
    node.add(gpu_pod("p", 4, gpus=A, time=1))
    node.allocate("p", stored=False)
    node.settle()
    assert node.answers.book(TWO).free(A).memory == 12
    node.now = 61
    node.settle()
    assert node.answers.book(TWO).free(A).memory == 16


@pytest.mark.parametrize(("dialect", "name"), [(DOSLAB, B), (GPUSHARE, "1"), (VOLCANO, "1")])
def test_each_dialect_names_its_gpus_and_is_told_in_its_own_words(dialect: Dialect, name: str) -> None:
    gpus = GpuInventory(tuple(Gpu(uuid=u, index=i, memory=16384) for i, u in enumerate((A, B))))
    node = Node(gpus, GpuSettings(dialects=(DOSLAB, GPUSHARE, VOLCANO), keys=(KEY,)))
    node.add(gpu_pod("p", 2, gpus=name, time=1, dialect=dialect))
    assert matched(node.allocate("p", dialect=dialect))[2] == (B,)
    assert not node.start("p", dialect=dialect)
    injected = next(iter(node.held.values())).injected
    assert injected is not None
    total = 16384 // dialect.unit
    expected = {
        "doslab": {
            "DOSLAB_IO_GPU_UUID": B,
            "DOSLAB_IO_GPU_RESOURCE_USED_BY_POD": "2",
            "DOSLAB_IO_GPU_RESOURCE_USED_BY_CONTAINER": "2",
            "DOSLAB_IO_GPU_RESOURCE_TOTAL": str(total),
        },
        "gpushare": {
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_POD": "2",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
            "ALIYUN_COM_GPU_MEM_DEV": str(total),
        },
        "volcano": {"VOLCANO_GPU_ALLOCATED": "2", "VOLCANO_GPU_MEMORY_TOTAL": str(total)},
    }
    assert injected.envs == {"NVIDIA_VISIBLE_DEVICES": B, **expected[dialect.name]}


def test_dialects_share_the_same_gpus() -> None:
    gpus = GpuInventory((Gpu(uuid=A, index=0, memory=2048),))
    node = Node(gpus, GpuSettings(dialects=(DOSLAB, GPUSHARE)))
    node.add(gpu_pod("p", 1536, gpus=A, time=1), gpu_pod("q", 1, dialect=GPUSHARE))
    assert matched(node.allocate("p"))[2] == (A,)
    assert "512 MiB" in refused(node.allocate("q", dialect=GPUSHARE)).sentence


BAD = [
    ({"doslab.io/gpu-uuid": "GPU-gone"}, "names the GPU GPU-gone, which is not on this node"),
    ({"doslab.io/gpu-uuid": "\x1b[31m;;"}, r"\x1b[31m"),
    ({"doslab.io/gpu-uuid": f"{A},{A}"}, "names a GPU twice"),
    ({"doslab.io/gpu-uuid": f"{A};{B};{A}"}, "has 3 lists of GPUs for 1 containers"),
    ({"doslab.io/gpu-uuid": "x" * 5000}, "has more than 4096 characters"),
    ({"doslab.io/gpu-uuid": f"{A},"}, "names the GPU (nothing)"),
]


@pytest.mark.parametrize(("annotations", "words"), BAD)
def test_nonsense_in_annotations_is_refused_in_one_sentence(annotations: dict[str, str], words: str) -> None:
    node = Node()
    node.add(gpu_pod("p", 4, annotations=annotations))
    refusal = refused(node.allocate("p"))
    assert refusal.sentence.startswith("pod default/p: ")
    assert words in refusal.sentence
    assert refusal.sentence.isprintable()


def test_a_node_without_gpus_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.add(gpu_pod("p", 4))
    ids = node.free_ids(DOSLAB)
    node.inventory = GpuInventory()
    monkeypatch.setattr(node, "free_ids", lambda _: ids)
    assert "no GPU to share" in refused(node.allocate("p")).sentence


def test_a_sick_gpu_is_refused_and_not_chosen() -> None:
    sick = GpuInventory((Gpu(uuid=A, index=0, memory=16, healthy=False, trouble="XID 79"), TWO.gpus[1]))
    node = Node(sick)
    node.add(gpu_pod("p", 4, gpus=A, time=1), gpu_pod("q", 5))
    assert "GPU GPU-aaaa is not healthy (XID 79)" in refused(node.allocate("p")).sentence
    assert matched(node.allocate("q"))[2] == (B,)


def test_while_a_key_is_changed_both_are_believed_and_no_third() -> None:
    node = Node(settings=GpuSettings(keys=(b"n" * 32, KEY)))
    node.add(
        booked(gpu_pod("old", 4, created=9), ["GPU-bbbb"]),
        booked(gpu_pod("new", 4, created=9), ["GPU-bbbb"], key=b"n" * 32),
        booked(gpu_pod("other", 4, created=9), ["GPU-bbbb"], key=b"x" * 32),
    )
    wishes = {
        uid: wish_of(pod, DOSLAB, asks_of(pod, DOSLAB).containers, TWO, node.settings.keys)
        for uid, pod in node.api.items()
    }
    assert {uid: wish.sealed for uid, wish in wishes.items()} == {"old": True, "new": True, "other": False}
    assert wishes["old"].number == 1
    assert wishes["other"].number == 0


def test_a_seal_says_in_which_unit_it_was_made_and_nobody_can_change_that() -> None:
    coarse = dialect("doslab", 64)
    pod = booked(gpu_pod("p", 4), ["GPU-bbbb"], dialect=coarse)
    asks = asks_of(pod, DOSLAB).containers
    assert wish_of(pod, DOSLAB, asks, TWO, (KEY,)).sealed_unit == 64
    changed = annotated(pod, {SEAL: pod.annotations[SEAL].replace("64:", "1:", 1)})
    assert wish_of(changed, DOSLAB, asks, TWO, (KEY,)).sealed_unit is None


def test_a_pod_with_too_many_containers_is_refused_at_its_first_and_takes_nothing_from_others() -> None:
    node = Node()
    many = gpu_pod("many", 1, init=[1] * 2000, annotations={COUNT_WISH: "2"})
    node.add(booked(many, [A, B]), gpu_pod("other", 16, gpus=A, time=2))
    for _ in range(2):
        result = refused(node.admit("many"))
        assert (result.uid, result.unknown) == ("many", False)
        assert "more than 16 of its containers ask for doslab.io/gpu-memory" in result.sentence
    assert matched(node.allocate("other")) == ("other", "c0", (A,))
    assert [each.key.uid for each in node.answers] == ["other"]
    assert set(node.holders()) == {"other"}


class CountedName(str):
    """A name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_what_a_pod_is_due_is_found_without_comparing_its_containers_with_each_other() -> None:
    claim = claim_of(gpu_pod("p", *[1] * 16, gpus=A, time=1), DOSLAB, TWO, GpuSettings())
    assert claim is not None
    asks = tuple(
        msgspec.structs.replace(claim.asks.containers[0], container=CountedName(f"c{place}"))
        for place in range(1000)
    )
    many = msgspec.structs.replace(claim, asks=msgspec.structs.replace(claim.asks, containers=asks))
    CountedName.compared = 0
    assert many.all_gpus == ((A,),) * 1000
    assert len(claimed_booking(many, GpuAnswers(), GpuBook.of_gpus(TWO)).containers) == 1000
    assert _wished([many], GpuAnswers()) == {A: 1000}
    assert CountedName.compared == 0
