"""Sets of CPU numbers: the kernel's lists (`0-3,64-67`) and masks, read and written, and the algebra on them.

The length of a text is checked before it is parsed, and a number before it becomes a bit: `0-99999999999` is an
error, and allocates nothing. Nothing here knows what a CPU is.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

LARGEST_CPU = 16383
"""The largest CPU number accepted: twice what Linux can be built for."""
_LONGEST_TEXT = 1 << 17
_LONGEST_SHOWN = 40
_MASK_WORD = 32
_WORD = re.compile(r"[0-9a-fA-F]{1,8}", re.ASCII)
_MOST_WORDS = (LARGEST_CPU + 1) // _MASK_WORD


class CpuSet:
    """An immutable set of CPU numbers, kept as the bits of one integer."""

    __slots__ = ("_mask",)
    _mask: int

    def __init__(self, mask: int = 0) -> None:
        if mask < 0 or mask.bit_length() > LARGEST_CPU + 1:
            raise ValueError(f"a set of CPUs holds numbers from 0 to {LARGEST_CPU}")
        object.__setattr__(self, "_mask", mask)

    @classmethod
    def of(cls, cpus: Iterable[int]) -> "CpuSet":
        """The set of these numbers."""
        mask = 0
        for cpu in cpus:
            if not 0 <= cpu <= LARGEST_CPU:
                raise ValueError(f"{cpu} is not a CPU number from 0 to {LARGEST_CPU}")
            mask |= 1 << cpu
        return cls(mask)

    @classmethod
    def parse(cls, text: str) -> "CpuSet":
        """Parse a list as the kernel writes it. Empty text is the empty set; ValueError for anything else."""
        _check_length(text)
        mask = 0
        for part in text.strip().split(",") if text.strip() else ():
            first, dash, last = part.strip().partition("-")
            start = _number(first, text)
            end = _number(last, text) if dash else start
            if end < start:
                raise ValueError(f"{_shown(part)} runs backwards; write {end}-{start}")
            mask |= ((1 << (end - start + 1)) - 1) << start
        return cls(mask)

    @classmethod
    def parse_mask(cls, text: str) -> "CpuSet":
        """Parse a mask as the kernel writes it: words of 32 bits in hexadecimal, the highest first."""
        _check_length(text)
        words = text.strip().split(",")
        if len(words) > _MOST_WORDS:
            raise ValueError(f"a mask of {len(words)} words is too wide; at most {_MOST_WORDS} are read")
        mask = 0
        for word in words:
            if not _WORD.fullmatch(word):
                raise ValueError(f"{_shown(text)} is not a mask of CPUs such as 00000000,0000000f")
            mask = mask << _MASK_WORD | int(word, 16)
        return cls(mask)

    @property
    def mask(self) -> int:
        """The numbers as bits."""
        return self._mask

    @property
    def first(self) -> int:
        """The lowest number; ValueError for the empty set."""
        if not self._mask:
            raise ValueError("an empty set of CPUs has no first one")
        return (self._mask & -self._mask).bit_length() - 1

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a CpuSet cannot be changed")

    def __reduce__(self) -> tuple[type["CpuSet"], tuple[int]]:
        return CpuSet, (self._mask,)

    def __iter__(self) -> Iterator[int]:
        mask = self._mask
        while mask:
            lowest = mask & -mask
            yield lowest.bit_length() - 1
            mask ^= lowest

    def __len__(self) -> int:
        return self._mask.bit_count()

    def __bool__(self) -> bool:
        return self._mask != 0

    def __contains__(self, cpu: int) -> bool:
        return cpu >= 0 and bool(self._mask >> cpu & 1)

    def __or__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet(self._mask | other._mask)

    def __and__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet(self._mask & other._mask)

    def __sub__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet(self._mask & ~other._mask)

    def __le__(self, other: "CpuSet") -> bool:
        """Whether every CPU of this set is in the other."""
        return not self._mask & ~other._mask

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CpuSet) and self._mask == other._mask

    def __hash__(self) -> int:
        return hash(self._mask)

    def isdisjoint(self, other: "CpuSet") -> bool:
        return not self._mask & other._mask

    def __str__(self) -> str:
        return _list(self._mask)

    def __repr__(self) -> str:
        return f"CpuSet({str(self)!r})"


@lru_cache(maxsize=256)
def _list(mask: int) -> str:
    """The list as text. Cached: a node has few sets, and stores all of them with every decision."""
    return ",".join(str(start) if start == end else f"{start}-{end}" for start, end in _ranges(mask))


def _ranges(mask: int) -> Iterator[tuple[int, int]]:
    shift = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (~mask & (mask + 1)).bit_length() - 1
        yield shift + zeros, shift + zeros + ones - 1
        mask >>= ones
        shift += zeros + ones


EMPTY = CpuSet()


def union(sets: Iterable[CpuSet]) -> CpuSet:
    """All CPUs of all sets."""
    mask = 0
    for each in sets:
        mask |= each.mask
    return CpuSet(mask)


def _check_length(text: str) -> None:
    if len(text) > _LONGEST_TEXT:
        raise ValueError(
            f"{len(text)} characters are too many for a set of CPUs; at most {_LONGEST_TEXT} are read"
        )


def _number(text: str, whole: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{_shown(whole)} is not a list of CPUs such as 0-3,64-67")
    if len(text) > 9 or int(text) > LARGEST_CPU:
        raise ValueError(f"CPU {_shown(text)} is beyond {LARGEST_CPU}, the largest number that is read")
    return int(text)


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")
