"""Decides which CPUs one container gets, in which way, and where its memory goes, with the reasons.

The order of questions: has it opted out, is it of the system, may it have CPUs of its own, has its namespace a pool,
does it ask for nothing; else it shares, by the ladder. The state of all others comes in and is not changed.
"""

from collections.abc import Collection, Iterable

import msgspec

from colocate.cpus.assignment import (
    CpuAssignment,
    CpuMode,
    CpuRefused,
    CpuRequest,
    MemoryShare,
    PoolShare,
)
from colocate.cpus.exclusive import Taste, find_exclusive, grow_exclusive, spread_of
from colocate.cpus.explanation import burst_reason, cpus_text, exclusive_reasons, shared_reasons
from colocate.cpus.occupancy import Occupancy
from colocate.cpus.settings import CpuSettings
from colocate.cpus.shared import PoolRung, SharedChoice, choose_ccx, choose_shared, widened
from colocate.cpus.wishes import granted
from colocate.model.cpuset import EMPTY, CpuSet
from colocate.model.pod import QosClass


class Neighbourhood(msgspec.Struct, frozen=True, kw_only=True):
    """What a container has or knows already when it is placed."""

    kept: CpuSet = EMPTY
    """CPUs that are its own already, before a resize."""
    handed: CpuSet = EMPTY
    """CPUs that init containers of its pod have left it: free for this container alone."""
    near: CpuSet = EMPTY
    """Where it was, if it shares."""
    companion: CpuSet | None = None
    """The CPUs of the container that it wants to be beside; None where that one is not there."""


def place(
    request: CpuRequest,
    occupancy: Occupancy,
    settings: CpuSettings,
    known: Neighbourhood = Neighbourhood(),  # noqa: B008 - frozen
) -> CpuAssignment:
    """CpuRefused where a strict wish cannot be had."""
    return _Placement(request, occupancy, settings, known).assignment()


