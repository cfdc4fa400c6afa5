"""Where the agent would put bound pods that have no booking and that it has not announced yet. No I/O.

Each counts once: on the GPUs that its annotations wish for, or on those with the least room that fit, as the agent
chooses. A pod that fits nowhere gets no GPU from it, and does not count.
"""

from collections.abc import Iterable, Sequence

import msgspec

from colocate.gpus import (
    ContainerBooking,
    Dialect,
    GpuAsk,
    GpuBook,
    PodBooking,
    asks_of,
    gpus_for,
    wish_of,
)
from colocate.gpus.packing.objects import PackedPod
from colocate.model.gpu import Gpu


def guessed(book: GpuBook, pods: Iterable[PackedPod], dialects: Sequence[Dialect]) -> GpuBook:
    """With these pods, in their order, as long as there is anything to have."""
    for pod in pods:
        if not any(book.offered(gpu.uuid).memory for gpu in book.inventory.shared):
            break
        for dialect in dialects:
            asks = asks_of(pod, dialect)
            if asks.containers and not asks.problem:
                book = _with_guess(book, pod, dialect, asks.containers)
    return book


def _with_guess(book: GpuBook, pod: PackedPod, dialect: Dialect, asks: Sequence[GpuAsk]) -> GpuBook:
    """What its annotations wish for, or the GPUs with the least room that fit; nothing where none does."""
    has = book.pods.get(pod.uid, PodBooking(uid=pod.uid, key=pod.key))
    wish = wish_of(pod, dialect, asks, book.inventory)
    if wish.gpus and not wish.problem:
        given: Sequence[Sequence[str]] = [gpus_for(wish, asks, ask.container) for ask in asks]
        return book.record(_having(has, asks, given))
    most = max(ask.count for ask in asks)
    fitting = _fitting(book, has, asks)
    if len(fitting) >= most:
        return book.record(_having(has, asks, [fitting[: ask.count] for ask in asks]))
    for ask in asks:
        fitting = _fitting(book, has, [ask])
        if len(fitting) >= ask.count:
            has = _having(has, [ask], [fitting[: ask.count]])
            book = book.record(has)
    return book


def _fitting(book: GpuBook, has: PodBooking, asks: Sequence[GpuAsk]) -> list[str]:
    def room(gpu: Gpu) -> tuple[int, int]:
        return book.free(gpu.uuid).memory, gpu.index

    return [
        gpu.uuid
        for gpu in sorted(book.inventory.shared, key=room)
        if not book.why_not(_having(has, asks, [(gpu.uuid,)] * len(asks)))
    ]


def _having(has: PodBooking, asks: Sequence[GpuAsk], given: Sequence[Sequence[str]]) -> PodBooking:
    booked = tuple(
        ContainerBooking(
            container=ask.container,
            gpus=tuple(gpus),
            memory=ask.memory,
            cores=ask.cores,
            init=ask.init,
            sidecar=ask.sidecar,
        )
        for ask, gpus in zip(asks, given, strict=True)
    )
    return msgspec.structs.replace(has, containers=(*has.containers, *booked))
