"""Bytes kept in one block of memory, one after the other; when it is full, the oldest are overwritten.

A block of its own, in large pages where the kernel has such: what comes with every question and stays would else be
memory that nobody has touched yet, a small page at a time, and the kernel takes its time to provide each.
"""

import mmap


class Shelf:
    """Room for so many bytes, taken as it is used."""

    def __init__(self, room: int) -> None:
        self._room = max(room, 1)
        self._block: mmap.mmap | None = None
        self._written = 0
        """Bytes, since the beginning; where the block ends too early for some, it counts as written up to there."""

    def put(self, data: bytes) -> int | None:
        """Keep these; returns where they are, None where they do not fit."""
        length, room = len(data), self._room
        if length > room:
            return None
        start = self._written % room
        if start + length > room:
            self._written += room - start
            start = 0
        place = self._written
        self._written += length
        block = self._block or self._made()
        block[start : start + length] = data
        return place

    def get(self, place: int, length: int) -> bytes | None:
        """What was kept there; None where it had to make room."""
        if self._block is None or self._written - place > self._room:
            return None
        start = place % self._room
        return self._block[start : start + length]

    def _made(self) -> mmap.mmap:
        made = self._block = mmap.mmap(-1, self._room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            made.madvise(mmap.MADV_HUGEPAGE)
        return made
