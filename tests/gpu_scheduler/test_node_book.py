"""What counts on a node: the agent's word, then what this process has booked, then the newest seal, then a guess."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colocate.gpus import (
    COUNT_WISH,
    DOSLAB,
    GPUSHARE,
    SEAL,
    AnnouncedPod,
    GpuRoom,
    annotations_for,
    announcement,
    announcement_of,
    asks_of,
    dialect,
    seal,
)
from colocate.gpus.packing import GpuDemand, PackingPolicy
from colocate.gpus.packing import guesses as guessing
from colocate.gpus.packing.cluster_book import ClusterBook
from colocate.gpus.packing.objects import PackedPod
from tests.gpu_scheduler.clusters import gpus, uuid
from tests.gpu_scheduler.fake_api import packed_node

KEY = b"the key of the agents"
SIZE = 1000
G0, G1, G2 = (uuid("a", index) for index in range(3))
INVENTORY = gpus("a", 3, size=SIZE)
HALF = GpuRoom(500, 0)
MIRROR = {"kubernetes.io/config.mirror": "x"}


def pod(uid: str, memory: int = 500, *, node: str = "a", cores: int = 0) -> PackedPod:
    limits = {DOSLAB.memory: str(memory), **({DOSLAB.cores: str(cores)} if cores else {})}
    body: dict[str, Any] = {
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending"},
    }
    return msgspec.convert(body, PackedPod)


def sealed(one: PackedPod, gpu: str, number: int, key: bytes = KEY) -> PackedPod:
    asks = asks_of(one, DOSLAB).containers
    said = annotations_for(DOSLAB, DOSLAB.annotations[0], asks, [(gpu,)], INVENTORY, assume_time=number)
    return changed(one, {**said, SEAL: seal(one.uid, DOSLAB, asks, [(gpu,)], number, key)})


def changed(one: PackedPod, annotations: Mapping[str, str]) -> PackedPod:
    metadata = msgspec.structs.replace(one.metadata, annotations={**one.annotations, **annotations})
    return msgspec.structs.replace(one, metadata=metadata)


class Book:
    """One node, and what its agent says."""

    def __init__(self, *keys: bytes, told: bool = True) -> None:
        self.book = ClusterBook(PackingPolicy.OURS, (DOSLAB, GPUSHARE), keys or (KEY,))
        if told:
            self.tell()
        else:
            self.book.put_node(packed_node("a", INVENTORY))

    def tell(self, *absent: str, **pods: AnnouncedPod) -> None:
        text = announcement_of(INVENTORY, {}, pods, absent)
        self.book.put_node(packed_node("a", INVENTORY, text))

    @property
    def used(self) -> dict[str, int]:
        return {gpu: room.memory for gpu, room in self.book.books["a"].used.items()}

    def bind(self, one: PackedPod) -> str:
        """Book and bind; the GPU."""
        free = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, node_name=""))
        choice = self.book.reserve(free, "a", 10)
        assert choice is not None
        self.book.begin(one.uid)
        self.book.number(one.uid, 5)
        self.book.put_pod(sealed(one, choice.given[0][0], 5))
        return choice.given[0][0]


def has(gpu: str, memory: int = 500, *, settled: bool = True, number: int = 0) -> AnnouncedPod:
    return AnnouncedPod(rooms={gpu: GpuRoom(memory, 0)}, settled=settled, number=number)


ATTACKS = {
    "600 characters of models": {"colocate.dev/gpu-models": "m" * 600},
    "another GPU": {"doslab.io/gpu-uuid": G2},
    "no such GPU": {"doslab.io/gpu-uuid": "GPU-none"},
    "no seal": {SEAL: ""},
    "another set": {"DOSLAB_IO_GPU_UUID": G2, "DOSLAB_IO_GPU_ASSUME_TIME": "9"},
    "more GPUs": {"colocate.dev/gpu-count": "3"},
    "nonsense of GPUs": {"colocate.dev/gpu-count": "many"},
    "a mirror": MIRROR,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize("told", [False, True])
def test_no_annotation_of_a_tenant_erases_a_booking(attack: dict[str, str], told: bool) -> None:
    """Neither before the agent has spoken nor after."""
    node = Book()
    gpu = node.bind(pod("victim"))
    if told:
        node.tell(victim=has(gpu, number=5))
    node.book.put_pod(changed(sealed(pod("victim"), gpu, 5), attack))
    assert node.used == {gpu: 500}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_after_a_restart_of_the_scheduler_the_agents_word_counts(attack: dict[str, str]) -> None:
    node = Book()
    node.book.put_pod(changed(sealed(pod("victim"), G1, 5), attack))
    node.tell(victim=has(G1, number=5))
    assert node.used == {G1: 500}


@pytest.mark.parametrize("count", ["1", "3", "many", "9" * 500])
def test_after_a_restart_a_sealed_number_of_gpus_counts_whatever_is_wished_for_by_now(count: str) -> None:
    """The agent has not spoken yet: the seal is all there is."""
    two = changed(pod("victim"), {COUNT_WISH: "2"})
    asks = asks_of(two, DOSLAB).containers
    said = annotations_for(DOSLAB, DOSLAB.annotations[0], asks, [(G0, G1)], INVENTORY, assume_time=5)
    booked = changed(two, {**said, SEAL: seal("victim", DOSLAB, asks, [(G0, G1)], 5, KEY)})
    node = Book()
    node.book.put_pod(changed(booked, {COUNT_WISH: count}))
    assert node.used == {G0: 500, G1: 500}


def test_a_node_that_counts_in_another_unit_gets_no_pod_and_is_named() -> None:
    node = Book()
    waiting = pod("p", 2, node="")
    demand = node.book.demand(waiting)
    assert isinstance(demand, GpuDemand)
    for units, words in (
        (
            {DOSLAB.memory: 64},
            "node a counts doslab.io/gpu-memory in units of 64 MiB, this scheduler in 1 MiB: ",
        ),
        (
            {"colocate.dev/gpu-memory": 256},
            "the agent of node a does not offer doslab.io/gpu-memory, or lets",
        ),
    ):
        node.book.put_node(packed_node("a", INVENTORY, announcement_of(INVENTORY, units, {})))
        assert not np.isfinite(node.book.scores(demand, ["a"])).any()
        assert node.book.why_not(demand, "a")[0].startswith(words)
        assert node.book.why_not(demand, "a")[1]
        assert node.book.reserve(waiting, "a", 10) is None
        assert not node.book.fits_without(demand, "a", [])
    node.book.put_node(packed_node("a", INVENTORY, announcement_of(INVENTORY, {DOSLAB.memory: 1}, {})))
    assert node.book.reserve(waiting, "a", 10) is not None


def test_a_seal_of_another_unit_counts_as_much_as_when_it_was_made() -> None:
    """The scheduler was restarted with another unit: what was booked is what the agent gives."""
    other = dialect("doslab", 2)
    one = pod("victim", 200)
    asks = asks_of(one, other).containers
    said = annotations_for(other, other.annotations[0], asks, [(G0,)], INVENTORY, assume_time=5)
    node = Book()
    node.book.put_pod(changed(one, {**said, SEAL: seal("victim", other, asks, [(G0,)], 5, KEY)}))
    assert node.used == {G0: 400}


def test_two_dialects_in_one_pod_erase_nothing() -> None:
    node = Book()
    body = msgspec.to_builtins(sealed(pod("victim"), G0, 5))
    body["spec"]["containers"][0]["resources"]["limits"][GPUSHARE.memory] = "1"
    both = msgspec.convert(body, PackedPod)
    node.book.put_pod(both)
    assert sum(node.used.values()) == 500, "1 GiB fits on no GPU here, and the agent gives none"
    node.tell(victim=has(G0))
    assert node.used == {G0: 500}


def test_an_older_seal_never_replaces_a_newer_one() -> None:
    node = Book()
    node.book.put_pod(sealed(pod("p"), G0, 5))
    node.book.put_pod(sealed(pod("p"), G1, 7))
    assert node.used == {G1: 500}
    node.book.put_pod(sealed(pod("p"), G0, 5))
    assert node.used == {G1: 500}
    node.tell(p=has(G1, number=7))
    node.book.put_pod(sealed(pod("p"), G0, 5))
    assert node.used == {G1: 500}


def test_seals_of_both_keys_count_while_one_is_changed_and_of_no_third() -> None:
    node = Book(b"a new key of agents", KEY)
    node.book.put_pod(sealed(pod("old"), G0, 5))
    node.book.put_pod(sealed(pod("new"), G1, 5, b"a new key of agents"))
    node.book.put_pod(changed(sealed(pod("p", 900), G2, 5, b"another key of foes"), {}))
    assert node.book.booking("old") is not None
    assert node.used[G0] == 500
    assert node.used[G1] == 500


def test_a_swap_is_seen_at_once_and_whole() -> None:
    node = Book()
    node.tell(one=has(G0, settled=False), two=has(G1, settled=False))
    for uid, gpu in (("one", G0), ("two", G1)):
        node.book.put_pod(sealed(pod(uid), gpu, 5))
    before = dict(node.used)
    node.tell(one=has(G1), two=has(G0))
    assert node.used == before
    node.book.put_pod(sealed(pod("one"), G1, 6))
    assert node.used == before, "annotations are for people"


def test_a_pod_that_ends_in_the_middle_of_a_swap_frees_nothing_until_the_agent_has_spoken() -> None:
    node = Book()
    for uid, gpu in (("one", G0), ("two", G1)):
        node.book.put_pod(sealed(pod(uid), gpu, 5))
    node.tell(one=has(G0, settled=False), two=has(G1, settled=False))
    node.book.remove_pod("one")
    assert node.used == {G0: 500, G1: 500}, "the kubelet may have given its GPU to the other"
    node.tell(two=has(G0))
    assert node.used == {G0: 500}


def test_a_dead_agent_keeps_the_gpu_of_a_pod_that_ended_for_half_a_minute_at_most() -> None:
    node = Book()
    for uid, gpu in (("one", G0), ("two", G1)):
        node.book.put_pod(sealed(pod(uid), gpu, 5))
    node.book.expire(100.0)
    node.book.remove_pod("one")
    node.book.expire(129.0)
    assert node.used == {G0: 500, G1: 500}
    node.book.expire(131.0)
    assert node.used == {G1: 500}


def test_a_pod_that_ran_frees_its_gpu_at_once() -> None:
    node = Book()
    for uid, gpu in (("one", G0), ("two", G1)):
        node.book.put_pod(sealed(pod(uid), gpu, 5))
    node.tell(one=has(G0), two=has(G1))
    node.book.remove_pod("one")
    assert node.used == {G1: 500}
    node.tell(one=has(G0), two=has(G1))
    assert node.used == {G1: 500}, "an agent that is dead or late does not bring it back"


def test_a_pod_that_nobody_can_place_counts_once_and_not_at_all_once_it_is_absent() -> None:
    node = Book()
    node.book.put_pod(pod("ghost", 900))
    assert sum(node.used.values()) == 900
    assert len(node.used) == 1
    node.tell("ghost")
    assert node.used == {}
    node.tell()
    assert sum(node.used.values()) == 900, "it is run after all"
    node.tell(ghost=has(G2, 900))
    assert node.used == {G2: 900}


def test_a_mirror_counts_nowhere_by_its_own_uid() -> None:
    """More than an agent could name as absent, which never run: a finalizer keeps them."""
    node = Book()
    for number in range(300):
        node.book.put_pod(changed(pod(f"ghost-{number}", SIZE), MIRROR))
    assert node.used == {}
    node.tell(static=has(G1, 300))
    assert node.used == {G1: 300}, "a static pod counts by the agent's word"


@pytest.mark.parametrize("known", ["booked here", "sealed"])
def test_a_booking_stays_though_the_kubelet_is_so_slow_that_the_agent_calls_the_pod_absent(
    known: str,
) -> None:
    node = Book()
    if known == "sealed":
        node.book.put_pod(sealed(pod("slow"), G0, 5))
        gpu = G0
    else:
        gpu = node.bind(pod("slow"))
    node.tell("slow")
    assert node.used == {gpu: 500}
    node.book.put_pod(changed(sealed(pod("slow"), gpu, 5), {"doslab.io/gpu-uuid": G2}))
    assert node.used == {gpu: 500}
    node.book.remove_pod("slow")
    assert node.used == {}


def test_of_pods_that_nobody_can_place_only_so_many_count_the_oldest_first() -> None:
    node = Book()
    for number in reversed(range(300)):
        node.book.put_pod(pod(f"ghost-{number:03}", 1))
    assert sum(node.used.values()) == 128
    assert node.book.booking("ghost-127") is not None
    assert node.book.booking("ghost-128") is None


def test_where_more_are_absent_than_an_agent_can_name_no_guess_counts() -> None:
    node = Book()
    ghosts = [f"ghost-{number:03}" for number in range(259)]
    for ghost in ghosts:
        node.book.put_pod(pod(ghost, SIZE))
    node.book.put_pod(sealed(pod("victim"), G1, 5))
    node.tell(*ghosts)
    assert node.used == {G1: 500}


def test_pods_that_nobody_can_place_cost_work_once_and_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted in guesses: 600 pods of one node, then an event of each, with a question now and then."""
    guesses = 0
    guess = guessing._with_guess

    def counted(*args: Any) -> Any:
        nonlocal guesses
        guesses += 1
        return guess(*args)

    monkeypatch.setattr(guessing, "_with_guess", counted)
    node = Book()
    demand = node.book.demand(pod("p", 1, node=""))
    assert isinstance(demand, GpuDemand)
    for _ in range(2):
        for number in range(600):
            node.book.put_pod(pod(f"ghost-{number:03}", 1))
        assert guesses == 0, "nothing was asked"
        for _ in range(10):
            assert np.isfinite(node.book.scores(demand, ["a"])).all()
            node.book.why_not(demand, "a")
        assert 0 < guesses <= 128
        guesses = 0
    for number in range(600):
        node.book.put_pod(pod(f"large-{number:03}", SIZE))
    assert sum(node.used.values()) <= 3 * SIZE
    guesses = 0
    node.tell(full=has(G0, SIZE), full_too=has(G1, SIZE), also_full=has(G2, SIZE))
    assert not np.isfinite(node.book.scores(demand, ["a"])).any()
    assert guesses == 0, "nothing is left to guess at"


