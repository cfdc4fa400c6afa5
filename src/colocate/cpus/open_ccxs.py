"""CCXs with CPUs to give, and how CPUs are taken out of those that were chosen: whole cores first.

Never more is taken anywhere than may be. Which CCXs are chosen is decided by `exclusive` and `ccx_mixes`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from colocate.cpus.ccx_mixes import Kinds
from colocate.cpus.pools import Cell, PoolTree
from colocate.model.cpuset import CpuSet

Unit: TypeAlias = tuple[int, int]
"""The part of a NUMA node that lies in one socket: on most machines the node."""
RoomKey: TypeAlias = tuple[str, int | Unit]
"""A place that holds only so much: a CCX, a unit, what is around it, the machine."""


class OpenCcx(msgspec.Struct):
    """A CCX with CPUs to give."""

    cell: Cell
    order: int
    cores: list[tuple[int, int]]
    """Of each core with a free thread: its size, and the free ones as bits."""
    room: int
    """How many of its CPUs may be taken: shared containers need the others."""
    kinds: Kinds

    @property
    def whole(self) -> bool:
        """All of its CPUs may be taken: it is no other container's."""
        return self.room == self.cell.mask.bit_count()

    @property
    def unit(self) -> Unit:
        return self.cell.socket, self.cell.node


def opened(tree: PoolTree, available: CpuSet, limits: Mapping[int, int]) -> Iterator[OpenCcx]:
    """The CCXs with an available CPU; `limits` says by pool how many may be taken."""
    mask = available.mask
    for order, cell in enumerate(tree.cells):
        free = cell.mask & mask
        if not free:
            continue
        cores = [(core.bit_count(), core & free) for core in cell.cores if core & free]
        kinds = tuple(sorted(Counter((size, own.bit_count()) for size, own in cores).items()))
        room = min(free.bit_count(), limits.get(cell.pool, 1 << 30))
        yield OpenCcx(cell=cell, order=order, cores=cores, room=room, kinds=kinds)


class Fill:
    """Takes CPUs out of chosen CCXs, never more than may be taken anywhere."""

    def __init__(
        self, cells: Sequence[OpenCcx], count: int, rooms: dict[RoomKey, int], outer: Mapping[Unit, int]
    ) -> None:
        self._left = count
        self._rooms = rooms
        self._outer = outer
        # What is left over is left where others are already. A CCX that a container has alone is whole again when it
        # ends; a CPU that it leaves there is soon another's.
        ordered = sorted(cells, key=lambda each: (not each.whole, -each.room, each.order))
        self._cores = [(size, free, each) for each in ordered for size, free in each.cores]
        self._taken = 0

    def cpus(self) -> CpuSet:
        """The CPUs: whole cores, then as few split ones as can be."""
        for size, free, cell in sorted(self._whole(), key=lambda core: -core[0]):
            if size <= self._left:
                self._take(free, size, cell)
        while self._left:
            options = [
                (-min(count, self._left, self._room(cell)), count == size, count, place, free, cell)
                for place, (size, free, cell) in enumerate(self._cores)
                if (count := (free & ~self._taken).bit_count()) and self._room(cell) > 0
            ]
            covered, _, _, _, free, cell = min(options, key=lambda option: option[:4])
            self._take(_lowest(free & ~self._taken, -covered), -covered, cell)
        return CpuSet(self._taken)

    def _whole(self) -> list[tuple[int, int, OpenCcx]]:
        return [core for core in self._cores if core[1].bit_count() == core[0]]

    def _room(self, cell: OpenCcx) -> int:
        return min(self._rooms[key] for key in self._keys(cell))

    def _keys(self, cell: OpenCcx) -> tuple[RoomKey, ...]:
        return ("machine", 0), ("outer", self._outer[cell.unit]), ("unit", cell.unit), ("ccx", cell.order)

    def _take(self, mask: int, count: int, cell: OpenCcx) -> None:
        if self._room(cell) < count:
            return
        self._taken |= mask
        self._left -= count
        for key in self._keys(cell):
            self._rooms[key] -= count


def _lowest(mask: int, count: int) -> int:
    taken = 0
    for _ in range(count):
        taken |= mask & -mask
        mask &= mask - 1
    return taken
