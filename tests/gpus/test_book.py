"""The book: what is free, what fits, and that no GPU is ever given out twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.gpus import ContainerBooking, GpuBook, GpuOversold, GpuRoom, PodBooking
from colocate.model.gpu import CORES, Gpu, GpuInventory

GPUS = GpuInventory(
    (Gpu(uuid="GPU-a", index=0, memory=16_000), Gpu(uuid="GPU-b", index=1, memory=80_000, healthy=True))
)


def booked(
    uid: str,
    memory: int,
    *gpus: str,
    cores: int = 0,
    init: bool = False,
    sidecar: bool = False,
    name: str = "c",
) -> PodBooking:
    each = ContainerBooking(container=name, gpus=gpus, memory=memory, cores=cores, init=init, sidecar=sidecar)
    return PodBooking(uid=uid, containers=(each,))


def test_what_a_pod_has_is_no_longer_free_until_it_is_released() -> None:
    book = GpuBook.of_gpus(GPUS).book(booked("p", 4000, "GPU-a", cores=30))
    assert book.free("GPU-a") == GpuRoom(12_000, 70)
    assert book.free("GPU-b") == GpuRoom(80_000, 100)
    assert book.release("p").free("GPU-a") == GpuRoom(16_000, 100)


def test_each_gpu_of_several_gives_as_much() -> None:
    book = GpuBook.of_gpus(GPUS).book(booked("p", 4000, "GPU-a", "GPU-b"))
    assert (book.free("GPU-a").memory, book.free("GPU-b").memory) == (12_000, 76_000)


@pytest.mark.parametrize(
    ("booking", "words"),
    [
        (booked("q", 12_001, "GPU-a"), "12000 MiB of 16000 MiB free, and 12001 MiB are asked for"),
        (booked("q", 1, "GPU-a", cores=71), "70 of 100 cores free, and 71"),
        (booked("q", 1, "GPU-gone"), "no GPU GPU-gone"),
    ],
)
def test_what_does_not_fit_is_refused(booking: PodBooking, words: str) -> None:
    book = GpuBook.of_gpus(GPUS).book(booked("p", 4000, "GPU-a", cores=30))
    with pytest.raises(GpuOversold, match=words):
        book.book(booking)


def test_a_sick_gpu_or_one_in_mig_mode_takes_no_new_pod() -> None:
    sick = Gpu(uuid="GPU-s", index=0, memory=100, healthy=False, trouble="XID 79")
    mig = Gpu(uuid="GPU-m", index=1, memory=100, mig=True)
    book = GpuBook.of_gpus(GpuInventory((sick, mig)))
    assert "XID 79" in book.why_not(booked("p", 1, "GPU-s"))
    assert "MIG" in book.why_not(booked("p", 1, "GPU-m"))
    assert book.offered("GPU-s") == GpuRoom()
    assert book.free("GPU-s") == GpuRoom(100, CORES)


def test_a_pod_may_change_its_own_booking_within_what_it_has() -> None:
    book = GpuBook.of_gpus(GPUS).book(booked("p", 16_000, "GPU-a"))
    assert not book.why_not(booked("p", 16_000, "GPU-a"))


def test_what_a_pod_has_beyond_what_there_is_does_not_make_room_for_it() -> None:
    book = GpuBook.of_gpus(GPUS, [booked("p", 14_000, "GPU-a"), booked("q", 3000, "GPU-a")])
    assert "has 2000 MiB of 16000 MiB free" in book.why_not(booked("q", 3000, "GPU-a"))


def test_init_containers_hand_on_what_they_had_and_sidecars_keep_it() -> None:
    pod = (
        booked("p", 9000, "GPU-a", init=True, name="i")
        .having(booked("p", 1000, "GPU-a", init=True, sidecar=True, name="s").containers[0])
        .having(booked("p", 4000, "GPU-a", name="a").containers[0])
        .having(booked("p", 3000, "GPU-a", name="b").containers[0])
    )
    assert GpuBook.of_gpus(GPUS).book(pod).free("GPU-a").memory == 16_000 - 9000
    assert pod.needs()["GPU-a"].memory == max(9000, 1000 + 4000 + 3000)


def test_what_is_already_so_is_recorded_and_told() -> None:
    book = GpuBook.of_gpus(
        GPUS, [booked("p", 10_000, "GPU-a"), booked("q", 10_000, "GPU-a"), booked("r", 1, "GPU-x")]
    )
    assert book.free("GPU-a").memory == 0
    assert book.oversold == ("GPU-a", "GPU-x")


_PODS = st.builds(
    booked,
    st.sampled_from("pqrs"),
    st.integers(0, 20_000),
    st.sampled_from(["GPU-a", "GPU-b"]),
    cores=st.integers(0, 100),
    init=st.booleans(),
)


@given(st.lists(st.one_of(_PODS, st.sampled_from("pqrs")), max_size=20))
def test_no_gpu_is_ever_oversold_and_the_sums_are_those_of_the_bookings(
    steps: list[PodBooking | str],
) -> None:
    book = GpuBook.of_gpus(GPUS)
    for step in steps:
        if isinstance(step, str):
            book = book.release(step)
        elif not book.why_not(step):
            book = book.book(step)
        assert not book.oversold
        assert book.used == GpuBook.of_gpus(GPUS, book.pods.values()).used
