"""The history of one resource, bounded: what watches are served from."""

import asyncio
from bisect import bisect_right
from enum import StrEnum
from typing import NamedTuple

import msgspec

from colocate.lab.api.objects import Object, decode


class StoreKey(NamedTuple):
    """Where an object is kept. The namespace of a cluster-scoped object is empty."""

    resource: str
    namespace: str
    name: str


class Stored(msgspec.Struct, frozen=True, eq=False):
    """One version of an object. Versions are shared by every reader: nobody may change a body."""

    key: StoreKey
    revision: int
    body: Object
    encoded: bytes
    """The bare body as JSON, encoded once for all who will be sent it."""

    def copy(self) -> Object:
        """A body of the caller's own."""
        copied: Object = decode(self.encoded)
        return copied


class Type(StrEnum):
    """What happened to an object, in the words of a watch."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Change(msgspec.Struct, frozen=True, eq=False):
    """One step of an object's life."""

    type: Type
    now: Stored
    """For a deletion, the last state, with the revision of the deletion."""
    before: Stored | None

    @property
    def revision(self) -> int:
        return self.now.revision


class Changes:
    """Changes in the order of their revisions; the oldest are forgotten.

    A reader keeps a position, which is a count of changes since the beginning, and so never misses one: it
    either gets every change after its position or is told that some are gone.
    """

    def __init__(self, keep: int, horizon: int) -> None:
        self._keep = keep
        self._changes: list[Change] = []
        self._forgotten = 0
        self._turn: asyncio.Future[None] | None = None
        self.horizon = horizon
        """The newest revision whose change is no longer known: reading on from before it is impossible."""

    @property
    def end(self) -> int:
        """The position after the newest change."""
        return self._forgotten + len(self._changes)

    @property
    def newest(self) -> int:
        """The revision of the newest change, or the horizon where none is known."""
        return self._changes[-1].revision if self._changes else self.horizon

    def append(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) > self._keep + self._keep // 4:
            self._forget(len(self._changes) - self._keep)

    def announce(self) -> None:
        """Wake whoever waits for a turn."""
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
        self._turn = None

    def turn(self) -> asyncio.Future[None]:
        """Done at the next change. Shared: nobody may cancel it."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().create_future()
        return self._turn

    def after(self, revision: int) -> int | None:
        """The position from which to read what came after a revision; None where some of it is gone."""
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
        """Undo the changes after a revision, which nobody has been told of."""
        while self._changes and self._changes[-1].revision > revision:
            self._changes.pop()

    def expire(self, revision: int) -> None:
        """Forget everything, as a server does that compacts its history."""
        self._forget(len(self._changes))
        self.horizon = max(self.horizon, revision)

    def _forget(self, count: int) -> None:
        if count:
            self.horizon = self._changes[count - 1].revision
            del self._changes[:count]
            self._forgotten += count
