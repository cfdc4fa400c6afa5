"""The last decisions, each with the node that its pod went to. Bounded in number and in memory.

All candidates of a decision are kept beside it while memory allows: half of it is for the terms they were judged by,
half for their names and scores. The oldest decisions lose these first, and keep the few nodes of their own record.
"""

import mmap
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import msgspec

from colocate.load.decision import TERMS_SIZE, Candidates, Listed, PackedNames, PodDecision, ScoreAnswer
from colocate.load.terms import NodeTerms

_NAMELESS = Listed()


class KeptDecision(msgspec.Struct, frozen=True, gc=False):
    """A decision, and where the pod went once that is known."""

    decision: PodDecision
    node: str | None = None
    bound_at: float | None = None

    @property
    def followed(self) -> bool | None:
        """Whether the scheduler took a node that was best; None while it is open, or cannot be said."""
        return None if self.node is None else self.decision.followed(self.node)


class History:
    """One record per pod: a pod that is judged again has its last decision here."""

    def __init__(self, most: int = 10_000, room: int = 128 << 20) -> None:
        self._most = most
        self._kept: OrderedDict[str, KeptDecision] = OrderedDict()
        self._uids: dict[str, str] = {}
        """By namespace/name, which a person knows."""
        self._candidates = _KeptCandidates(room)

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, answer: ScoreAnswer) -> None:
        decision = answer.decision
        self._kept[decision.uid] = KeptDecision(decision)
        self._kept.move_to_end(decision.uid)
        self._uids[decision.key] = decision.uid
        self._candidates.add(decision.uid, answer.candidates)
        if len(self._kept) > self._most:
            self._remove(next(iter(self._kept)))

    def let_in(self, uid: str) -> None:
        """Drop the record of a pod that was refused everywhere: the filter has found candidates now."""
        kept = self._kept.get(uid)
        if kept is not None and kept.decision.refused:
            self._remove(uid)

    def bound(self, uid: str, node: str, at: float) -> KeptDecision | None:
        """Note the node of a pod; returns its record the first time."""
        kept = self._kept.get(uid)
        if kept is None or kept.node is not None:
            return None
        kept = self._kept[uid] = KeptDecision(kept.decision, node, at)
        return kept

    def find(self, pod: str) -> KeptDecision | None:
        """By namespace/name, or by uid."""
        return self._kept.get(self._uids.get(pod, pod))

    def candidates(self, uid: str) -> Candidates | None:
        """All candidates of a decision, unless they were dropped."""
        return self._candidates.get(uid)

    def latest(self, most: int) -> list[KeptDecision]:
        """The youngest first."""
        newest = reversed(self._kept.values())
        return [kept for kept, _ in zip(newest, range(most), strict=False)]

    def _remove(self, uid: str) -> None:
        key = self._kept.pop(uid).decision.key
        self._candidates.remove(uid)
        # A pod of the same name may have come since.
        if self._uids.get(key) == uid:
            del self._uids[key]


class _KeptNames(msgspec.Struct, frozen=True, gc=False):
    """Names on the shelf."""

    place: int
    length: int
    unpack: Callable[[bytes], Sequence[str]]


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """The candidates of one decision."""

    candidates: Candidates
    """Without names, if the shelf has them."""
    names: _KeptNames | None
    size: int


class _KeptCandidates:
    """Candidates by uid, within so many bytes; the youngest are always kept."""

    def __init__(self, room: int) -> None:
        self._room = room // 2
        """Bytes for names and scores, and as many for terms."""
        self._by_uid: OrderedDict[str, _Kept] = OrderedDict()
        self._size = 0
        self._shelf = Shelf(self._room)
        self._logs: deque[list[NodeTerms]] = deque()
        """The oldest first. The last one still grows; `_ended` is how many terms the others hold."""
        self._ended = 0

    def get(self, uid: str) -> Candidates | None:
        kept = self._by_uid.get(uid)
        if kept is None or kept.names is None:
            return None if kept is None else kept.candidates
        data = self._shelf.get(kept.names.place, kept.names.length)
        if data is None:
            return None
        known = kept.candidates
        return Candidates(PackedNames(data, kept.names.unpack), known.scores, known.log, known.logged)

    def add(self, uid: str, candidates: Candidates) -> None:
        self.remove(uid)
        size = candidates.size
        if not size:
            return
        self._by_uid[uid] = self._shelved(candidates, size)
        self._size += size
        logs = self._logs
        if not logs or logs[-1] is not candidates.log:
            self._ended += len(logs[-1]) if logs else 0
            logs.append(candidates.log)
        while self._size > self._room and len(self._by_uid) > 1:
            self.remove(next(iter(self._by_uid)))
        while len(logs) > 1 and (self._ended + len(logs[-1])) * TERMS_SIZE > self._room:
            self._drop_log()

    def remove(self, uid: str) -> None:
        removed = self._by_uid.pop(uid, None)
        if removed is None:
            return
        self._size -= removed.size
        oldest = next(iter(self._by_uid.values()), None)
        log = oldest.candidates.log if oldest is not None else None
        # Answers refer to logs in the order in which both were made.
        while len(self._logs) > 1 and log and self._logs[0] is not log:
            self._drop_log()

    def _shelved(self, candidates: Candidates, size: int) -> _Kept:
        names = candidates.names
        if isinstance(names, PackedNames):
            place = self._shelf.put(names.data)
            if place is not None:
                nameless = Candidates(_NAMELESS, candidates.scores, candidates.log, candidates.logged)
                return _Kept(nameless, _KeptNames(place, len(names.data), names.unpack), size)
        return _Kept(candidates, None, size)

    def _drop_log(self) -> None:
        """Drop the oldest log: decisions that refer to it find it empty."""
        log = self._logs.popleft()
        self._ended -= len(log)
        log.clear()


class Shelf:
    """Bytes kept in one block of memory; when it is full, the oldest are overwritten.

    The block is mapped in large pages, if the kernel has them: names come with every question and stay, and
    allocating fresh small pages for each takes the kernel long.
    """

    def __init__(self, room: int) -> None:
        self._room = max(room, 1)
        self._block: mmap.mmap | None = None
        self._written = 0
        """Bytes, since the beginning; where the block ends too early for some, it counts as written up to there."""

    def put(self, data: bytes) -> int | None:
        """Keep these; returns where they are, None where they do not fit."""
        length, room = len(data), self._room
        if length > room:
            return None
        start = self._written % room
        if start + length > room:
            self._written += room - start
            start = 0
        place = self._written
        self._written += length
        block = self._block or self._made()
        block[start : start + length] = data
        return place

    def get(self, place: int, length: int) -> bytes | None:
        """What was kept there; None where it was overwritten."""
        if self._block is None or self._written - place > self._room:
            return None
        start = place % self._room
        return self._block[start : start + length]

    def _made(self) -> mmap.mmap:
        made = self._block = mmap.mmap(-1, self._room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            made.madvise(mmap.MADV_HUGEPAGE)
        return made
