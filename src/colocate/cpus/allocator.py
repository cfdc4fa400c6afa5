"""Keeps who has which CPUs, and answers what follows when a container comes, changes, ends or goes.

All of its state is data: `state()` saves it, `CpuAllocator.restored` takes it up again on the same machine, on one
whose CPUs have changed, or under other settings. The same history gives the same assignments. No I/O, no clock.
"""

from collections.abc import Iterable, Mapping

import msgspec

from colocate.cpus.assignment import (
    ContainerKey,
    ContainerRole,
    CpuAssignment,
    CpuChange,
    CpuMode,
    CpuMove,
    CpuRequest,
    CpuState,
    CpuUpdate,
)
from colocate.cpus.occupancy import FixedSets, Occupancy, fixed_sets
from colocate.cpus.placement import Neighbourhood, place
from colocate.cpus.pools import PoolTree
from colocate.cpus.restoration import Restoration
from colocate.cpus.settings import CpuSettings
from colocate.errors import UserError
from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import EMPTY, CpuSet, union
from colocate.model.memory import PodUid
from colocate.model.pod import QosClass


class CpuAllocator:
    """The CPUs of one machine."""

    def __init__(self, topology: CpuTopology, settings: CpuSettings | None = None) -> None:
        """UserError where the settings do not fit the machine."""
        self.settings = settings or CpuSettings()
        self.tree = PoolTree(topology)
        self.sets: FixedSets = fixed_sets(self.tree, self.settings)
        self._assignments: dict[ContainerKey, CpuAssignment] = {}
        self._handed: dict[PodUid, CpuSet] = {}
        self._shown: dict[ContainerKey, CpuSet] = {}
        self._now: Occupancy | None = None
        """What is free, until something changes."""

    @property
    def assignments(self) -> Mapping[ContainerKey, CpuAssignment]:
        return self._assignments

    @property
    def cpusets(self) -> Mapping[ContainerKey, CpuSet]:
        """The CPUs that each container may run on now, as `cpus_of` says."""
        return self._shown

    def occupancy(self, without: ContainerKey | None = None, held: CpuSet = EMPTY) -> Occupancy:
        """What is free now, or without one container; `held` still counts as taken."""
        if without is None and not held:
            if self._now is None:
                self._now = Occupancy(self.tree, self.sets, self._assignments.values(), self._handed.values())
            return self._now
        others = (each for key, each in self._assignments.items() if key != without)
        return Occupancy(self.tree, self.sets, others, [*self._handed.values(), held])

    def assign(self, request: CpuRequest) -> CpuChange:
        """CPUs for a container that is created; the same again if it had some and asks for the same.

        UserError where the request makes no sense, CpuRefused where a strict wish cannot be had.
        """
        old = self._assignments.get(request.key)
        if old is not None and old.request == request:
            self._assignments[request.key] = msgspec.structs.replace(old, ended=False)
            return self._change(request.key)
        if old is not None:
            return self.resize(request)
        _check(request)
        handed = self._handed.get(request.pod, EMPTY)
        given = place(request, self.occupancy(), self.settings, self._known(request, handed))
        self._assignments[request.key] = given
        self._use_handed(request.pod, given.cpus)
        return self._change(request.key)

    def resize(self, request: CpuRequest) -> CpuChange:
        """Another amount for a container that runs: it keeps what can be kept. Nothing changes on CpuRefused."""
        old = self._assignments.get(request.key)
        if old is None:
            return self.assign(request)
        _check(request)
        handed = self._handed.get(request.pod, EMPTY)
        near = self.cpus_of(old)
        known = self._known(request, handed, kept=old.cpus, near=EMPTY if old.cpus else near)
        given = place(request, self.occupancy(old.key, held=old.cpus), self.settings, known)
        if old.cpus and not given.cpus:
            # It shares from now on, or cannot grow where it is: what it had is free for it, too.
            known = self._known(request, handed, near=near)
            given = place(request, self.occupancy(old.key), self.settings, known)
        self._assignments[request.key] = given
        self._use_handed(request.pod, given.cpus)
        return self._change(request.key)

    def end(self, key: ContainerKey) -> CpuChange:
        """A container has ended, and its sandbox lives: what it has is kept for its next start.

        An init container hands its own CPUs on to those that follow in its pod.
        """
        old = self._assignments.get(key)
        if old is None:
            return self._change(key)
        if old.request.role is ContainerRole.INIT:
            del self._assignments[key]
            if old.cpus:
                self._handed[old.request.pod] = self._handed.get(old.request.pod, EMPTY) | old.cpus
        else:
            self._assignments[key] = msgspec.structs.replace(old, ended=True)
        return self._change(key)

    def release(self, key: ContainerKey) -> CpuChange:
        """A container is gone for good."""
        self._assignments.pop(key, None)
        return self._change(key)

    def release_pod(self, pod: PodUid) -> CpuChange:
        """A pod is gone for good, with all that its containers had."""
        self._handed.pop(pod, None)
        for key in [key for key in self._assignments if key[0] == pod]:
            del self._assignments[key]
        return self._change((pod, ""))

    def hand_back(self, pod: PodUid) -> CpuChange:
        """All containers of a pod have started: what its init containers left over is free again."""
        self._handed.pop(pod, None)
        return self._change((pod, ""))

    def put(self, assignment: CpuAssignment) -> CpuChange:
        """Take an assignment over as it is: it was made for this very state."""
        self._assignments[assignment.key] = assignment
        return self._change(assignment.key)

    def apply(self, moves: Iterable[CpuMove]) -> CpuChange:
        """Carry out a plan that was made of this very state."""
        for move in moves:
            if move.key in self._assignments:
                self._assignments[move.key] = move.assignment
        return self._change(("", ""))

    def cpus_of(self, assignment: CpuAssignment, occupancy: Occupancy | None = None) -> CpuSet:
        """The CPUs that a container may run on now: never empty, never with a CPU that is another's alone."""
        now = occupancy or self.occupancy()
        sets = self.sets
        if assignment.mode is CpuMode.EXCLUSIVE:
            return assignment.cpus
        if assignment.mode is CpuMode.SHARED:
            pools = union(self.tree.by_name[share.pool].cpus for share in assignment.parts)
            found = pools & now.shared
        elif assignment.mode is CpuMode.RESERVED:
            found = sets.reserved
        elif assignment.mode is CpuMode.NAMED:
            found = sets.named[assignment.pool] - now.exclusive
        elif assignment.request.wishes.opt_out:
            found = self.tree.machine.cpus - sets.isolated - union(sets.named.values()) - now.exclusive
        else:
            found = now.shared
        return found or now.shared or sets.reserved or self.tree.machine.cpus - now.exclusive

    def mems_of(self, assignment: CpuAssignment) -> tuple[int, ...]:
        """The NUMA nodes of its memory; nothing where that is left alone."""
        return tuple(sorted(share.node for share in assignment.memory))

    def below_limit(self) -> list[ContainerKey]:
        """The containers whose CPUs are fewer than their limit."""
        now = self.occupancy()
        return [key for key, each in self._assignments.items() if self._is_below_limit(each, now)]

    def explain(self, key: ContainerKey) -> list[str]:
        """Why a container has its CPUs, a sentence each; UserError where it is not known."""
        found = self._assignments.get(key)
        if found is None:
            raise UserError(
                f"no container {key[1]} of pod {key[0]} has CPUs here; 'colocate cpus' shows those that have"
            )
        now = self.occupancy()
        cpus = self.cpus_of(found, now)
        sentences = list(found.reasons)
        pools = union(self.tree.by_name[share.pool].cpus for share in found.parts)
        if found.parts and cpus != pools:
            sentences.append(
                f"Of these it runs on {cpus}; the others are reserved, isolated or another container's alone."
            )
        elif found.mode in (CpuMode.UNPOOLED, CpuMode.NAMED):
            sentences.append(f"These are CPUs {cpus}.")
        if self._is_below_limit(found, now):
            limit = (found.request.limit or 0) / 1000
            sentence = f"Its limit is {limit:g} CPUs, and it can run on {len(cpus)} only"
            wider = found.request.qos is QosClass.BURSTABLE and not found.short and cpus != now.shared
            more = "; burst=numa or burst=node gives it more" if wider and found.parts else ""
            sentences.append(f"{sentence}{more}.")
        if mems := self.mems_of(found):
            names = ", ".join(map(str, mems))
            sentences.append(f"Its memory is on NUMA node{'s' if len(mems) > 1 else ''} {names}.")
        return [*sentences, *(f"Note: {warning}" for warning in found.warnings)]

    def state(self) -> CpuState:
        """All that must be remembered."""
        handed = {pod: self._handed[pod] for pod in sorted(self._handed)}
        return CpuState(assignments=tuple(self._assignments.values()), handed=handed)

    def copy(self) -> "CpuAllocator":
        """One to try things on."""
        twin = object.__new__(CpuAllocator)
        twin.settings, twin.tree, twin.sets = self.settings, self.tree, self.sets
        twin._assignments = dict(self._assignments)
        twin._handed = dict(self._handed)
        twin._shown, twin._now = self._shown, self._now
        return twin

    @classmethod
    def restored(
        cls, topology: CpuTopology, settings: CpuSettings, state: CpuState
    ) -> tuple["CpuAllocator", tuple[CpuMove, ...]]:
        """An allocator with the assignments of a saved state, and those that had to move.

        What still fits stays as it is; what does not is placed again, as near as can be. No container is lost, and
        none is refused: it runs already.
        """
        allocator = cls(topology, settings)
        taken_up = Restoration(allocator.tree, allocator.sets, settings, state)
        allocator._assignments, allocator._handed = taken_up.assignments, taken_up.handed
        allocator._shown = allocator._all_sets()
        why = "What it had is no longer there, or no longer allowed to it."
        return allocator, tuple(
            CpuMove(
                key=key,
                before=before,
                after=allocator._shown[key],
                assignment=allocator._assignments[key],
                why=why,
            )
            for key, before in sorted(taken_up.moved.items())
        )

    def _known(
        self, request: CpuRequest, handed: CpuSet, *, kept: CpuSet = EMPTY, near: CpuSet = EMPTY
    ) -> Neighbourhood:
        companion: CpuSet | None = EMPTY
        if request.wishes.affinity:
            other = self._assignments.get((request.pod, request.wishes.affinity))
            companion = None if other is None or other.key == request.key else self.cpus_of(other)
        return Neighbourhood(kept=kept, handed=handed, near=near, companion=companion)

    def _use_handed(self, pod: PodUid, used: CpuSet) -> None:
        left = self._handed.get(pod, EMPTY) - used
        self._handed.pop(pod, None)
        if left:
            self._handed[pod] = left

    def _is_below_limit(self, each: CpuAssignment, now: Occupancy) -> bool:
        return each.request.limit is not None and len(self.cpus_of(each, now)) * 1000 < each.request.limit

    def _all_sets(self) -> dict[ContainerKey, CpuSet]:
        now = self.occupancy()
        sets: dict[ContainerKey, CpuSet] = {}
        # Containers that share the same pools have the same CPUs: there are many containers, and few pools.
        by_pools: dict[tuple[str, ...], CpuSet] = {}
        for key, each in self._assignments.items():
            if each.mode is not CpuMode.SHARED:
                sets[key] = self.cpus_of(each, now)
                continue
            pools = tuple([share.pool for share in each.parts])
            found = by_pools.get(pools)
            if found is None:
                found = by_pools[pools] = self.cpus_of(each, now)
            sets[key] = found
        return sets

    def _change(self, key: ContainerKey) -> CpuChange:
        """What is different since the last time."""
        self._now = None
        before, self._shown = self._shown, self._all_sets()
        updates = tuple(
            CpuUpdate(other, cpus)
            for other, cpus in sorted(self._shown.items())
            if other != key and before.get(other) != cpus
        )
        own = self._assignments.get(key)
        mems = self.mems_of(own) if own else ()
        return CpuChange(own, self._shown.get(key, EMPTY), mems, updates)


def _check(request: CpuRequest) -> None:
    if request.cpu < 0 or (request.limit is not None and request.limit < 0) or request.memory < 0:
        raise UserError(f"container {request.container} asks for a negative amount; ask for 0 CPUs or more")
