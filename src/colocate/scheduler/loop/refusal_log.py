"""The nodes that the filter refused for pods, and why: all of them within a bound, a few for the oldest pods.

Reasons are put into words when they are asked for.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from colocate.load import Refusal

_NODES_REFUSED = 20
"""Refused nodes that an explanation names unless asked for all."""
_REFUSALS_IN_ALL = 100_000
"""Refusals kept in all; beyond, the oldest pods keep only those."""


class RefusedPod(msgspec.Struct, frozen=True):
    """A node that the filter took out of a pod's candidates."""

    node: str
    reason: str


class Refusals(msgspec.Struct, frozen=True):
    by_node: Mapping[str, Refusal] = {}
    count: int = 0

    @property
    def some(self) -> tuple[RefusedPod, ...]:
        return _in_words(islice(self.by_node.items(), _NODES_REFUSED))

    @property
    def shortened(self) -> "Refusals":
        """With no more nodes than an explanation names."""
        if len(self.by_node) <= _NODES_REFUSED:
            return self
        return Refusals(dict(islice(self.by_node.items(), _NODES_REFUSED)), self.count)

    @property
    def all_kept(self) -> tuple[RefusedPod, ...]:
        return _in_words(self.by_node.items())


NO_REFUSALS = Refusals()


class AllRefusals:
    """Refusals by uid, in bounds."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_uid: OrderedDict[str, Refusals] = OrderedDict()
        self._count = 0
        self._whole: OrderedDict[str, None] = OrderedDict()
        """Pods with more refusals than an explanation names, the oldest first."""

    def get(self, uid: str) -> Refusals:
        return self._by_uid.get(uid, NO_REFUSALS)

    def of(self, uid: str, node: str) -> Refusals:
        """The refusal of one node."""
        why = self.get(uid).by_node.get(node)
        return NO_REFUSALS if why is None else Refusals({node: why}, 1)

    def add(self, uid: str, refused: Mapping[str, Refusal]) -> None:
        """Replace the refusals of a pod."""
        self._remove(uid)
        if not refused:
            return
        self._keep(uid, Refusals(refused, len(refused)))
        if len(self._by_uid) > self._most:
            self._remove(next(iter(self._by_uid)))
        while self._count > _REFUSALS_IN_ALL and len(self._whole) > 1:
            self._shorten(next(iter(self._whole)))

    def _keep(self, uid: str, refusals: Refusals) -> None:
        self._by_uid[uid] = refusals
        if len(refusals.by_node) > _NODES_REFUSED:
            self._count += len(refusals.by_node)
            self._whole[uid] = None

    def _remove(self, uid: str) -> None:
        removed = self._by_uid.pop(uid, None)
        if removed is not None and uid in self._whole:
            self._count -= len(removed.by_node)
            del self._whole[uid]

    def _shorten(self, uid: str) -> None:
        long = self._by_uid[uid]
        self._count -= len(long.by_node)
        del self._whole[uid]
        self._by_uid[uid] = long.shortened


def _in_words(refusals: Iterable[tuple[str, Refusal]]) -> tuple[RefusedPod, ...]:
    return tuple(RefusedPod(node, str(why)) for node, why in refusals)
