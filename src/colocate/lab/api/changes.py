"""The bounded history of one resource, from which watches are served."""

import asyncio
from bisect import bisect_right
from enum import StrEnum
from typing import NamedTuple

import msgspec

from colocate.lab.api.objects import Object, decode


class StoreKey(NamedTuple):
    """The key of an object in the store. The namespace of a cluster-scoped object is empty."""

    resource: str
    namespace: str
    name: str


class Stored(msgspec.Struct, frozen=True, eq=False):
    """One version of an object. All readers share a version: its body must not be changed."""

    key: StoreKey
    revision: int
    body: Object
    encoded: bytes
    """The bare body as JSON, encoded once for all readers."""

    def copy(self) -> Object:
        """A copy of the body that the caller may change."""
        copied: Object = decode(self.encoded)
        return copied


class Type(StrEnum):
    """What happened to an object, in the words of a watch."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Change(msgspec.Struct, frozen=True, eq=False):
    """One change of an object."""

    type: Type
    now: Stored
    """The new version; for a deletion, the last state with the revision of the deletion."""
    before: Stored | None

    @property
    def revision(self) -> int:
        return self.now.revision


class Changes:
    """Changes in the order of their revisions; the oldest are dropped.

    A reader keeps a position, a count of changes since the beginning. It either gets every change after its
    position or learns that some are gone, so it never misses one.
    """

    def __init__(self, keep: int, horizon: int) -> None:
        self._keep = keep
        self._changes: list[Change] = []
        self._forgotten = 0
        self._turn: asyncio.Future[None] | None = None
        self.horizon = horizon
        """The newest revision whose change was dropped: readers cannot continue from an older one."""

    @property
    def end(self) -> int:
        """The position after the newest change."""
        return self._forgotten + len(self._changes)

    @property
    def newest(self) -> int:
        """The revision of the newest change, or the horizon where there is none."""
        return self._changes[-1].revision if self._changes else self.horizon

    def append(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) > self._keep + self._keep // 4:
            self._forget(len(self._changes) - self._keep)

    def announce(self) -> None:
        """Wake all readers that wait for a change."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
        self._turn = None

    def turn(self) -> asyncio.Future[None]:
        """A future that is done at the next change. It is shared: do not cancel it."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().create_future()
        return self._turn

    def after(self, revision: int) -> int | None:
        """The position of the first change after a revision; None where some changes are gone."""
        if revision < self.horizon:
            return None
        index = bisect_right(self._changes, revision, key=lambda change: change.revision)
        return self._forgotten + index

    def since(self, position: int) -> list[Change] | None:
        """The changes from a position on; None where some of them are gone."""
        if position < self._forgotten:
            return None
        return self._changes[position - self._forgotten :]

    def take_back(self, revision: int) -> None:
        """Remove the changes after a revision, which no reader has seen yet."""
        while self._changes and self._changes[-1].revision > revision:
            self._changes.pop()

    def expire(self, revision: int) -> None:
        """Drop the whole history, like a server that compacts it."""
        self._forget(len(self._changes))
        self.horizon = max(self.horizon, revision)

    def _forget(self, count: int) -> None:
        if count:
            self.horizon = self._changes[count - 1].revision
            del self._changes[:count]
            self._forgotten += count
