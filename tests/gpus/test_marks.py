"""Marks of devices follow the book, wherever the kubelet's ids come from."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from colocate.gpus import ContainerBooking, GpuBook, PodBooking, slices_of, unhealthy_slices
from colocate.model.gpu import Gpu, GpuInventory

A, B = "GPU-aaaa0000", "GPU-bbbb0000"


def gpus(healthy_a: bool = True, healthy_b: bool = True, memory_b: int = 10) -> GpuInventory:
    return GpuInventory(
        (
            Gpu(uuid=A, index=0, memory=10, healthy=healthy_a),
            Gpu(uuid=B, index=1, memory=memory_b, healthy=healthy_b),
        )
    )


def booked(inventory: GpuInventory, *pods: tuple[Sequence[str], int]) -> GpuBook:
    """A book with pods that have so much of each of their GPUs."""
    return GpuBook.of_gpus(
        inventory,
        [
            PodBooking(
                uid=f"pod-{number}",
                containers=(ContainerBooking(container="main", gpus=tuple(of), memory=memory),),
            )
            for number, (of, memory) in enumerate(pods)
        ],
    )


def marks(book: GpuBook, held: Mapping[str, Sequence[str]], unit: int = 1) -> frozenset[str]:
    return unhealthy_slices(slices_of(book.inventory.shared, unit), book, held)


def of(key: str, *numbers: int) -> list[str]:
    return [f"{key}-{number}" for number in numbers]


def test_nothing_is_marked_where_ids_and_gpus_agree() -> None:
    book = booked(gpus(), ([A], 4))
    assert marks(book, {key: [A] for key in of("aaaa", 0, 1, 2, 3)}) == set()


def test_all_of_a_sick_gpu_is_marked() -> None:
    assert marks(booked(gpus(healthy_a=False)), {}) == set(of("aaaa", *range(10)))


def test_slices_of_a_sick_gpu_that_a_pod_of_another_holds_are_not_marked() -> None:
    """Fragmented ids: the pod has GPU B, and slices of A. A falls sick; B has six units left, and six are free."""
    book = booked(gpus(healthy_a=False), ([B], 4))
    held = {key: [B] for key in of("aaaa", 0, 1, 2, 3)}
    assert marks(book, held) == {*of("aaaa", *range(4, 10)), *of("bbbb", 6, 7, 8, 9)}


def test_slices_that_a_pod_of_a_sick_gpu_holds_are_marked_wherever_they_are_from() -> None:
    """The pod has A, which is sick, and slices of B. B is free as a whole: others stand in for those it lacks."""
    book = booked(gpus(healthy_a=False), ([A], 4))
    held = {key: [A] for key in of("bbbb", 0, 1, 2, 3)}
    assert marks(book, held) == {*of("bbbb", 0, 1, 2, 3), *of("aaaa", *range(4, 10))}


def test_a_pod_with_memory_of_two_gpus_takes_it_from_both() -> None:
    """gpu-memory 4 of gpu-count 2: four ids are held, and eight units are gone."""
    book = booked(gpus(), ([A, B], 4))
    assert marks(book, {key: [A, B] for key in of("aaaa", 0, 1, 2, 3)}) == set(of("bbbb", 6, 7, 8, 9))


def test_what_pods_of_another_dialect_have_is_gone_here_too() -> None:
    book = booked(gpus(), ([A], 10), ([B], 5))
    assert marks(book, {}, unit=2) == {*of("aaaa", 0, 1, 2, 3, 4), *of("bbbb", 2, 3, 4)}


def test_a_gpu_of_another_size_offers_what_it_has() -> None:
    book = booked(gpus(memory_b=40), ([B], 1))
    assert marks(book, {}) == {"bbbb-13"}


def test_slices_whose_pod_nobody_knows_are_marked_like_their_own_gpu() -> None:
    book = booked(gpus(healthy_a=False))
    assert set(of("aaaa", 0)) <= marks(book, {"aaaa-0": [], "bbbb-0": []})
    assert "bbbb-0" not in marks(book, {"aaaa-0": [], "bbbb-0": []})


amounts = st.lists(st.tuples(st.sampled_from([[A], [B], [A, B]]), st.integers(1, 6)), max_size=5)


@given(amounts, st.booleans(), st.booleans(), st.integers(1, 4), st.data())
def test_what_is_free_by_ids_is_what_is_free_by_the_book(
    pods: list[tuple[list[str], int]], healthy_a: bool, healthy_b: bool, unit: int, data: st.DataObject
) -> None:
    book = booked(gpus(healthy_a, healthy_b, memory_b=24), *pods)
    slices = slices_of(book.inventory.shared, unit)
    every = [id for ids in slices.ids.values() for id in ids]
    held = {
        id: data.draw(st.sampled_from([[A], [B], [A, B], []]))
        for id in data.draw(st.sets(st.sampled_from(every)))
    }
    marked = unhealthy_slices(slices, book, held)
    offered = sum(book.offered(uuid).memory // unit for uuid in (A, B))
    unheld = set(every) - held.keys()
    assert len(unheld - marked) == min(offered, len(unheld))
    assert marked <= set(every)


@given(amounts, amounts, st.booleans(), st.booleans(), st.integers(1, 4), st.booleans(), st.data())
def test_no_more_ids_change_their_health_than_the_count_of_free_ones_must(
    pods: list[tuple[list[str], int]],
    later: list[tuple[list[str], int]],
    healthy_a: bool,
    healthy_b: bool,
    unit: int,
    lags: bool,
    data: st.DataObject,
) -> None:
    """Whatever was marked, held and booked before: what is held follows its GPU, and of the rest the fewest flip."""
    book = booked(gpus(healthy_a, healthy_b, memory_b=24), *pods, *later)
    slices = slices_of(book.inventory.shared, unit)
    every = [id for ids in slices.ids.values() for id in ids]
    before = data.draw(st.frozensets(st.sampled_from(every)))
    held = {
        id: data.draw(st.sampled_from([[A], [B], [A, B], []]))
        for id in data.draw(st.sets(st.sampled_from(every)))
    }
    after = unhealthy_slices(slices, book, held, before=before | {"gone-1"}, lags=lags)
    unheld = set(every) - held.keys()
    offered = min(len(unheld), sum(book.offered(uuid).memory // unit for uuid in (A, B)))
    was, now = len(unheld - before), len(unheld - after)
    assert len((before ^ after) & unheld) == abs(was - now)
    if lags:
        assert now >= offered
        assert now == was or (was < now == offered) or now < was
    else:
        assert now == offered
    # Nothing of it depends on chance: the same again changes nothing.
    assert unhealthy_slices(slices, book, held, before=after, lags=lags) == after


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=20))
def test_in_a_life_of_pods_ids_change_by_the_fewest_possible(steps: list[tuple[bool, int]]) -> None:
    """Pods of two GPUs come and go: of each, the kubelet holds ids for one, and the book has both."""
    slices = slices_of(gpus(memory_b=24).shared, 1)
    every = [id for ids in slices.ids.values() for id in ids]
    pods: list[tuple[int, list[str]]] = []
    marked: frozenset[str] = frozenset()
    for comes, units in steps:
        held = {id: [A, B] for _, ids in pods for id in ids}
        free = [id for id in every if id not in held and id not in marked]
        book = booked(gpus(memory_b=24), *[([A, B], each) for each, _ in pods])
        if comes and len(free) >= units and book.offered(A).memory >= units:
            pods.append((units, free[:units]))
        elif pods:
            pods.pop(0)
        held = {id: [A, B] for _, ids in pods for id in ids}
        book = booked(gpus(memory_b=24), *[([A, B], each) for each, _ in pods])
        after = unhealthy_slices(slices, book, held, before=marked)
        healthy = len(every) - len(held) - len(marked - held.keys())
        assert len(after ^ marked) == abs(healthy - book.offered(A).memory - book.offered(B).memory)
        marked = after


def test_a_scheduler_that_books_needs_no_marks_but_those_of_sick_gpus() -> None:
    """A pod has four units of each of two GPUs and holds four ids: the kubelet may count four too many."""
    held = {key: [A, B] for key in of("aaaa", 0, 1, 2, 3)}
    book = booked(gpus(), ([A, B], 4))
    slices = slices_of(book.inventory.shared, 1)
    assert unhealthy_slices(slices, book, held, lags=True) == set()
    sick = booked(gpus(healthy_b=False), ([A, B], 4))
    assert unhealthy_slices(slices, sick, held, lags=True) == {
        *of("aaaa", 0, 1, 2, 3),
        *of("bbbb", *range(10)),
    }
    # What was marked for the exact count comes back only where it is needed.
    marked = unhealthy_slices(slices, book, held)
    assert marked == set(of("bbbb", 6, 7, 8, 9))
    assert unhealthy_slices(slices, book, held, before=marked, lags=True) == marked
    empty = booked(gpus())
    assert unhealthy_slices(slices, empty, {}, before=marked, lags=True) == set()
