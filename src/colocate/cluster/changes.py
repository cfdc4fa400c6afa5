"""Changes of a watched object. Pure."""

from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class Key(NamedTuple):
    """The key of an object. The namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Added(msgspec.Struct, Generic[T], frozen=True):
    """An object that was not there before."""

    key: Key
    new: T


class Modified(msgspec.Struct, Generic[T], frozen=True):
    """An object that has changed in the fields that the caller reads."""

    key: Key
    old: T
    new: T


class Deleted(msgspec.Struct, Generic[T], frozen=True):
    """An object that is gone, as it was last seen."""

    key: Key
    last: T


Change: TypeAlias = Added[T] | Modified[T] | Deleted[T]
