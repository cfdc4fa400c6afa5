"""What the ladder looks at in one turn."""

import msgspec

from colocate.memory.colocated import Colocated
from colocate.memory.facts import Facts
from colocate.memory.rung import RUNGS, Rung, height
from colocate.memory.rungs import RungHere
from colocate.memory.settings import MemorySettings
from colocate.model.memory import Bytes, NumaMemory, PodMemory


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a turn, reckoned up."""

    facts: Facts
    settings: MemorySettings
    now: float
    pods: tuple[Colocated, ...]
    """In the order in which they give."""
    rungs: tuple[RungHere, ...]
    far_ids: frozenset[int]
    debt: Bytes
    due: Bytes
    slack: Bytes
    margin: Bytes

    @property
    def presses(self) -> bool:
        """Whether online work needs more than it may take of the margin."""
        return self.due > self.margin * self.settings.tolerance

    @property
    def hurries(self) -> bool:
        """Whether there is no time for deadlines."""
        return self.due > self.margin * self.settings.hurry

    @property
    def far(self) -> list[NumaMemory]:
        """Far nodes, the nearest first."""
        near = [each.id for each in self.facts.node.numa if each.id not in self.far_ids]
        return sorted(
            (each for each in self.facts.node.numa if each.id in self.far_ids),
            key=lambda each: (sum(each.distances.get(id, 0) for id in near), each.id),
        )

    @property
    def readable(self) -> list[tuple[Colocated, PodMemory]]:
        """Pods from which something can be taken by their control group, and which are to stay."""
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
