"""Counts the values of a request body while it arrives, and refuses one with too many before its end.

It counts bytes and decodes nothing. Marks inside strings are counted too, which is cheaper than telling them apart;
the count is an upper bound of the values.
"""

from collections.abc import Iterable

import msgspec

from colocate.errors import ColocateError


class TooMany(ColocateError):
    """A question names more nodes than a cluster can have, or holds more values than any real one."""


class Bound(msgspec.Struct, frozen=True):
    """The most that a body may hold of one thing."""

    most: int
    what: str
    marks: tuple[bytes, ...]
    """The byte strings to count; each occurrence counts as one."""


class BodyMeter:
    """Counts one body, part by part. A body of up to `small` bytes is not counted: it cannot hold too much."""

    def __init__(self, small: int, bounds: Iterable[Bound]) -> None:
        self._small = small
        self._bounds = tuple(bounds)
        self._found = [0] * len(self._bounds)
        self._length = 0
        self._uncounted: list[bytes] = []

    def add(self, part: bytes) -> None:
        """Count the next part; TooMany where it exceeds a bound."""
        self._length += len(part)
        self._uncounted.append(part)
        if self._length <= self._small:
            return
        for number, bound in enumerate(self._bounds):
            self._found[number] += sum(one.count(mark) for one in self._uncounted for mark in bound.marks)
            if self._found[number] > bound.most:
                raise TooMany(f"the body holds more {bound.what} than the {bound.most} that are read")
        self._uncounted.clear()


_VALUES = (b",", b"[", b"{")


def question_meter() -> BodyMeter:
    """The meter of a filter or prioritize call. 64 MiB of real nodes have 1.1 million objects and 3.5 million
    values; any 8 MiB are read in less than a second."""
    return BodyMeter(8 << 20, (Bound(1_200_000, "objects", (b"{",)), Bound(6_000_000, "values", _VALUES)))


def preemption_meter() -> BodyMeter:
    """The meter of a preempt call: whole pods of 500 nodes, or names of many more."""
    return BodyMeter(16 << 10, (Bound(600_000, "values", _VALUES),))


def binding_meter() -> BodyMeter:
    """The meter of a bind call, which has four names."""
    return BodyMeter(16 << 10, (Bound(0, "values", _VALUES),))
