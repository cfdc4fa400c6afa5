"""The way back of each rung: to whom memory is given back, as far as it is there again.

Who would give first gets back last. A pod is let go when there is room for all that it may then grow to; until then
its memory.high follows the room there is. What was done is remembered until its undoing is reported as done.
"""

from collections.abc import Callable, Mapping

import msgspec

from colocate.memory.actions import Ease, PodAction, ReturnPages, Unthrottle
from colocate.memory.colocated import Colocated
from colocate.memory.demotion import way_back
from colocate.memory.figures import amount
from colocate.memory.ladder_state import Ladder, Throttled, drop, put
from colocate.memory.limits import whole_pages
from colocate.memory.rung import Rung
from colocate.memory.situation import Situation
from colocate.memory.step import WORTH_IT, Step
from colocate.model.memory import Bytes


def nothing(ladder: Ladder, situation: Situation) -> Step:
    """What cannot be undone, or undoes itself."""
    return Step(ladder)


def pages_back(ladder: Ladder, situation: Situation) -> Step:
    """Move pages back to where they came from; where that right is missing, say how they come back."""
    present = {node.id for node in situation.facts.node.numa}
    off = situation.facts.off
    room = situation.slack - (0 if off else situation.settings.block_size)
    actions: list[PodAction] = []
    notes: list[str] = []
    for each in reversed(situation.pods):
        moved = ladder.moved.get(each.uid)
        if moved is None:
            continue
        if each.reading is None or each.reading.numa is None:
            if _has_waited_for_figures(ladder, situation):
                ladder = msgspec.structs.replace(ladder, moved=drop(ladder.moved, each.uid))
                notes.append(
                    f"The agent cannot read on which nodes the memory of {each.ref} is: it stays far."
                )
            continue
        away = each.far - moved.before
        from_far = tuple(id for id in moved.targets if id in present)
        if away < WORTH_IT or not from_far:
            ladder = msgspec.structs.replace(ladder, moved=drop(ladder.moved, each.uid))
            continue
        if not situation.facts.controls.migrate:
            ladder = msgspec.structs.replace(ladder, moved=drop(ladder.moved, each.uid))
            back = way_back(situation.facts.controls)
            notes.append(f"{amount(away)} of {each.ref} is on far nodes. The way back: {back}.")
            continue
        size = min(away, room)
        if size < WORTH_IT:
            notes.append(
                f"{amount(away)} of {each.ref} stays on far nodes: near nodes have no room for it yet."
            )
            continue
        to_near = tuple(id for id in moved.sources if id in present)
        reason = f"{amount(situation.slack)} is unused again."
        actions.append(
            ReturnPages(pod=each.ref, sources=from_far, targets=to_near, bytes=size, reason=reason)
        )
        room -= size
    # Switched off, pods are not kept bound because their pages find no room: those follow later.
    return Step(ladder, tuple(actions), tuple(notes), busy=bool(actions if off else ladder.moved))


def _has_waited_for_figures(ladder: Ladder, situation: Situation) -> bool:
    """Far pages are slower, and no harm: for want of figures nobody is kept bound longer than the rung's own time."""
    calm_since = situation.now if ladder.calm_since is None else ladder.calm_since
    wait = situation.settings.cool_down + situation.here(Rung.FAR).deadline
    return situation.now - calm_since >= wait


def unthrottle(ladder: Ladder, situation: Situation) -> Step:
    """Give memory.high back, to each pod in turn as far as there is room."""
    room, keep = situation.slack, situation.settings.block_size
    actions: list[PodAction] = []
    notes: list[str] = []
    for each in reversed(situation.pods):
        done = ladder.throttled.get(each.uid)
        if done is None:
            continue
        growth = _growth(each, situation)
        if growth <= room or situation.facts.off:
            actions.append(Unthrottle(pod=each.ref, to=done.before, reason=_why(each, situation)))
            room -= growth
            continue
        notes.append(f"{each.ref} stays throttled for now: it may grow by {amount(growth)}.")
        eased = _eased(each, done, max(0, room - keep))
        if eased is not None:
            actions.append(Ease(pod=each.ref, high=eased, before=done.before, reason=_why(each, situation)))
            to = Throttled(done.before, eased)
            ladder = msgspec.structs.replace(ladder, throttled=put(ladder.throttled, each.uid, to))
        room = 0
    return Step(ladder, tuple(actions), tuple(notes), busy=bool(ladder.throttled))


def _eased(each: Colocated, done: Throttled, room: Bytes) -> Bytes | None:
    """A memory.high for what the pod uses and this room; None where it is not worth it."""
    if each.reading is None or each.reading.high is None:
        return None
    high = whole_pages(each.reading.usage + room)
    if done.before is not None:
        high = min(high, done.before)
    return high if high - each.reading.high >= WORTH_IT else None


def _growth(each: Colocated, situation: Situation) -> Bytes:
    return max(0, len(each.ids) * situation.settings.block_size - each.used)


def _why(each: Colocated, situation: Situation) -> str:
    if situation.facts.off:
        return "Memory colocation is switched off on this node."
    return (
        f"{amount(situation.slack)} is unused again; {each.ref} may grow by "
        f"{amount(_growth(each, situation))}."
    )


UNDO: Mapping[Rung, Callable[[Ladder, Situation], Step]] = {
    Rung.WITHDRAW: nothing,
    Rung.RECLAIM: nothing,
    Rung.THROTTLE: unthrottle,
    Rung.FAR: pages_back,
    Rung.EVICT: nothing,
    Rung.RECREATE: nothing,
}
