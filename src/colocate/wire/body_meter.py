"""Counts what a question holds while it comes: one that holds more than any has reason to is refused before its end.

Bytes are counted and nothing is made of them. What stands in texts is counted, too, which costs less than to tell it
apart; there are not more values than this in any case.
"""

from collections.abc import Iterable

import msgspec

from colocate.errors import ColocateError


class TooMany(ColocateError):
    """A question is about more nodes than there can be, or holds more than any has reason to."""


class Bound(msgspec.Struct, frozen=True):
    """So many of something at most."""

    most: int
    what: str
    marks: tuple[bytes, ...]
    """Each that is found counts as one."""


class BodyMeter:
    """Of one body, part by part. Nothing is counted while it is small: it cannot hold enough."""

    def __init__(self, small: int, bounds: Iterable[Bound]) -> None:
        self._small = small
        self._bounds = tuple(bounds)
        self._found = [0] * len(self._bounds)
        self._length = 0
        self._uncounted: list[bytes] = []

    def add(self, part: bytes) -> None:
        """The next part of it has come; TooMany where that is one too many."""
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
    """Of a filter or prioritize call. 64 MiB of real nodes have 1.1 million objects and 3.5 million values; 8 MiB of
    anything are read in less than a second."""
    return BodyMeter(8 << 20, (Bound(1_200_000, "objects", (b"{",)), Bound(6_000_000, "values", _VALUES)))


def preemption_meter() -> BodyMeter:
    """Of a preempt call: whole pods of 500 nodes, or names of many more."""
    return BodyMeter(16 << 10, (Bound(600_000, "values", _VALUES),))


def binding_meter() -> BodyMeter:
    """Of a bind call, which has four names."""
    return BodyMeter(16 << 10, (Bound(0, "values", _VALUES),))
