"""Which slices are marked Unhealthy, so that what a kubelet counts as free is what the book has free.

A kubelet counts ids and knows nothing of GPUs: it may have given slices of one GPU to a pod that has another, or one
slice to a pod that has its memory of two GPUs, and pods of another dialect hold none of these ids at all. So ids are
marked by number: as many stay healthy and free as the book has units to offer. Those of a GPU itself come first;
where other pods hold them, any other id stands in.

Every id that changes its health costs a kubelet from 1.36 on a walk over all ids that are held. So the marks of the
last list stay as far as they can: only so many ids change as the count of free ones must.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from colocate.gpus.book import GpuBook
from colocate.gpus.slices import Slices


class _Room(msgspec.Struct):
    """The slices of one GPU that no pod holds."""

    uuid: str
    held: AbstractSet[str]
    marked: set[str]
    offered: int
    """Units that new pods may have of it."""
    free: int
    """Slices that no pod holds, marked or not."""

    @property
    def healthy(self) -> int:
        return self.free - len(self.marked)


def unhealthy_slices(
    slices: Slices,
    book: GpuBook,
    held: Mapping[str, Sequence[str]],
    spare: int = 0,
    *,
    before: AbstractSet[str] = frozenset(),
    lags: bool = False,
) -> frozenset[str]:
    """The ids to mark. `held` are those that pods hold, each with the GPUs of its pod as far as known.

    `spare` are units that are booked and held by no id: the kubelet has forgotten their pods, and may ask once more.
    `before` are the ids that were marked last. Where `lags`, every pod is booked by a scheduler that knows what is
    free: more ids may be healthy than that, up to what the kubelet itself would count, and none is marked for it.
    """
    taken, marks = _by_gpu(slices, held), _by_gpu(slices, before)
    rooms = [
        _Room(
            uuid,
            taken[uuid],
            marks[uuid] - taken[uuid],
            book.offered(uuid).memory // slices.unit,
            len(ids) - len(taken[uuid]),
        )
        for uuid, ids in slices.ids.items()
    ]
    unfit = _of_unfit(slices, book, held, taken)
    free = sum(room.free for room in rooms)
    least = min(free, spare + sum(room.offered for room in rooms))
    most = max(least, min(free, _fit_units(slices, book) - sum(map(len, taken.values()))))
    healthy = sum(room.healthy for room in rooms)
    if healthy < least:
        _unmark(slices, rooms, least - healthy)
    elif healthy > (allowed := most if lags else least):
        _mark(slices, rooms, healthy - allowed)
    return frozenset(unfit.union(*(room.marked for room in rooms)))


def _mark(slices: Slices, rooms: Sequence[_Room], count: int) -> None:
    """Of GPUs with more healthy slices than they offer, sick and full ones first; the highest numbers."""
    last_first = sorted(rooms, key=lambda each: each.offered == 0)
    last_first.reverse()
    for room in last_first:
        extra = min(count, room.healthy - room.offered)
        if extra > 0:
            taken = room.held | room.marked
            room.marked.update([id for id in slices.ids[room.uuid] if id not in taken][-extra:])
            count -= extra


def _unmark(slices: Slices, rooms: Sequence[_Room], count: int) -> None:
    """Of GPUs that offer more than they have healthy slices; then of any, those that offer something first."""
    for exactly in (True, False):
        for room in sorted(rooms, key=lambda each: each.offered == 0):
            few = min(count, len(room.marked), room.offered - room.healthy if exactly else count)
            if few > 0:
                room.marked.difference_update([id for id in slices.ids[room.uuid] if id in room.marked][:few])
                count -= few


def _of_unfit(
    slices: Slices, book: GpuBook, held: Mapping[str, Sequence[str]], taken: Mapping[str, AbstractSet[str]]
) -> set[str]:
    """Slices that pods hold whose GPUs are sick or gone."""
    sick = any(not gpu.healthy for gpu in book.inventory.gpus)
    if not sick and all(uuid in slices.ids for uuid in book.used):
        return set()
    return {id for uuid, mine in taken.items() for id in mine if not _is_fit(book, held[id] or (uuid,))}


def _fit_units(slices: Slices, book: GpuBook) -> int:
    """How many units a kubelet counts of healthy GPUs, free or held."""
    return sum(len(ids) for uuid, ids in slices.ids.items() if _is_fit(book, (uuid,)))


def _by_gpu(slices: Slices, ids: Iterable[str]) -> Mapping[str, set[str]]:
    """Ids by the GPU that they name. There may be a hundred thousand, at every change of the book."""
    by_gpu: dict[str, set[str]] = {uuid: set() for uuid in slices.ids}
    last = {
        key: (len(slices.ids[uuid][-1]), slices.ids[uuid][-1])
        for key, uuid in slices.keys.items()
        if slices.ids[uuid]
    }
    for id in ids:
        key = id.partition("-")[0]
        # Numbers beyond the last are of a larger GPU or a smaller unit, before this one.
        if key in last and (len(id), id) <= last[key]:
            by_gpu[slices.keys[key]].add(id)
    return by_gpu


def _is_fit(book: GpuBook, gpus: Sequence[str]) -> bool:
    found = [book.inventory.get(uuid) for uuid in gpus]
    return all(gpu is not None and gpu.healthy for gpu in found)
