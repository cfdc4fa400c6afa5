"""The objects of a watch cache; turns events and lists into changes. No I/O.

Each object is kept in the caller's shape together with its uid. Only differences that are visible in that shape are
reported as changes.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Annotated, Generic, TypeVar

import msgspec

from colocate.cluster.changes import Added, Change, Deleted, Key, Modified

T = TypeVar("T")


_Name = Annotated[str, msgspec.Meta(max_length=253)]
"""At most as long as the API allows names to be; uids and versions are shorter."""


class ObjectMarks(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata that every object has."""

    name: _Name = ""
    namespace: _Name = ""
    uid: _Name = ""
    resource_version: _Name = ""


class _Marked(msgspec.Struct, frozen=True):
    metadata: ObjectMarks


_MARKS = msgspec.json.Decoder(_Marked)


def marks_of(raw: bytes | msgspec.Raw) -> ObjectMarks:
    """The metadata of an object; ValueError (msgspec's) or RecursionError where it is not an object."""
    return _MARKS.decode(raw).metadata


class _Held(msgspec.Struct, Generic[T], gc=False):
    uid: str
    value: T


class ObjectIndex(Generic[T]):
    """Finds objects by a value that a function reads from them, such as pods by node."""

    def __init__(self, held: dict[Key, _Held[T]], function: Callable[[T], Hashable]) -> None:
        self._held = held
        self._function = function
        self._keys: dict[Hashable, dict[Key, None]] = {}

    def get(self, value: Hashable) -> list[T]:
        """The objects with that value, in the order in which they got it."""
        return [self._held[key].value for key in self._keys.get(value, ())]

    def keys(self, value: Hashable) -> list[Key]:
        return list(self._keys.get(value, ()))

    def values(self) -> list[Hashable]:
        """Every value that some object has."""
        return list(self._keys)

    def move(self, key: Key, old: T | None, new: T | None) -> None:
        """Update the index after an object has changed, was added (no old) or removed (no new)."""
        before = None if old is None else self._function(old)
        after = None if new is None else self._function(new)
        if before == after:
            return
        if before is not None:
            keys = self._keys[before]
            del keys[key]
            if not keys:
                del self._keys[before]
        if after is not None:
            self._keys.setdefault(after, {})[key] = None


class CachedObjects(Generic[T]):
    """Objects by key, updated from events and lists."""

    def __init__(self, shape: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(shape)
        self._held: dict[Key, _Held[T]] = {}
        self._indexes: list[ObjectIndex[T]] = []
        self._namespaces: dict[str, str] = {}
        self.skipped: dict[Key, str] = {}
        """Objects whose current state cannot be read, and why. The last readable state of each is kept."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def get(self, key: Key) -> T | None:
        held = self._held.get(key)
        return None if held is None else held.value

    def items(self) -> Iterator[tuple[Key, T]]:
        return ((key, held.value) for key, held in self._held.items())

    def add_index(self, function: Callable[[T], Hashable]) -> ObjectIndex[T]:
        """Add an index, kept current from now on. Objects for which the function returns None are left out."""
        index = ObjectIndex(self._held, function)
        for key, held in self._held.items():
            index.move(key, None, held.value)
        self._indexes.append(index)
        return index

    def key_of(self, marks: ObjectMarks) -> Key:
        # Thousands of objects share a namespace: keep one string for all.
        return Key(self._namespaces.setdefault(marks.namespace, marks.namespace), marks.name)

    def put(self, marks: ObjectMarks, raw: bytes | msgspec.Raw) -> list[Change[T]]:
        """Take the current state of an object."""
        key = self.key_of(marks)
        held = self._held.get(key)
        try:
            value = self._decoder.decode(raw)
        except (ValueError, RecursionError) as error:
            self.skipped[key] = str(error)
            # The old object under that name is another one, and is gone.
            return self._drop(key, None) if held is not None and held.uid != marks.uid else []
        self.skipped.pop(key, None)
        if held is None:
            return self._add(key, marks.uid, value)
        if held.uid != marks.uid:
            return self._drop(key, None) + self._add(key, marks.uid, value)
        if held.value == value:
            return []
        old, held.value = held.value, value
        for index in self._indexes:
            index.move(key, old, value)
        return [Modified(key, old, value)]

    def remove(self, marks: ObjectMarks, raw: bytes | msgspec.Raw) -> list[Change[T]]:
        """Remove an object; `raw` is its last state, if that can be read."""
        key = self.key_of(marks)
        self.skipped.pop(key, None)
        held = self._held.get(key)
        if held is None or held.uid != marks.uid:
            return []
        try:
            last: T | None = self._decoder.decode(raw)
        except (ValueError, RecursionError):
            last = None
        return self._drop(key, last)

    def keep_only(self, keys: set[Key]) -> list[Change[T]]:
        """Remove every object that was not in a new list: its deletion was missed."""
        for key in self.skipped.keys() - keys:
            del self.skipped[key]
        gone = [key for key in self._held if key not in keys]
        return [change for key in gone for change in self._drop(key, None)]

    def _add(self, key: Key, uid: str, value: T) -> list[Change[T]]:
        self._held[key] = _Held(uid, value)
        for index in self._indexes:
            index.move(key, None, value)
        return [Added(key, value)]

    def _drop(self, key: Key, last: T | None) -> list[Change[T]]:
        held = self._held.pop(key)
        for index in self._indexes:
            index.move(key, held.value, None)
        return [Deleted(key, held.value if last is None else last)]

    def knows(self, marks: ObjectMarks) -> bool:
        """Whether the cache has this object, by uid, in any state."""
        key = self.key_of(marks)
        held = self._held.get(key)
        return held.uid == marks.uid if held is not None else key in self.skipped

    def agrees(self, marks: ObjectMarks, raw: bytes | msgspec.Raw) -> bool:
        """Whether the cache has the object in exactly this state."""
        key = self.key_of(marks)
        held = self._held.get(key)
        try:
            return held is not None and held.value == self._decoder.decode(raw)
        except (ValueError, RecursionError):
            return key in self.skipped
