"""The decisions made last, each with what became of it; bounded, so that it can be kept for as long as one runs."""

from collections import OrderedDict

import msgspec

from colocate.load.decision import Decision


class Kept(msgspec.Struct, frozen=True):
    """A decision, and where the pod went once that is known."""

    decision: Decision
    node: str | None = None
    bound_at: float | None = None

    @property
    def followed(self) -> bool | None:
        """Whether the scheduler took a node that was best; None while it is open, or cannot be said."""
        return None if self.node is None else self.decision.followed(self.node)


class History:
    """One record per pod: a pod that is judged again has its last decision here."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._uids: dict[str, str] = {}
        """By namespace/name, which a person knows."""

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, decision: Decision) -> None:
        self._kept[decision.uid] = Kept(decision)
        self._kept.move_to_end(decision.uid)
        self._uids[decision.key] = decision.uid
        if len(self._kept) > self._most:
            uid, oldest = self._kept.popitem(last=False)
            # A pod of the same name may have come since.
            if self._uids.get(oldest.decision.key) == uid:
                del self._uids[oldest.decision.key]

    def bound(self, uid: str, node: str, at: float) -> Kept | None:
        """A pod is seen on its node; the record of it, the first time that this is so."""
        kept = self._kept.get(uid)
        if kept is None or kept.node is not None:
            return None
        kept = self._kept[uid] = Kept(kept.decision, node, at)
        return kept

    def find(self, pod: str) -> Kept | None:
        """By namespace/name, or by uid."""
        return self._kept.get(self._uids.get(pod, pod))

    def latest(self, most: int) -> list[Kept]:
        """The youngest first."""
        newest = reversed(self._kept.values())
        return [kept for kept, _ in zip(newest, range(most), strict=False)]
