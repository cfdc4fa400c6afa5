"""Finds CPUs for one container alone: fewest sockets, then NUMA nodes, then L3s, then split cores.

Exact on machines of usual shapes: the sets of NUMA nodes that hold the request are compared, in each of them the sets
of CCXs. Among equals the nearest by NUMA distance is taken, then what fits best, then the lowest numbers. A core is
split where some of its threads are given and some are not. Only CPUs that are available are ever given.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import msgspec

from colocate.cpus.ccx_mixes import CcxMixes, Kinds, Mix, split_cores
from colocate.cpus.open_ccxs import Fill, OpenCcx, RoomKey, Unit, opened
from colocate.cpus.pools import PoolKind, PoolTree
from colocate.model.cpuset import CpuSet

_MOST_SETS = 1000
"""Sets of NUMA nodes that are compared; where there are more, the near and the roomy ones."""


class Taste(msgspec.Struct, frozen=True, kw_only=True):
    """What decides among equal sets, and what a container wants to be near."""

    beside: frozenset[int] = frozenset()
    """NUMA nodes of its devices."""
    near: CpuSet = CpuSet()
    """CPUs of what it wants to be close to."""
    avoided: frozenset[int] = frozenset()
    """NUMA nodes without room for its memory."""
    spread: bool = False
    """Take what is roomiest, not what fits best."""


def find_exclusive(
    tree: PoolTree,
    available: CpuSet,
    count: int,
    limits: Mapping[int, int] | None = None,
    taste: Taste | None = None,
) -> CpuSet | None:
    """So many of the available CPUs, or None where they are not there.

    `limits` says by pool how many may be taken there at most.
    """
    if count <= 0:
        return CpuSet()
    search = _Search(tree, available, count, limits or {}, taste or Taste())
    return search.best()


def grow_exclusive(
    tree: PoolTree,
    kept: CpuSet,
    available: CpuSet,
    more: int,
    limits: Mapping[int, int] | None = None,
    taste: Taste | None = None,
) -> CpuSet | None:
    """What is kept and so many more, as close to it as they are available; None where they are not there."""
    near = [cell for cell in tree.cells if cell.mask & kept.mask]
    nodes = {cell.node for cell in near}
    sockets = {cell.socket for cell in near}
    own_cores = [core for cell in near for core in cell.cores if core & kept.mask]
    areas = (
        CpuSet(sum(own_cores)),
        CpuSet(sum(cell.mask for cell in near)),
        CpuSet(sum(cell.mask for cell in tree.cells if cell.node in nodes)),
        CpuSet(sum(cell.mask for cell in tree.cells if cell.socket in sockets)),
        tree.machine.cpus,
    )
    given = CpuSet()
    wanted = msgspec.structs.replace(taste or Taste(), near=kept, beside=frozenset(nodes))
    for area in areas:
        left = dict(limits or {})
        for pool in tree.pools if given else ():
            if pool.index in left:
                left[pool.index] -= len(pool.cpus & given)
        free = (available & area) - given - kept
        found = find_exclusive(tree, free, more - len(given), left, wanted)
        if found is not None:
            return kept | given | found
        # Not all of it is here: take what is, and go on one step further out. More threads of cores and CCXs that are
        # kept cost nothing; of a NUMA node or socket that is kept, only what is needed is taken, so it is left whole.
        if area in areas[:2]:
            given |= _all_of(tree, free, left, wanted)
    return None


def _all_of(tree: PoolTree, free: CpuSet, limits: Mapping[int, int], taste: Taste) -> CpuSet:
    """As many as may be taken."""
    for count in range(len(free), 0, -1):
        found = find_exclusive(tree, free, count, limits, taste)
        if found is not None:
            return found
    return CpuSet()


def spread_of(tree: PoolTree, cpus: CpuSet) -> tuple[int, int, int, int]:
    """Sockets, NUMA nodes, L3s and split cores of a set of CPUs: the smaller, compared in this order, the better."""
    touched = [cell for cell in tree.cells if cell.mask & cpus.mask]
    split = sum(1 for cell in touched for core in cell.cores if core & cpus.mask and core & ~cpus.mask)
    sockets, nodes = {cell.socket for cell in touched}, {cell.node for cell in touched}
    return len(sockets), len(nodes), len({cell.l3 for cell in touched}), split


class _Search:
    """One search."""

    def __init__(
        self, tree: PoolTree, available: CpuSet, count: int, limits: Mapping[int, int], taste: Taste
    ) -> None:
        self._tree = tree
        self._count = count
        self._taste = taste
        self._open = [found for found in opened(tree, available, limits) if found.room > 0]
        self._units: dict[Unit, list[OpenCcx]] = {}
        for each in self._open:
            self._units.setdefault(each.unit, []).append(each)
        nodes_outside = tree.sockets_in_nodes
        inner, outer = (PoolKind.SOCKET, PoolKind.NUMA) if nodes_outside else (PoolKind.NUMA, PoolKind.SOCKET)
        names = {pool.name: limits[pool.index] for pool in tree.pools if pool.index in limits}
        place = 0 if nodes_outside else 1
        self._room_in = {
            unit: min(sum(each.room for each in cells), names.get(f"{inner} {unit[place]}", 1 << 30))
            for unit, cells in self._units.items()
        }
        self._outer = {unit: unit[1 - place] for unit in self._units}
        self._outer_limit = {
            number: names.get(f"{outer} {number}", 1 << 30) for number in set(self._outer.values())
        }
        self._limit = names.get("machine", 1 << 30)
        self._mixes: dict[tuple[tuple[tuple[int, Kinds], int], ...], Mix | None] = {}

    def best(self) -> CpuSet | None:
        if self._room(self._room_in) < self._count:
            return None
        ranked: list[tuple[tuple[int, ...], tuple[tuple[int, int], ...]]] = []
        for units in self._unit_sets():
            fewest = self._fewest(units)
            if fewest is not None:
                ranked.append(((*self._places(units), fewest), units))
        least = min(rank for rank, _ in ranked)
        chosen: tuple[tuple[int, ...], list[OpenCcx]] | None = None
        for rank, units in ranked:
            if rank == least and (cells := self._cells(units, rank[-1])) is not None:
                key = self._key(units, cells)
                if chosen is None or key < chosen[0]:
                    chosen = key, cells
        return self._fill(chosen[1]) if chosen else None

    def _places(self, units: Sequence[Unit]) -> tuple[int, ...]:
        """What is compared before L3s: sockets, NUMA nodes, memory, devices."""
        nodes = {node for _, node in units}
        avoided = len(nodes & self._taste.avoided)
        beside = min(len(nodes), len(self._taste.beside)) - len(nodes & self._taste.beside)
        return len({socket for socket, _ in units}), len(nodes), avoided, beside

    def _key(self, units: Sequence[Unit], cells: Sequence[OpenCcx]) -> tuple[int, ...]:
        """What is compared among sets of the same places and as many CCXs."""
        split, broken = split_cores(_added(cells), self._count)
        nodes = sorted({node for _, node in units})
        apart = sum(self._tree.distance(one, other) for one, other in combinations(nodes, 2))
        from_devices = (
            sum(min(self._tree.distance(node, other) for other in self._taste.beside) for node in nodes)
            if self._taste.beside
            else 0
        )
        far = (
            sum(1 for each in cells if not each.cell.mask & self._taste.near.mask) if self._taste.near else 0
        )
        left = [sum(each.room for each in cells), sum(self._room_in[unit] for unit in units)]
        left.append(sum(self._room_of(number) for number in {self._outer[unit] for unit in units}))
        fit = [-each for each in reversed(left)] if self._taste.spread else left
        return (
            len({each.cell.l3 for each in cells}), split, from_devices, far, apart, broken, *fit,
            *sorted(each.order for each in cells),
        )  # fmt: skip

    def _room_of(self, outer: int) -> int:
        return sum(room for unit, room in self._room_in.items() if self._outer[unit] == outer)

    def _room(self, units: Mapping[tuple[int, int], int]) -> int:
        """How many CPUs may be taken in these units, so many in each at most."""
        sums: dict[int, int] = {}
        for unit, room in units.items():
            sums[self._outer[unit]] = sums.get(self._outer[unit], 0) + min(room, self._room_in[unit])
        return min(self._limit, sum(min(room, self._outer_limit[outer]) for outer, room in sums.items()))

    def _unit_sets(self) -> Iterator[tuple[tuple[int, int], ...]]:
        """Sets of NUMA nodes with room for the request and no more members than needed."""
        by_outer: dict[int, list[Unit]] = {}
        for unit in sorted(self._units):
            by_outer.setdefault(self._outer[unit], []).append(unit)
        if self._tree.sockets_in_nodes:
            # A socket is the smaller one here, and counts first.
            yield from self._sets_among([sorted(self._units)])
            return
        rooms = {
            outer: self._room({unit: self._room_in[unit] for unit in units})
            for outer, units in by_outer.items()
        }
        needed = _prefix(sorted(rooms.values(), reverse=True), self._count)
        if math.comb(len(rooms), needed) > _MOST_SETS:
            roomy = sorted(rooms, key=lambda outer: (-rooms[outer], outer))
            outers: list[tuple[int, ...]] = [tuple(roomy[:needed])]
        else:
            outers = [
                some
                for some in combinations(sorted(rooms), needed)
                if sum(rooms[one] for one in some) >= self._count
            ]
        yield from self._sets_among([[unit for one in some for unit in by_outer[one]] for some in outers])

    def _sets_among(self, areas: Sequence[Sequence[Unit]]) -> Iterator[tuple[tuple[int, int], ...]]:
        sizes = [self._fewest_units(area) for area in areas]
        size = min(found for found in sizes if found)
        fitting = [area for area, found in zip(areas, sizes, strict=True) if found == size]
        if sum(math.comb(len(area), size) for area in fitting) > _MOST_SETS:
            yield from {self._near_set(area, anchor): None for area in fitting for anchor in area}
            yield from (tuple(sorted(self._roomiest(area)[:size])) for area in fitting)
            return
        for area in fitting:
            for units in combinations(area, size):
                if self._room({unit: self._room_in[unit] for unit in units}) >= self._count:
                    yield units

    def _fewest_units(self, area: Sequence[Unit]) -> int | None:
        taken: dict[tuple[int, int], int] = {}
        for unit in self._roomiest(area):
            taken[unit] = self._room_in[unit]
            if self._room(taken) >= self._count:
                return len(taken)
        return None

    def _roomiest(self, area: Sequence[Unit]) -> list[Unit]:
        return sorted(area, key=lambda unit: (-self._room_in[unit], unit))

    def _near_set(self, area: Sequence[Unit], anchor: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        """From one on outwards, until there is room."""
        taken: dict[tuple[int, int], int] = {}
        ordered = sorted(
            area, key=lambda unit: (self._tree.distance(anchor[1], unit[1]), -self._room_in[unit], unit)
        )
        for unit in ordered:
            taken[unit] = self._room_in[unit]
            if self._room(taken) >= self._count:
                break
        return tuple(sorted(taken))

    def _fewest(self, units: Sequence[Unit]) -> int | None:
        """How many CCXs are needed in these units."""
        cells = self._roomiest_cells(units)
        return None if cells is None else len(cells)

    def _roomiest_cells(self, units: Sequence[Unit]) -> list[OpenCcx] | None:
        cells = sorted(
            (each for unit in units for each in self._units[unit]), key=lambda each: (-each.room, each.order)
        )
        taken: list[OpenCcx] = []
        rooms = dict.fromkeys(units, 0)
        room = 0
        for each in cells:
            rooms[each.unit] += each.room
            new = self._room(rooms)
            if new > room:
                taken.append(each)
                room = new
            else:
                rooms[each.unit] -= each.room
            if room >= self._count:
                return taken
        return None

    def _cells(self, units: Sequence[Unit], fewest: int) -> list[OpenCcx] | None:
        """So many CCXs of these units: with the fewest split cores, then those that fit best."""
        types: dict[tuple[int, Kinds], list[OpenCcx]] = {}
        for unit in units:
            for each in self._units[unit]:
                types.setdefault((each.room, each.kinds), []).append(each)
        ordered = sorted(types.items())
        signature = tuple((kind, len(cells)) for kind, cells in ordered)
        if signature not in self._mixes:
            self._mixes[signature] = CcxMixes(signature, fewest, self._count, self._taste.spread).best()
        mix = self._mixes[signature]
        if mix is None:
            return self._roomiest_cells(units)
        near = self._taste.near.mask
        chosen: list[OpenCcx] = []
        for (_, cells), used in zip(ordered, mix, strict=True):
            cells.sort(key=lambda each: (not each.cell.mask & near, each.order))
            chosen += cells[:used]
        rooms = dict.fromkeys(units, 0)
        for each in chosen:
            rooms[each.unit] += each.room
        return chosen if self._room(rooms) >= self._count else self._roomiest_cells(units)

    def _fill(self, cells: Sequence[OpenCcx]) -> CpuSet:
        """The CPUs of these CCXs: whole cores first, the fullest CCX last, so that what is left is left together."""
        rooms: dict[RoomKey, int] = {("machine", 0): self._limit}
        for each in cells:
            rooms["ccx", each.order] = each.room
            rooms["unit", each.unit] = self._room_in[each.unit]
            rooms["outer", self._outer[each.unit]] = self._outer_limit[self._outer[each.unit]]
        return Fill(cells, self._count, rooms, self._outer).cpus()


def _added(cells: Sequence[OpenCcx]) -> Counter[Unit]:
    kinds: Counter[Unit] = Counter()
    for each in cells:
        for kind, cores in each.kinds:
            kinds[kind] += cores
    return kinds


def _prefix(sizes: Sequence[int], count: int) -> int:
    """How many of the first are needed to make so many together."""
    total = 0
    for needed, size in enumerate(sizes, start=1):
        total += size
        if total >= count:
            return needed
    return len(sizes)
