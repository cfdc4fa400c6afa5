"""Which slices are marked Unhealthy, so that what a kubelet counts as free is what the book has free.

A kubelet counts ids and knows nothing of GPUs: it may have given slices of one GPU to a pod that has another, or one
slice to a pod that has its memory of two GPUs, and pods of another dialect hold none of these ids at all. So ids are
marked by number: as many stay healthy and free as the book has units to offer. Those of a GPU itself come first;
where other pods hold them, any other id stands in.
"""

from collections.abc import Mapping, Sequence

from colocate.gpus.book import GpuBook
from colocate.gpus.slices import Slices


def unhealthy_slices(slices: Slices, book: GpuBook, held: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """The ids to mark. `held` are those that pods hold, each with the GPUs of its pod as far as known."""
    marked: set[str] = set()
    short = 0
    surplus: list[tuple[bool, list[str]]] = []
    by_gpu: dict[str, set[str]] = {}
    for id in held:
        if (uuid := slices.gpu_of(id)) is not None:
            by_gpu.setdefault(uuid, set()).add(id)
    for uuid, ids in slices.ids.items():
        taken = by_gpu.get(uuid, set())
        marked |= {id for id in taken if not _is_fit(book, held[id] or (uuid,))}
        free, offered = len(ids) - len(taken), book.offered(uuid).memory // slices.unit
        short += max(0, offered - free)
        if free > offered:
            surplus.append((offered == 0, _last([id for id in ids if id not in taken], free - offered)))
    # Slices of GPUs that offer something go before those of sick and full ones.
    for _, extra in sorted(surplus, key=lambda each: each[0]):
        standing_in = min(short, len(extra))
        short -= standing_in
        marked.update(extra[standing_in:])
    return frozenset(marked)


def _is_fit(book: GpuBook, gpus: Sequence[str]) -> bool:
    found = [book.inventory.get(uuid) for uuid in gpus]
    return all(gpu is not None and gpu.healthy for gpu in found)


def _last(ids: list[str], count: int) -> list[str]:
    """The highest numbers: the lowest are given out first."""
    return ids[len(ids) - count :]
