"""Which slices are marked Unhealthy, so that what a kubelet counts as free is what the book has free.

A kubelet counts ids and knows nothing of GPUs: it may have given slices of one GPU to a pod that has another, or one
slice to a pod that has its memory of two GPUs, and pods of another dialect hold none of these ids at all. So ids are
marked by number: as many stay healthy and free as the book has units to offer. Those of a GPU itself come first;
where other pods hold them, any other id stands in.
"""

from collections.abc import Iterable, Mapping, Sequence

from colocate.gpus.book import GpuBook
from colocate.gpus.slices import Slices


def unhealthy_slices(
    slices: Slices, book: GpuBook, held: Mapping[str, Sequence[str]], spare: int = 0
) -> frozenset[str]:
    """The ids to mark. `held` are those that pods hold, each with the GPUs of its pod as far as known.

    `spare` are units that are booked and held by no id: the kubelet has forgotten their pods, and may ask once more.
    """
    taken = _by_gpu(slices, held)
    sick = {gpu.uuid for gpu in book.inventory.gpus if not gpu.healthy}
    marked: set[str] = set()
    short = spare
    surplus: list[tuple[bool, list[str]]] = []
    for uuid, ids in slices.ids.items():
        mine = taken.get(uuid, set())
        if sick or not all(uuid in slices.ids for uuid in book.used):
            marked |= {id for id in mine if not _is_fit(book, held[id] or (uuid,))}
        free, offered = len(ids) - len(mine), book.offered(uuid).memory // slices.unit
        short += max(0, offered - free)
        if free > offered:
            surplus.append((offered == 0, _last([id for id in ids if id not in mine], free - offered)))
    # Slices of GPUs that offer something go before those of sick and full ones.
    for _, extra in sorted(surplus, key=lambda each: each[0]):
        standing_in = min(short, len(extra))
        short -= standing_in
        marked.update(extra[standing_in:])
    return frozenset(marked)


def _by_gpu(slices: Slices, held: Iterable[str]) -> Mapping[str, set[str]]:
    """The held ids by the GPU that they name. There may be a hundred thousand, at every change of the book."""
    taken: dict[str, set[str]] = {uuid: set() for uuid in slices.ids}
    last = {
        key: (len(slices.ids[uuid][-1]), slices.ids[uuid][-1])
        for key, uuid in slices.keys.items()
        if slices.ids[uuid]
    }
    for id in held:
        key = id.partition("-")[0]
        # Numbers beyond the last are of a larger GPU or a smaller unit, before this one.
        if key in last and (len(id), id) <= last[key]:
            taken[slices.keys[key]].add(id)
    return taken


def _is_fit(book: GpuBook, gpus: Sequence[str]) -> bool:
    found = [book.inventory.get(uuid) for uuid in gpus]
    return all(gpu is not None and gpu.healthy for gpu in found)


def _last(ids: list[str], count: int) -> list[str]:
    """The highest numbers: the lowest are given out first."""
    return ids[len(ids) - count :]
