"""Which CCXs to take together for exclusive CPUs: with the fewest split cores, then those that fit best.

CCXs that look alike count as one type, so that an empty machine of a hundred CCXs has one mix of each size. Few mixes
are all compared; of many, the promising ones are, and improved by exchanging one CCX for another.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

_MOST_MIXES = 300
"""Mixes that are compared one by one; where there are more, they are searched."""
_MOST_STEPS = 30_000

Kinds = tuple[tuple[tuple[int, int], int], ...]
"""How many cores there are by size and by free threads."""
Mix = tuple[int, ...]
"""How many CCXs of each type are used."""


class CcxMixes:
    """One choice: so many CCXs out of these types, with room for so many CPUs."""

    def __init__(
        self,
        types: tuple[tuple[tuple[int, Kinds], int], ...],
        size: int,
        count: int,
        spread: bool,
    ) -> None:
        self._types = types
        self._size = size
        self._count = count
        self._sign = -1 if spread else 1

    def best(self) -> Mix | None:
        if self._number() <= _MOST_MIXES:
            fitting = [mix for mix in self._all(0, self._size) if self._room(mix) >= self._count]
        else:
            fitting = [mix for mix in self._promising() if mix is not None and self._room(mix) >= self._count]
            fitting = [self._improved(mix) for mix in fitting]
        return min(fitting, key=self._key) if fitting else None

    def _key(self, mix: Mix) -> tuple[int, ...]:
        kinds: Counter[tuple[int, int]] = Counter()
        for ((_, own), _), used in zip(self._types, mix, strict=True):
            for kind, cores in own if used else ():
                kinds[kind] += cores * used
        split, broken = split_cores(kinds, self._count)
        return (split, broken, self._sign * self._room(mix), *mix)

    def _room(self, mix: Mix) -> int:
        return sum(room * used for ((room, _), _), used in zip(self._types, mix, strict=True))

    def _number(self) -> int:
        """How many mixes there are; counted no further than it matters."""
        ways = [1] + [0] * self._size
        for _, many in self._types:
            ways = [
                min(sum(ways[total - used] for used in range(min(many, total) + 1)), _MOST_MIXES + 1)
                for total in range(self._size + 1)
            ]
        return ways[self._size]

    def _all(self, place: int, left: int) -> Iterator[Mix]:
        if place == len(self._types):
            if not left:
                yield ()
            return
        later = sum(many for _, many in self._types[place + 1 :])
        for used in range(max(0, left - later), min(self._types[place][1], left) + 1):
            for rest in self._all(place + 1, left - used):
                yield (used, *rest)

    def _promising(self) -> Iterator[Mix | None]:
        whole = [_whole(kinds) for (_, kinds), _ in self._types]
        rooms = [room for (room, _), _ in self._types]
        places = range(len(self._types))
        by_cores = self._first(sorted(places, key=lambda at: (-whole[at], -rooms[at], at)))
        yield by_cores
        yield self._first(sorted(places, key=lambda at: (-rooms[at], -whole[at], at)))
        if self._room(by_cores) < self._count:
            yield self._most_whole(whole, rooms)

    def _first(self, order: Sequence[int]) -> Mix:
        mix = [0] * len(self._types)
        left = self._size
        for place in order:
            mix[place] = min(left, self._types[place][1])
            left -= mix[place]
        return tuple(mix)

    def _most_whole(self, whole: Sequence[int], rooms: Sequence[int]) -> Mix | None:
        """Most CPUs in whole cores among the mixes with room enough: a knapsack of so many CCXs."""
        zero = (0,) * len(self._types)
        table: list[dict[int, tuple[int, Mix]]] = [{0: (0, zero)}, *({} for _ in range(self._size))]
        steps = 0
        for place, (_, many) in enumerate(self._types):
            for used in range(self._size - 1, -1, -1):
                for cores, (room, mix) in list(table[used].items()):
                    for more in range(1, min(many, self._size - used) + 1):
                        steps += 1
                        key = min(cores + more * whole[place], self._count)
                        new = (room + more * rooms[place], (*mix[:place], more, *mix[place + 1 :]))
                        old = table[used + more].get(key)
                        if old is None or new > old:
                            table[used + more][key] = new
            if steps > _MOST_STEPS:
                return None
        enough = [(cores, mix) for cores, (room, mix) in table[self._size].items() if room >= self._count]
        return max(enough)[1] if enough else None

    def _improved(self, mix: Mix) -> Mix:
        """Exchanges one CCX for another as long as that helps."""
        for _ in range(4 * self._size):
            better = min(self._neighbours(mix), key=self._key, default=mix)
            if self._key(better) >= self._key(mix):
                break
            mix = better
        return mix

    def _neighbours(self, mix: Mix) -> Iterator[Mix]:
        for out, used in enumerate(mix):
            for into, (_, many) in enumerate(self._types):
                if used and into != out and mix[into] < many:
                    new = list(mix)
                    new[out] -= 1
                    new[into] += 1
                    if self._room(tuple(new)) >= self._count:
                        yield tuple(new)


def _whole(kinds: Kinds) -> int:
    return sum(size * cores for (size, free), cores in kinds if size == free)


def split_cores(kinds: Mapping[tuple[int, int], int], count: int) -> tuple[int, int]:
    """How many cores are split by taking so many CPUs, and how many of those were free as a whole."""
    left = count
    unused = False
    for size, cores in sorted(
        ((size, cores) for (size, free), cores in kinds.items() if size == free), reverse=True
    ):
        taken = min(cores, left // size)
        unused |= taken < cores
        left -= taken * size
    if not left:
        return 0, 0
    parts = sorted(((free, cores) for (size, free), cores in kinds.items() if size > free), reverse=True)
    if parts and parts[0][0] >= left:
        return 1, 0
    if unused:
        return 1, 1
    split = 0
    for free, cores in parts:
        taken = min(cores, -(-left // free))
        split += taken
        left -= taken * free
        if left <= 0:
            break
    return split, 0
