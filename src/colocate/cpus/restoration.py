"""Takes a saved state up again: on the same machine, on one whose CPUs have changed, or under other settings.

What still fits stays as it is; what does not is placed again, as near to where it was as can be, and keeps what is
left of its own CPUs. No container is lost, and none is refused: it runs already.
"""

from collections.abc import Iterable, Mapping

import msgspec

from colocate.cpus.assignment import ContainerKey, CpuAssignment, CpuMode, CpuRefused, CpuState
from colocate.cpus.occupancy import FixedSets, Occupancy
from colocate.cpus.placement import Neighbourhood, place
from colocate.cpus.pools import PoolTree
from colocate.cpus.settings import CpuSettings
from colocate.cpus.shared import PoolRung
from colocate.model.cpuset import EMPTY, CpuSet, union
from colocate.model.memory import PodUid

_RUNGS = frozenset(map(str, PoolRung))


class Restoration:
    """One state taken up."""

    def __init__(self, tree: PoolTree, sets: FixedSets, settings: CpuSettings, state: CpuState) -> None:
        self._tree = tree
        self._sets = sets
        self._settings = settings
        self.assignments: dict[ContainerKey, CpuAssignment] = {}
        """In the order of the state."""
        self.handed: dict[PodUid, CpuSet] = {}
        self.moved: dict[ContainerKey, CpuSet] = {}
        """Those that could not stay, and what they had."""
        self._take_up(state)

    def _take_up(self, state: CpuState) -> None:
        lost: dict[ContainerKey, CpuAssignment] = {}
        taken = EMPTY
        for each in state.assignments:
            if each.key in self.assignments or each.key in lost:
                continue
            if self._still_fits(each, taken):
                self.assignments[each.key] = self._renewed(each)
                taken |= each.cpus
            else:
                lost[each.key] = each
        for pod, cpus in sorted(state.handed.items()):
            if cpus := (cpus & self._tree.machine.cpus) - self._sets.reserved - taken:
                self.handed[pod] = cpus
                taken |= cpus
        claims = self._claims(lost.values(), taken)
        for key, each in lost.items():
            self._place_again(each, claims.pop(key), union(claims.values()))
        order = {each.key: place for place, each in reversed(list(enumerate(state.assignments)))}
        self._leave_some(order)
        # Only now is it known what the others leave to those that share.
        crowded = self._crowded()
        for each in crowded:
            del self.assignments[each.key]
        for each in crowded:
            self._place_again(each, EMPTY, EMPTY)
        self.assignments = dict(sorted(self.assignments.items(), key=lambda item: order[item[0]]))

    def _claims(self, lost: Iterable[CpuAssignment], taken: CpuSet) -> dict[ContainerKey, CpuSet]:
        """What is left of the CPUs of containers that cannot stay; no other container may have it before they do."""
        claims = {}
        for each in lost:
            claims[each.key] = (each.cpus & self._tree.machine.cpus) - taken
            taken |= claims[each.key]
        return claims

    def _still_fits(self, each: CpuAssignment, taken: CpuSet) -> bool:
        sets, request = self._sets, each.request
        named = self._settings.pool_of(request.namespace)
        if each.mode is CpuMode.EXCLUSIVE:
            home = sets.named.get(each.pool, EMPTY) if each.pool else sets.ordinary | sets.isolated
            right = each.pool == named or each.cpus <= sets.isolated
            whole = bool(each.cpus) and len(each.cpus) * 1000 == request.cpu
            return whole and right and each.cpus <= home and each.cpus.isdisjoint(taken)
        if each.mode is CpuMode.NAMED:
            return each.pool == named and bool(named)
        if each.mode is CpuMode.RESERVED:
            return bool(sets.reserved) and request.namespace in self._settings.reserved_namespaces
        if each.mode is CpuMode.UNPOOLED:
            leaves = request.wishes.opt_out and self._settings.may_leave(request.namespace)
            return leaves or (not named and (request.wishes.opt_out or request.cpu == 0))
        return not named and self._has_its_pools(each)

    def _has_its_pools(self, each: CpuAssignment) -> bool:
        asked = sum(share.cpu for share in each.parts) == each.request.cpu
        pools = [(self._tree.by_name.get(share.pool), share) for share in each.parts]
        return (
            bool(pools)
            and asked
            and each.rung in _RUNGS
            and all(
                # The same name may mean other CPUs by now.
                pool is not None and share.cpu >= 0 and bool(pool.cpus & share.cpus & self._sets.ordinary)
                for pool, share in pools
            )
        )

    def _renewed(self, each: CpuAssignment) -> CpuAssignment:
        known = {node.id for node in self._tree.topology.nodes}
        parts = tuple(
            msgspec.structs.replace(share, cpus=self._tree.by_name[share.pool].cpus) for share in each.parts
        )
        memory = (
            tuple(share for share in each.memory if share.node in known) if self._settings.pin_memory else ()
        )
        return msgspec.structs.replace(each, parts=parts, memory=memory)

    def _leave_some(self, order: Mapping[ContainerKey, int]) -> None:
        """CPUs for those that share: where none is left or reserved, the last that came gives its own up."""
        common = self._sets.reserved or self._sets.ordinary or self._tree.machine.cpus
        while common <= self._occupancy(self.assignments.values()).exclusive:
            if self.handed:
                self.handed.popitem()
                continue
            own = [each for each in self.assignments.values() if not each.cpus.isdisjoint(common)]
            if not own:
                return
            last = max(own, key=lambda each: order[each.key])
            del self.assignments[last.key]
            self._place_again(last, EMPTY, EMPTY)

    def _crowded(self) -> list[CpuAssignment]:
        """The shared containers that a pool has no more room for, in the order in which they came.

        Containers that were short from the start take no room from others.
        """
        found = []
        rest = {key: each for key, each in self.assignments.items() if not each.short}
        for key in reversed(list(rest)):
            each = rest[key]
            if each.mode is not CpuMode.SHARED:
                continue
            free = self._occupancy(rest.values()).free
            if any(free[self._tree.by_name[share.pool].index] < 0 for share in each.parts):
                del rest[key]
                found.append(each)
        return found[::-1]

    def _place_again(self, each: CpuAssignment, kept: CpuSet, claimed: CpuSet) -> None:
        before = each.cpus or union(share.cpus for share in each.parts)
        near = EMPTY if kept else before & self._tree.machine.cpus
        known = Neighbourhood(kept=kept, near=near, companion=EMPTY)
        occupancy = self._occupancy(self.assignments.values(), kept | claimed)
        request = each.request
        try:
            given = place(request, occupancy, self._settings, known)
        except CpuRefused as refused:
            wishes = msgspec.structs.replace(request.wishes, strict=False)
            given = place(msgspec.structs.replace(request, wishes=wishes), occupancy, self._settings, known)
            warning = f"{refused}; it runs already, so it goes on elsewhere."
            given = msgspec.structs.replace(given, request=request, warnings=(*given.warnings, warning))
        self.assignments[each.key] = msgspec.structs.replace(given, ended=each.ended)
        self.moved.setdefault(each.key, before)

    def _occupancy(self, assignments: Iterable[CpuAssignment], held: CpuSet = EMPTY) -> Occupancy:
        return Occupancy(self._tree, self._sets, assignments, [*self.handed.values(), held])
