"""What can happen to an object that is followed. Pure."""

from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class Key(NamedTuple):
    """Which object. The namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Added(msgspec.Struct, Generic[T], frozen=True):
    """An object that was not there before."""

    key: Key
    new: T


class Modified(msgspec.Struct, Generic[T], frozen=True):
    """An object that has changed in what the caller reads of it."""

    key: Key
    old: T
    new: T


class Deleted(msgspec.Struct, Generic[T], frozen=True):
    """An object that is gone, as it was last seen."""

    key: Key
    last: T


Change: TypeAlias = Added[T] | Modified[T] | Deleted[T]