def test_it_counts_where_the_agent_would_put_it() -> None:
    node = Book()
    node.tell(a=has(G1, 300), b=has(G0, 600))
    node.book.put_pod(pod("guess", 500))
    assert node.used == {G0: 600, G1: 800}
    node.book.put_pod(pod("too much", 2000))
    assert node.used == {G0: 600, G1: 800}, "the agent gives it nothing"


def test_who_is_announced_and_unknown_to_the_api_counts_and_a_pod_of_another_node_does_not() -> None:
    node = Book()
    node.book.put_pod(pod("elsewhere", node="b"))
    node.tell(static=has(G0, 300), elsewhere=has(G1, 300))
    assert node.used == {G0: 300}


def test_an_announcement_that_comes_after_the_end_of_a_pod_does_not_bring_it_back() -> None:
    node = Book()
    node.book.put_pod(sealed(pod("p"), G0, 5))
    node.book.remove_pod("p")
    node.tell(p=has(G0))
    assert node.used == {}


def test_what_an_announcement_leaves_unnamed_counts() -> None:
    node = Book()
    pods = {f"{n:08}-0000-0000-0000-000000000000": has(G0, 1) for n in range(1100)}
    node.tell(**pods)
    assert node.used == {G0: 1100}


def test_one_long_pod_takes_nobody_elses_place_in_an_announcement() -> None:
    node = Book()
    node.book.put_pod(sealed(pod("victim", 400), G1, 5))
    long = msgspec.structs.replace(has(G0, 1, settled=False), due={DOSLAB.memory: ((G0, G1, G2),) * 9000})
    node.tell(a_long_one=long, victim=has(G1, 400, number=5))
    assert node.used == {G0: 1, G1: 400}
    assert node.book.booking("victim") is not None, "it is named"