class _Placement:
    """One decision."""

    def __init__(
        self, request: CpuRequest, occupancy: Occupancy, settings: CpuSettings, known: Neighbourhood
    ) -> None:
        self._request = request
        self._occupancy = occupancy
        self._tree = occupancy.tree
        self._settings = settings
        self._known = known
        self._wishes, refused = granted(request.wishes, request.namespace, settings)
        self._warnings = [*request.warnings, *refused]
        self._taste = self._make_taste()

    def assignment(self) -> CpuAssignment:
        request, sets = self._request, self._occupancy.sets
        named = self._settings.pool_of(request.namespace)
        leaves = self._settings.may_leave(request.namespace)
        if self._wishes.opt_out and (leaves or not named):
            return self._made(CpuMode.UNPOOLED, reasons=("It has opted out: it runs on all shared CPUs.",))
        if self._wishes.opt_out:
            self._warnings.append(
                f"Pods of namespace {request.namespace} may not leave its pool {named}; the wish is left out."
            )
        reserved = request.namespace in self._settings.reserved_namespaces and bool(sets.reserved)
        if reserved and self._occupancy.special_free("", sets.reserved) >= request.cpu:
            reason = f"Pods of namespace {request.namespace} run on the reserved CPUs, {sets.reserved}."
            return self._made(CpuMode.RESERVED, reasons=(reason,))
        if reserved:
            self._warnings.append(f"The reserved CPUs, {sets.reserved}, are full; it runs with the others.")
        exclusive = self._exclusive(named) if self._wants_exclusive() else None
        if exclusive is not None:
            return exclusive
        if named:
            return self._in_named_pool(named)
        if request.cpu == 0:
            return self._made(
                CpuMode.UNPOOLED, reasons=("It asks for no CPU, so it runs on all shared CPUs.",)
            )
        return self._shared()

    def _make_taste(self) -> Taste:
        request, known = self._request, self._known
        beside = frozenset(request.beside) & frozenset(
            node.id for node in self._tree.topology.nodes if node.cpus
        )
        if request.beside and not beside:
            self._warnings.append(
                "Its devices are on no NUMA node with CPUs of this machine; that is left out."
            )
        companion = known.companion or EMPTY
        if self._wishes.affinity and known.companion is None:
            self._warnings.append(
                f"There is no container {self._wishes.affinity} in its pod yet to be beside."
            )
        if companion and not beside:
            beside = frozenset(cell.node for cell in self._tree.cells if cell.mask & companion.mask)
        avoided: frozenset[int] = frozenset()
        if request.memory and self._settings.pin_memory:
            nodes = [node.id for node in self._tree.topology.nodes if node.cpus]
            avoided = frozenset(
                node for node in nodes if not self._occupancy.memory_fits([node], request.memory)
            )
        spread = self._wishes.spread or (self._settings.spread and not self._wishes.pack)
        return Taste(beside=beside, near=known.near | companion, avoided=avoided, spread=spread)

    def _wants_exclusive(self) -> bool:
        request, wishes = self._request, self._wishes
        wished = wishes.exclusive or wishes.isolated
        eligible = request.qos is QosClass.GUARANTEED and request.is_whole
        if wished and not eligible:
            why = (
                f"it asks for {cpus_text(request.cpu)}, which is no whole number"
                if request.qos is QosClass.GUARANTEED
                else "its pod is not guaranteed"
            )
            self._warnings.append(f"It wishes for CPUs of its own, and shares: {why}.")
        return eligible and (wished or (self._settings.exclusive_guaranteed and not wishes.shared))

    def _exclusive(self, named: str) -> CpuAssignment | None:
        count = self._request.cpu // 1000
        sets, occupancy = self._occupancy.sets, self._occupancy
        if self._wishes.isolated:
            free = sets.isolated - occupancy.exclusive
            # Where all CPUs are isolated, one of them stays for those that share.
            limits = {} if sets.ordinary or sets.reserved else {self._tree.machine.index: len(free) - 1}
            found = self._take(count, free, limits, sets.isolated)
            if found is not None:
                return self._exclusively(found, named="")
            self._warnings.append(
                f"It wishes for {count} isolated CPUs, and {len(free)} are free; it gets others."
            )
        if named:
            own = sets.named[named]
            free = own - occupancy.exclusive
            most = min(occupancy.special_free(named, own) // 1000, len(free) - 1)
            found = self._take(count, free, {self._tree.machine.index: max(0, most)}, own)
        else:
            found = self._take(count, occupancy.shared, occupancy.limits(), sets.ordinary)
        if found is not None:
            return self._exclusively(found, named)
        if self._wishes.strict:
            raise CpuRefused(
                f"{self._named()} wants {count} CPUs of its own on one CCX, and no CCX has them free; "
                "wait for room, or take out the wish strict"
            )
        self._warnings.append(f"{count} CPUs of its own are not free; it shares until it starts again.")
        return None

    def _take(self, count: int, free: CpuSet, limits: dict[int, int], domain: CpuSet) -> CpuSet | None:
        """CPUs that are its own already as far as they go, and more beside them."""
        kept = self._known.kept & domain
        kept = self._with_handed(kept, self._known.handed & domain, count)
        if not kept:
            found = find_exclusive(self._tree, free, count, limits, self._taste)
        elif len(kept) >= count:
            found = find_exclusive(self._tree, kept, count, None, self._taste)
        else:
            found = grow_exclusive(self._tree, kept, free, count - len(kept), limits, self._taste)
        if self._wishes.strict and (found is None or spread_of(self._tree, found)[2] > 1):
            # Neither what it had nor its devices may cost the CCX.
            found = find_exclusive(self._tree, free, count, limits)
            return found if found is not None and spread_of(self._tree, found)[2] == 1 else None
        return found

    def _with_handed(self, kept: CpuSet, handed: CpuSet, count: int) -> CpuSet:
        """Prefer what it has to what it is handed: it runs there already."""
        more = min(count - len(kept), len(handed))
        if not kept or more <= 0:
            return kept or handed
        return grow_exclusive(self._tree, kept, handed, more, None, self._taste) or kept

    def _exclusively(self, cpus: CpuSet, named: str) -> CpuAssignment:
        nodes = {cell.node for cell in self._tree.cells if cell.mask & cpus.mask}
        memory = self._memory(nodes)
        had = self._known.kept | self._known.handed
        reasons = exclusive_reasons(self._tree, cpus, self._taste, free_choice=not had)
        if kept := self._known.kept & cpus:
            reasons = (*reasons, f"It keeps CPUs that it had, {kept}.")
        if handed := self._known.handed & cpus:
            reasons = (*reasons, f"It has {handed} from an init container of its pod.")
        if named:
            reasons = (*reasons, f"They are of the pool {named}, which its namespace has.")
        return self._made(CpuMode.EXCLUSIVE, cpus=cpus, pool=named, memory=memory, rung="", reasons=reasons)

    def _in_named_pool(self, name: str) -> CpuAssignment:
        cpus = self._occupancy.sets.named[name]
        free = max(0, self._occupancy.special_free(name, cpus))
        short = max(0, self._request.cpu - free)
        if short:
            self._warnings.append(
                f"The pool {name} has {cpus_text(free)} free, {cpus_text(short)} fewer than it asks for."
            )
        nodes = {cell.node for cell in self._tree.cells if cell.mask & cpus.mask}
        reason = f"Its namespace {self._request.namespace} has the pool {name}: CPUs {cpus}."
        return self._made(
            CpuMode.NAMED, pool=name, short=short, memory=self._memory(nodes), reasons=(reason,)
        )

    def _shared(self) -> CpuAssignment:
        request, occupancy = self._request, self._occupancy

        def fits(nodes: Iterable[int]) -> bool:
            if not request.memory or not self._settings.pin_memory:
                return True
            return occupancy.memory_fits(nodes, request.memory)

        if self._wishes.strict:
            strict = choose_ccx(occupancy, request.cpu, self._taste, fits)
            if strict is None:
                raise CpuRefused(
                    f"{self._named()} wants {cpus_text(request.cpu)} on one CCX, and no CCX has them free; "
                    "wait for room, or take out the wish strict"
                )
            return self._on(strict, ())
        choice = choose_shared(occupancy, request.cpu, self._taste, fits)
        if choice.short:
            self._warnings.append(
                f"Nothing had room: it is {cpus_text(choice.short)} short of what it asks for."
            )
        burst = self._wishes.burst or self._settings.burst
        if request.qos is QosClass.BURSTABLE and not choice.short:
            wide = widened(occupancy, choice, request.limit, burst)
            if wide is not choice:
                return self._on(
                    wide,
                    (
                        *shared_reasons(self._tree, request, choice, self._taste),
                        burst_reason(request, wide, burst),
                    ),
                )
        return self._on(choice, ())

    def _on(self, choice: SharedChoice, reasons: tuple[str, ...]) -> CpuAssignment:
        everywhere = choice.rung is PoolRung.MACHINE
        return self._made(
            CpuMode.SHARED,
            parts=tuple(PoolShare(pool.name, cpu, pool.cpus) for pool, cpu in choice.parts),
            rung=choice.rung,
            short=choice.short,
            memory=() if everywhere else self._memory(choice.nodes),
            reasons=reasons or shared_reasons(self._tree, self._request, choice, self._taste),
        )

    def _memory(self, nodes: Collection[int]) -> tuple[MemoryShare, ...]:
        if not self._settings.pin_memory:
            return ()
        shares, added = self._occupancy.memory_shares(nodes, self._request.memory)
        if added and len(shares) > len(nodes):
            self._warnings.append(
                "The NUMA nodes of its CPUs have no room for its memory; the nearest others are added."
            )
        elif added:
            self._warnings.append("No NUMA nodes have room for its memory; it stays with its CPUs.")
        return shares

    def _named(self) -> str:
        return f"Container {self._request.container} of namespace {self._request.namespace}"

    def _made(self, mode: CpuMode, *, reasons: tuple[str, ...], **fields: object) -> CpuAssignment:
        made = CpuAssignment(
            request=self._request, mode=mode, reasons=reasons, warnings=tuple(self._warnings)
        )
        return msgspec.structs.replace(made, **fields)
