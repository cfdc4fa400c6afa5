"""Stores the objects of the cluster, with indexes, versions, and a history of changes for watches.

Knows keys and bare objects, not kinds or rules. Every operation is synchronous, and so atomic in one event loop;
its cost does not depend on the number of objects.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from colocate.aio import Watched
from colocate.errors import ColocateError
from colocate.lab.api.changes import Change, Changes, Stored, StoreKey, Type
from colocate.lab.api.disk import Disk
from colocate.lab.api.index import Index, ObjectShelf, by_node, by_owner
from colocate.lab.api.objects import Object, arrange_metadata, decode, encode

HISTORY = 10_000
"""The default length of the history of each resource."""

NODE = "node"
OWNER = "owner"


class AlreadyThere(ColocateError):
    """There is an object at the key."""


class NotThere(ColocateError):
    """There is no object at the key."""


class Stale(ColocateError):
    """The object has changed since the caller read it."""


class ObjectStore:
    """All objects in memory; written through to disk if there is one."""

    def __init__(self, disk: Disk | None = None, history: int = HISTORY) -> None:
        self._disk = disk
        self._history = history
        self._shelves: dict[str, ObjectShelf] = {}
        self._changes: dict[str, Changes] = {}
        self._kept: dict[str, bytes] = {}
        self._undo: list[Change] | None = None
        self.changed = Watched()
        """Counts commits of any resource."""
        self.generation = 0
        """How often history was expired by force; lists and watches of older generations are invalid."""
        self._opened_at = self.revision = disk.revision() if disk else 0
        if disk:
            for key, revision, encoded in disk.objects():
                self._shelf(key.resource).put(Stored(key, revision, decode(encoded), encoded))

    def get(self, key: StoreKey) -> Stored | None:
        return self._shelf(key.resource).get(key)

    def items(self, resource: str, namespace: str = "") -> list[Stored]:
        """Objects in the order of namespace and name; of every namespace where none is given."""
        return self._shelf(resource).sorted(namespace)

    def count(self, resource: str, namespace: str = "") -> int:
        return self._shelf(resource).count(namespace)

    def lookup(self, resource: str, index: str, value: str) -> list[Stored]:
        """Objects by a value that an index holds: pods by NODE, anything by OWNER."""
        return self._shelf(resource).lookup(index, value)

    def changes(self, resource: str) -> Changes:
        """The history of one resource."""
        if (changes := self._changes.get(resource)) is None:
            changes = self._changes[resource] = Changes(self._history, self._opened_at)
        return changes

    def create(self, key: StoreKey, body: Object) -> Stored:
        """Store a new object. The store owns the body from then on."""
        if self.get(key) is not None:
            raise AlreadyThere(str(key))
        return self._write(Type.ADDED, key, body, None)

    def replace(self, key: StoreKey, body: Object, expected: int | None = None) -> Stored:
        """Store a new version, provided that the current one has the `expected` revision."""
        return self._write(Type.MODIFIED, key, body, self._current(key, expected))

    def remove(self, key: StoreKey, expected: int | None = None) -> Stored:
        """Remove an object; returns its last state, with the revision of its removal."""
        before = self._current(key, expected)
        return self._write(Type.DELETED, key, dict(before.body), before)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Apply all writes in the body or, if it raises, none; watches see them only at the end."""
        if self._undo is not None:
            yield
            return
        undo: list[Change] = []
        self._undo = undo
        start = self.revision
        try:
            if self._disk:
                self._disk.begin()
            yield
            if self._disk:
                self._disk.commit(self.revision)
        except BaseException:
            self._roll_back(undo, start)
            raise
        finally:
            self._undo = None
        for resource in {change.now.key.resource for change in undo}:
            self.changes(resource).announce()
        if undo:
            self.changed.changed()

    def expire(self) -> None:
        """Drop all history, as a compaction does: every older resourceVersion is Gone from now on."""
        self.generation += 1
        for resource in self._shelves:
            self.changes(resource).expire(self.revision)
            self.changes(resource).announce()
        self._opened_at = self.revision

    def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        """A value of the cluster that is made once, such as its CA or the key that signs tokens."""
        if self._disk:
            return self._disk.keep(name, make)
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def close(self) -> None:
        if self._disk:
            self._disk.close()

    def _shelf(self, resource: str) -> ObjectShelf:
        if (shelf := self._shelves.get(resource)) is None:
            indexes: Mapping[str, Index] = {OWNER: Index(by_owner)}
            if resource == "pods":
                indexes = {OWNER: Index(by_owner), NODE: Index(by_node)}
            shelf = self._shelves[resource] = ObjectShelf(indexes)
        return shelf

    def _current(self, key: StoreKey, expected: int | None) -> Stored:
        current = self.get(key)
        if current is None:
            raise NotThere(str(key))
        if expected is not None and expected != current.revision:
            raise Stale(str(key))
        return current

    def _write(self, type: Type, key: StoreKey, body: Object, before: Stored | None) -> Stored:
        with self.transaction():
            self.revision += 1
            stamp = {"resourceVersion": str(self.revision)}
            body = {"metadata": arrange_metadata(body["metadata"] | stamp)} | {
                field: value for field, value in body.items() if field != "metadata"
            }
            stored = Stored(key, self.revision, body, encode(body))
            change = Change(type, stored, before)
            assert self._undo is not None
            self._undo.append(change)
            shelf = self._shelf(key.resource)
            if type is Type.DELETED:
                shelf.drop(key)
            else:
                shelf.put(stored)
            if self._disk:
                self._disk.write(stored, removed=type is Type.DELETED)
            self.changes(key.resource).append(change)
        return stored

    def _roll_back(self, undo: list[Change], start: int) -> None:
        if self._disk:
            self._disk.roll_back()
        for change in reversed(undo):
            shelf = self._shelf(change.now.key.resource)
            if change.before is None:
                shelf.drop(change.now.key)
            else:
                shelf.put(change.before)
            self.changes(change.now.key.resource).take_back(start)
        self.revision = start