held_pods = st.lists(
    st.tuples(
        st.sampled_from([G0, G1, G2]),
        st.integers(1, 20),
        st.booleans(),
        st.integers(0, 60),
        st.sampled_from(["sealed", "loose", "unknown"]),
    ),
    max_size=30,
)


@given(held_pods, st.sampled_from([800, 1200, 2000, 64 << 10]), st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_book_read_from_an_announcement_that_was_cut_short_is_the_agents(
    drawn: list[tuple[str, int, bool, int, str]], longest: int, first: bool
) -> None:
    """Each pod counts once, whether it is named or summed up, and known to the scheduler before, after or never."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(announcement, "_LONGEST", longest)
        node = Book()
        told: dict[str, AnnouncedPod] = {}
        sums: dict[str, int] = {}
        known: list[PackedPod] = []
        for number, (gpu, memory, is_settled, length, how) in enumerate(drawn):
            uid = f"{number:08}-0000-0000-0000-000000000000"
            due = {DOSLAB.memory: ((gpu,),) * length}
            told[uid] = msgspec.structs.replace(has(gpu, memory, settled=is_settled, number=5), due=due)
            sums[gpu] = sums.get(gpu, 0) + memory
            if how != "unknown":
                one = pod(uid, memory)
                known.append(sealed(one, gpu, 5) if how == "sealed" else one)
        if first:
            node.tell(**told)
        for one in known:
            node.book.put_pod(one)
        if not first:
            node.tell(**told)
        assert node.used == sums
        node.tell()
        assert sum(node.used.values()) == sum(memory for _, memory, _, _, how in drawn if how != "unknown"), (
            "what is not told any more counts as before"
        )


def test_with_an_agent_that_says_nothing_of_pods_annotations_are_all_there_is() -> None:
    node = Book(told=False)
    node.book.put_pod(changed(pod("p"), {"doslab.io/gpu-uuid": G2}))
    assert node.used == {G2: 500}


def test_equal_pods_on_their_way_share_a_gpu_while_they_fit_and_one_like_them_only_to_the_kubelet_waits() -> (
    None
):
    node = Book()
    first = node.bind(pod("one", 300))
    assert node.bind(pod("two", 300)) == first
    assert node.bind(pod("three", 300)) == first
    fourth = node.bind(pod("four", 300))
    assert fourth != first, "alike ones are swapped"
    free = msgspec.structs.replace(pod("odd", 300, cores=10), spec=pod("odd", 300, cores=10, node="").spec)
    assert node.book.reserve(free, "a", 10) is None
    assert "could take one for the other" in node.book.waits_for(free, "a")
    node.tell(one=has(first, 300), two=has(first, 300), three=has(first, 300), four=has(fourth, 300))
    assert node.book.reserve(free, "a", 10) is not None


def test_a_pod_does_not_wait_for_others_that_come_without_end() -> None:
    node = Book()
    node.bind(pod("rival-0", 600))
    victim = pod("victim", 600, cores=10, node="")
    assert node.book.reserve(victim, "a", 100) is None
    for number, at in enumerate((5.0, 10.0, 14.0)):
        node.book.expire(at)
        node.bind(pod(f"rival-{number + 1}", 600))
        node.book.remove_pod(f"rival-{number}")
        node.tell()
        assert node.book.reserve(victim, "a", 100) is None, f"another is on its way at {at} s"
    node.book.expire(16.0)
    assert node.book.reserve(victim, "a", 100) is not None
