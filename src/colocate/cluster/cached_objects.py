"""The objects that a watch cache holds: what an event or a list changes in them, told as changes. No I/O.

Every object is kept in the caller's shape and with its uid, nothing else. Two states that are equal in that
shape are the same to the caller: only what it can see is told as a change.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Annotated, Generic, TypeVar

import msgspec

from colocate.cluster.changes import Added, Change, Deleted, Key, Modified

T = TypeVar("T")


_Name = Annotated[str, msgspec.Meta(max_length=253)]
"""As long as the API allows names to be; uids and versions are shorter."""


class ObjectMarks(msgspec.Struct, frozen=True, rename="camel"):
    """What every object says about itself."""

    name: _Name = ""
    namespace: _Name = ""
    uid: _Name = ""
    resource_version: _Name = ""


class _Marked(msgspec.Struct, frozen=True):
    metadata: ObjectMarks


_MARKS = msgspec.json.Decoder(_Marked)


def marks_of(raw: bytes | msgspec.Raw) -> ObjectMarks:
    """Raises ValueError (msgspec's), or RecursionError, where it is no object at all."""
    return _MARKS.decode(raw).metadata


class _Held(msgspec.Struct, Generic[T], gc=False):
    uid: str
    value: T


class ObjectIndex(Generic[T]):
    """Finds objects by a value that a function reads from them: pods by node, say."""

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
        """An object has changed, come (no old) or gone (no new)."""
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
    """Objects by key, kept up to date by what the server says."""

    def __init__(self, shape: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(shape)
        self._held: dict[Key, _Held[T]] = {}
        self._indexes: list[ObjectIndex[T]] = []
        self._namespaces: dict[str, str] = {}
        self.skipped: dict[Key, str] = {}
        """Objects that cannot be read as they are now, and why. Of each, the last readable state is kept."""

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
        """An index, kept from now on. An object for which the function gives None is not in it."""
        index = ObjectIndex(self._held, function)
        for key, held in self._held.items():
            index.move(key, None, held.value)
        self._indexes.append(index)
        return index

    def key_of(self, marks: ObjectMarks) -> Key:
        # Thousands of objects share a namespace: one text for all of them.
        return Key(self._namespaces.setdefault(marks.namespace, marks.namespace), marks.name)

    def put(self, marks: ObjectMarks, raw: bytes | msgspec.Raw) -> list[Change[T]]:
        """An object as it is now."""
        key = self.key_of(marks)
        held = self._held.get(key)
        try:
            value = self._decoder.decode(raw)
        except (ValueError, RecursionError) as error:
            self.skipped[key] = str(error)
            # The old one under that name is another object, and it is gone.
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
        """An object is gone; `raw` is its last state, if that can be read."""
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
        """After a list: what was not in it is gone, and was missed."""
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
        """Whether this very object, by its uid, is held in whatever state."""
        key = self.key_of(marks)
        held = self._held.get(key)
        return held.uid == marks.uid if held is not None else key in self.skipped

    def agrees(self, marks: ObjectMarks, raw: bytes | msgspec.Raw) -> bool:
        """Whether an object is held just as it is given."""
        key = self.key_of(marks)
        held = self._held.get(key)
        try:
            return held is not None and held.value == self._decoder.decode(raw)
        except (ValueError, RecursionError):
            return key in self.skipped
