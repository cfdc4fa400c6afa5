"""The far rung by the kernel's own demotion: whether this machine has it, where memory would go, and its switch.

Demotion needs no right over other processes. But its switch is for the whole machine: with it on, the kernel may also
demote cold memory of online pods. So it is on only where the operator allows it, and only while a pod is demoted.
"""

from collections.abc import Collection, Sequence

import msgspec

from colocate.memory.actions import Demote, PodAction, SwitchDemotion
from colocate.memory.ladder.state import Ladder
from colocate.memory.settings import MemorySettings
from colocate.model.figures import some
from colocate.model.memory import Demotion, MemoryControls, NumaMemory


def why_no_demotion(controls: MemoryControls, far: Collection[int], settings: MemorySettings) -> str:
    """Why the far rung does not use demotion here; empty where it does."""
    demotion = controls.demotion
    if controls.cgroup == 1 or not controls.reclaim:
        return f"cgroup v{controls.cgroup} has no memory.reclaim here"
    if demotion.missing:
        return demotion.missing
    near = [tier for id, tier in demotion.tiers.items() if id not in far]
    if not near or not any(demotion.tiers.get(id, 0) > max(near) for id in far):
        return "no far NUMA node is in a lower memory tier than all others"
    if astray := [id for id, tier in demotion.tiers.items() if tier > min(near) and id not in far]:
        names = some([str(id) for id in astray])
        return f"the kernel would also demote to NUMA {names}, which memory.farNodes does not list"
    return "" if settings.demotion else "memory.demotion does not allow it"


def targets(source: int, demotion: Demotion, nodes: Sequence[NumaMemory]) -> list[int]:
    """The NUMA nodes that the kernel demotes to from `source`: the nearest of the next lower tier."""
    lower = [tier for tier in demotion.tiers.values() if tier > demotion.tiers.get(source, tier)]
    there = {
        node.id: node.distances.get(source, 0)
        for node in nodes
        if lower and demotion.tiers.get(node.id) == min(lower)
    }
    return [id for id, distance in there.items() if distance == min(there.values())]


def way_back(controls: MemoryControls) -> str:
    """How demoted memory comes back."""
    if controls.migrate:
        return "pages are moved back"
    if controls.demotion.promotes:
        return "the kernel brings back pages that are used (kernel.numa_balancing is 2)"
    return "none until the pod frees them; set kernel.numa_balancing to 2, or grant the right to move pages"


def switch_demotion(
    ladder: Ladder, actions: Sequence[PodAction], demotion: Demotion
) -> tuple[Ladder, tuple[SwitchDemotion, ...]]:
    """Switch demotion on or off before this turn's actions; the ladder remembers that it was off."""
    if any(isinstance(action, Demote) for action in actions):
        if demotion.enabled:
            return ladder, ()
        reason = "The ladder demotes memory of colocated pods to a lower memory tier."
        return _ours(ladder, True), (SwitchDemotion(on=True, reason=reason),)
    if not ladder.demotion_is_ours or not demotion.enabled:
        return _ours(ladder, False), ()
    reason = (
        "The ladder no longer demotes memory of colocated pods, so demotion is off again, as it was before."
    )
    return ladder, (SwitchDemotion(on=False, reason=reason),)


def _ours(ladder: Ladder, so: bool) -> Ladder:
    return ladder if ladder.demotion_is_ours is so else msgspec.structs.replace(ladder, demotion_is_ours=so)
