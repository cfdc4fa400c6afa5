"""Pods that have to leave: by eviction, or, for bare pods that allow it, by being created again elsewhere.

As many pods are evicted, in giving order, as free what is due. A pod that a disruption budget protects is skipped and
tried again later; so is one whose eviction the API refuses, after ever longer pauses. While the API is away, the
chosen pods wait. Pods of a namespace in which the agent may not evict are not counted on.
"""

import msgspec

from colocate.memory.actions import Evict, PodAction, Recreate
from colocate.memory.colocated import Colocated
from colocate.memory.ladder.rungs import WORTH_IT, LadderStep, Situation
from colocate.memory.ladder.state import Ladder, LeavingPod, drop, put
from colocate.memory.settings import Rung, height
from colocate.model.figures import amount
from colocate.model.memory import Bytes


def on_their_way(ladder: Ladder, situation: Situation) -> Bytes:
    """What leaving pods will free; one that does not leave in time no longer counts."""
    return sum(each.frees for each in situation.pods if _leaves(ladder, each, situation))


def send_away(ladder: Ladder, situation: Situation) -> LadderStep:
    """Request evictions, as far as this rung may."""
    if not situation.presses:
        return LadderStep(ladder, busy=bool(ladder.leaving))
    remaining = situation.due - on_their_way(ladder, situation)
    actions: list[PodAction] = []
    notes: list[str] = []
    for each in situation.pods:
        if remaining <= 0:
            break
        known = ladder.leaving.get(each.uid)
        by = _way_out(each, ladder, situation)
        if (
            not each.gives
            or (known and known.accepted)
            or each.near < WORTH_IT
            or height(by) > height(ladder.rung)
        ):
            continue
        if not situation.here(by).is_here:
            continue
        if obstacle := _obstacle(each, situation):
            notes.append(f"{each.ref} cannot be evicted: {obstacle}.")
            # It was chosen before the obstacle was known; no other pod waits for it.
            ladder = msgspec.structs.replace(ladder, leaving=drop(ladder.leaving, each.uid))
            continue
        leaving = known or LeavingPod(by, situation.now)
        if not situation.facts.api:
            leaving = msgspec.structs.replace(leaving, waits_for="the API server does not answer")
            notes.append(f"{each.ref} has to leave ({by}) as soon as the API server answers.")
        elif leaving.again_at > situation.now:
            notes.append(f"{each.ref} stays for now: {leaving.waits_for}.")
            continue
        else:
            leaving = msgspec.structs.replace(leaving, waits_for="")
            actions.append(_action(by, each, situation))
        remaining -= each.frees
        ladder = msgspec.structs.replace(ladder, leaving=put(ladder.leaving, each.uid, leaving))
    # A refused eviction does not keep the rung busy.
    busy = bool(actions) or any(not entry.refusals for entry in ladder.leaving.values())
    return LadderStep(ladder, tuple(actions), tuple(notes), busy=busy)


def _leaves(ladder: Ladder, each: Colocated, situation: Situation) -> bool:
    entry = ladder.leaving.get(each.uid)
    return (
        entry is not None and entry.accepted and situation.now - entry.since < situation.settings.leave_time
    )


def _way_out(each: Colocated, ladder: Ladder, situation: Situation) -> Rung:
    """How a pod leaves. One that could not be created again is evicted like any other."""
    moves = (
        each.pod.may_move
        and not each.pod.controller
        and each.entitled
        and situation.here(Rung.RECREATE).is_here
        and each.pod.namespace not in situation.facts.without_creation
    )
    return Rung.RECREATE if moves and not ladder.has_given_up(Rung.RECREATE, each.uid) else Rung.EVICT


def _obstacle(each: Colocated, situation: Situation) -> str:
    if not each.pod.name:
        return "the agent does not know its name yet"
    if each.pod.namespace in situation.facts.without_eviction:
        return f"this agent may not evict pods of namespace {each.pod.namespace}"
    return (
        "it is a static pod, which ends only when its file on the node is removed" if each.pod.static else ""
    )


def _action(by: Rung, each: Colocated, situation: Situation) -> PodAction:
    reason = (
        f"Online work needs {amount(situation.due)}, which no lower rung freed; {each.ref} (priority "
        f"{each.pod.priority}) gives back {amount(each.near)}"
        f"{', going by its blocks, because its use cannot be read' if each.reading is None else ''}"
        f"{f' of blocks, and {amount(each.besides)} that it requested besides' if each.besides else ''}"
    )
    if by is Rung.RECREATE:
        reason += ", and may be created again on another node."
        return Recreate(pod=each.ref, avoid=situation.facts.node_name, reason=reason)
    lost = "" if each.pod.controller else "; nothing will create it again"
    return Evict(pod=each.ref, reason=f"{reason}{lost}.")
