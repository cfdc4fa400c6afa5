"""What is free in every pool: its size, less reserved and exclusive CPUs, less what shared containers ask for there.

A pool holds no more than any pool that it lies in: a NUMA node that is full leaves nothing in its CCXs. Memory is
counted alike, by NUMA node, and once for each container.
"""

from collections.abc import Iterable, Mapping

import msgspec

from colocate.cpus.assignment import CpuAssignment, CpuMode, MemoryShare, MilliCpu
from colocate.cpus.exclusive import find_exclusive
from colocate.cpus.pools import CpuPool, PoolKind, PoolTree
from colocate.cpus.settings import CpuSettings, check_settings
from colocate.errors import UserError
from colocate.model.cpuset import CpuSet, union
from colocate.model.memory import Bytes


class FixedSets(msgspec.Struct, frozen=True, kw_only=True):
    """Which CPUs are for what before any container comes, by machine and settings alone."""

    reserved: CpuSet
    named: Mapping[str, CpuSet]
    isolated: CpuSet
    ordinary: CpuSet
    """CPUs for all other containers."""


def fixed_sets(tree: PoolTree, settings: CpuSettings) -> FixedSets:
    """UserError where the settings do not fit the machine."""
    online = tree.machine.cpus
    check_settings(settings, online)
    explicit = union([settings.reserved, *(pool.cpus for pool in settings.pools)])
    isolated = (tree.topology.isolated & online) - explicit
    left = online - isolated - explicit
    sized = -(-settings.reserved_size // 1000) + sum(pool.size for pool in settings.pools)
    if sized and sized >= len(left):
        raise UserError(
            f"{sized} CPUs are reserved or in pools by size, and {len(left)} are neither named nor isolated; "
            "leave at least one for all others"
        )
    reserved = settings.reserved
    if settings.reserved_size:
        reserved = find_exclusive(tree, left, -(-settings.reserved_size // 1000)) or left
        left -= reserved
    named = {}
    for pool in settings.pools:
        named[pool.name] = pool.cpus or find_exclusive(tree, left, pool.size) or left
        left -= named[pool.name]
    return FixedSets(reserved=reserved, named=named, isolated=isolated, ordinary=left)


class Occupancy:
    """What is free, at one moment."""

    def __init__(
        self,
        tree: PoolTree,
        sets: FixedSets,
        assignments: Iterable[CpuAssignment],
        handed: Iterable[CpuSet] = (),
    ) -> None:
        self.tree = tree
        self.sets = sets
        exclusive = union(handed).mask
        parts: list[tuple[int, MilliCpu]] = []
        unpooled: dict[str, MilliCpu] = {}
        self.memory: dict[int, Bytes] = {}
        """By NUMA node, what is asked for there."""
        for each in assignments:
            exclusive |= each.cpus.mask
            for share in each.parts:
                parts.append((tree.by_name[share.pool].index, share.cpu))
            for memory in each.memory:
                self.memory[memory.node] = self.memory.get(memory.node, 0) + memory.memory
            if each.mode in (CpuMode.RESERVED, CpuMode.NAMED):
                unpooled[each.pool] = unpooled.get(each.pool, 0) + each.request.cpu
        self.exclusive = CpuSet(exclusive)
        self.shared = sets.ordinary - self.exclusive
        """The CPUs that shared containers run on."""
        mask = self.shared.mask
        self.size = [(pool.cpus.mask & mask).bit_count() * 1000 for pool in tree.pools]
        self.load = [0] * len(tree.pools)
        for index, cpu in parts:
            self.load[index] += cpu
            for holder in tree.holders[index]:
                self.load[holder] += cpu
        own = [size - load for size, load in zip(self.size, self.load, strict=True)]
        self.free = [
            min(own[index], *(own[holder] for holder in holders)) if holders else own[index]
            for index, holders in enumerate(tree.holders)
        ]
        """Thousandths of a CPU that each pool can still hold; negative where it holds too much."""
        self._asked = unpooled

    def limits(self) -> dict[int, int]:
        """By pool, how many CPUs may become exclusive: what shared containers ask for stays.

        One CPU stays shared where none is reserved: a container that asks for nothing must run somewhere.
        """
        limits = {index: max(0, free // 1000) for index, free in enumerate(self.free)}
        if not self.sets.reserved:
            machine = self.tree.machine.index
            limits[machine] = min(limits[machine], len(self.shared) - 1)
        return limits

    def is_unused(self, pool: CpuPool) -> bool:
        """No container has a CPU of it alone, or asks for some of it."""
        taken = pool.cpus.mask & self.sets.ordinary.mask & self.exclusive.mask
        return not taken and not self.load[pool.index]

    def special_free(self, name: str, cpus: CpuSet) -> MilliCpu:
        """What the reserved CPUs (no name) or a named pool can still hold."""
        return len(cpus - self.exclusive) * 1000 - self._asked.get(name, 0)

    def memory_free(self, node: int) -> Bytes | None:
        """None where the machine does not tell how much there is."""
        total = self._memory_of(node)
        return None if total is None else total - self.memory.get(node, 0)

    def memory_fits(self, nodes: Iterable[int], memory: Bytes) -> bool:
        """Whether so much memory is free on these nodes together, as far as is known."""
        free = [self.memory_free(node) for node in nodes]
        return any(each is None for each in free) or sum(each for each in free if each and each > 0) >= memory

    def memory_shares(self, nodes: Iterable[int], memory: Bytes) -> tuple[tuple[MemoryShare, ...], bool]:
        """Where a container's memory goes: the nodes of its CPUs, and whether others had to be added.

        The nearest are added, memory without CPUs last, until there is room; where there is none, nothing helps.
        """
        home = sorted(nodes)
        if self.memory_fits(home, memory):
            return self._shared_out(home, memory), False
        others = sorted(
            (node for node in self.tree.topology.nodes if node.id not in home and node.memory),
            key=lambda node: (not node.cpus, min(self.tree.distance(own, node.id) for own in home), node.id),
        )
        wider = list(home)
        for other in others:
            wider.append(other.id)
            if self.memory_fits(wider, memory):
                return self._shared_out(wider, memory), True
        return self._shared_out(home, memory), True

    def _shared_out(self, nodes: list[int], memory: Bytes) -> tuple[MemoryShare, ...]:
        shares = []
        left = memory
        for node in nodes:
            free = self.memory_free(node)
            own = left if free is None else min(left, max(0, free))
            shares.append(MemoryShare(node, own))
            left -= own
        # What fits nowhere is counted where it begins.
        return (MemoryShare(shares[0].node, shares[0].memory + left), *shares[1:]) if left else tuple(shares)

    def _memory_of(self, node: int) -> Bytes | None:
        return next((one.memory for one in self.tree.topology.nodes if one.id == node), None)

    def free_in(self, kind: PoolKind) -> MilliCpu:
        """The most that a pool of this kind can hold."""
        return max((self.free[pool.index] for pool in self.tree.kind(kind)), default=0)
