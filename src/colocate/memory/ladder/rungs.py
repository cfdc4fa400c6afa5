"""Which rungs this machine has, and why it lacks the others; the input (`Situation`) and the result of a turn on the
ladder. `colocate doctor` prints the rungs.
"""

import msgspec

from colocate.memory.actions import PodAction
from colocate.memory.colocated import Colocated
from colocate.memory.facts import MemoryFacts
from colocate.memory.ladder.demotion import way_back, why_no_demotion
from colocate.memory.ladder.state import Ladder
from colocate.memory.settings import RUNGS, MemorySettings, Rung, height
from colocate.model.memory import Bytes, MemoryControls, NumaMemory, PodMemory


class RungHere(msgspec.Struct, frozen=True, kw_only=True):
    """One rung on one machine."""

    rung: Rung
    how: str
    way_back: str
    deadline: float
    missing: str = ""
    """Why it cannot be used here; empty where it can."""

    @property
    def is_here(self) -> bool:
        return not self.missing


def rungs_here(
    controls: MemoryControls, far: frozenset[int], settings: MemorySettings, *, stores: bool = True
) -> tuple[RungHere, ...]:
    """All rungs, lowest first. Without `stores`, rungs that need the stored state to be undone are missing."""
    return tuple(
        RungHere(
            rung=rung,
            how=_how(rung, controls, far, settings),
            way_back=way_back(controls) if rung is Rung.FAR else _WAY_BACK[rung],
            deadline=settings.deadlines.of(rung),
            missing="the configuration leaves it out"
            if rung in settings.without
            else _missing(rung, controls, far, settings) or ("" if stores else _UNRECORDED.get(rung, "")),
        )
        for rung in Rung
    )


def _how(rung: Rung, controls: MemoryControls, far: frozenset[int], settings: MemorySettings) -> str:
    if rung is Rung.FAR and not why_no_demotion(controls, far, settings):
        return "the kernel demotes pages to far NUMA nodes, by memory.reclaim in steps, while they have room"
    if rung is Rung.RECLAIM and controls.cgroup == 1:
        return "the pod's limit is lowered below what it uses and restored at once, in steps"
    return _HOW[rung]


_HOW = {
    Rung.WITHDRAW: "free blocks become Unhealthy, at once",
    Rung.RECLAIM: "memory.reclaim, while the pod's memory pressure is low enough",
    Rung.THROTTLE: "memory.high at what the pod uses, less what is due",
    Rung.FAR: "pages are moved to far NUMA nodes, process by process, while they have room",
    Rung.EVICT: "eviction through the API, which respects disruption budgets",
    Rung.RECREATE: "a bare pod that allows it is created again with an affinity against this node",
}
_WAY_BACK = {
    Rung.WITHDRAW: "blocks become Healthy again after the cool-down",
    Rung.RECLAIM: "not needed: no limit stays lowered",
    Rung.THROTTLE: "memory.high is restored",
    Rung.EVICT: "none; pods that have not left yet stay",
    Rung.RECREATE: "none; pods that have not left yet stay",
}

_UNRECORDED = {
    Rung.FAR: "the state cannot be stored, and without it the pages would never come back",
    Rung.EVICT: "the state cannot be stored, and an eviction cannot be undone",
    Rung.RECREATE: "the state cannot be stored, and a pod that is not recorded would be lost",
}
"""Why a rung is missing while the state cannot be stored. Reclaiming leaves nothing to undo, and a memory.high is
found again by its mark."""


def _missing(rung: Rung, controls: MemoryControls, far: frozenset[int], settings: MemorySettings) -> str:
    if rung in (Rung.RECLAIM, Rung.THROTTLE) and not controls.writable:
        return "the control groups cannot be written"
    if rung is Rung.RECLAIM and controls.cgroup == 2 and not controls.reclaim:
        return "this kernel has no memory.reclaim (Linux 5.19 or later has it); throttling reclaims instead"
    if rung is Rung.THROTTLE and controls.cgroup == 1:
        return "cgroup v1 has no memory.high"
    if rung is Rung.THROTTLE and not controls.high:
        return "the pods' control groups have no memory.high"
    if rung is Rung.FAR and not far:
        return "there is no far NUMA node: every node has CPUs, and none is configured as far"
    if rung is Rung.FAR and not controls.migrate and (why := why_no_demotion(controls, far, settings)):
        return (
            "the agent may not move pages of other processes (`colocate doctor memory` names the missing right), "
            f"and the kernel does not demote them: {why}"
        )
    return ""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn on the ladder is decided from."""

    facts: MemoryFacts
    settings: MemorySettings
    now: float
    pods: tuple[Colocated, ...]
    """In giving order."""
    rungs: tuple[RungHere, ...]
    far_ids: frozenset[int]
    debt: Bytes
    due: Bytes
    slack: Bytes
    margin: Bytes

    @property
    def presses(self) -> bool:
        """Whether online work needs more than the tolerance allows it to take of the margin."""
        return self.due > self.margin * self.settings.tolerance

    @property
    def hurries(self) -> bool:
        """Whether rungs get no time beyond one turn."""
        return self.due > self.margin * self.settings.hurry

    @property
    def far(self) -> list[NumaMemory]:
        """The far NUMA nodes, the nearest first."""
        near = [each.id for each in self.facts.node.numa if each.id not in self.far_ids]
        return sorted(
            (each for each in self.facts.node.numa if each.id in self.far_ids),
            key=lambda each: (sum(each.distances.get(id, 0) for id in near), each.id),
        )

    @property
    def readable(self) -> list[tuple[Colocated, PodMemory]]:
        """Pods that stay and can give memory by their control group, with their readings."""
        return [
            (each, each.reading)
            for each in self.pods
            if each.reading is not None and each.gives and not each.pod.terminating
        ]

    def here(self, rung: Rung) -> RungHere:
        return self.rungs[RUNGS.index(rung)]

    def above(self, rung: Rung) -> Rung | None:
        """The next rung up that this machine has."""
        return next((each.rung for each in self.rungs[height(rung) + 1 :] if each.is_here), None)


WORTH_IT: Bytes = 1 << 20
"""The least that is worth taking, moving or waiting for."""


class LadderStep(msgspec.Struct, frozen=True):
    """The result of one rung: the next ladder, the actions, and notes about what is not done."""

    ladder: Ladder
    actions: tuple[PodAction, ...] = ()
    notes: tuple[str, ...] = ()
    busy: bool = False
    """Whether the rung may still free memory."""


class LadderTurn(msgspec.Struct, frozen=True):
    """The result of one turn."""

    ladder: Ladder
    actions: tuple[PodAction, ...] = ()
    notes: tuple[str, ...] = ()
    stood_on: tuple[Rung, ...] = ()
    """The rungs that this turn tried, in order."""
