"""The way down: what each rung undoes, for which pods and when, as far as memory is free again.

The pod that gives first gets back last. A pod is released when there is room for all that it may grow to; until then
its memory.high rises with the free memory. The ladder remembers an action until its undoing is reported as done.
"""

from collections.abc import Callable, Mapping

import msgspec

from colocate.memory.actions import Ease, PodAction, ReturnPages, Unthrottle
from colocate.memory.colocated import Colocated
from colocate.memory.ladder.demotion import way_back
from colocate.memory.ladder.rungs import WORTH_IT, LadderStep, LadderTurn, Situation
from colocate.memory.ladder.state import Ladder, Throttled, drop, put
from colocate.memory.limits import whole_pages
from colocate.memory.settings import RUNGS, Rung, height
from colocate.model.figures import amount
from colocate.model.memory import Bytes


def nothing(ladder: Ladder, situation: Situation) -> LadderStep:
    """Undo nothing: the rung cannot be undone, or leaves nothing to undo."""
    return LadderStep(ladder)


def pages_back(ladder: Ladder, situation: Situation) -> LadderStep:
    """Move pages back to where they came from; without the right to, say how they come back."""
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
    # When colocation is switched off, pods are released even if their pages find no room yet.
    return LadderStep(ladder, tuple(actions), tuple(notes), busy=bool(actions if off else ladder.moved))


def _has_waited_for_figures(ladder: Ladder, situation: Situation) -> bool:
    """Far pages are slow but harmless: missing figures keep a pod throttled no longer than the rung's deadline."""
    calm_since = situation.now if ladder.calm_since is None else ladder.calm_since
    wait = situation.settings.cool_down + situation.here(Rung.FAR).deadline
    return situation.now - calm_since >= wait


def unthrottle(ladder: Ladder, situation: Situation) -> LadderStep:
    """Restore memory.high, pod by pod, as far as there is room."""
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
    return LadderStep(ladder, tuple(actions), tuple(notes), busy=bool(ladder.throttled))


def _eased(each: Colocated, done: Throttled, room: Bytes) -> Bytes | None:
    """memory.high for what the pod uses plus `room`; None where that changes too little."""
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


UNDO: Mapping[Rung, Callable[[Ladder, Situation], LadderStep]] = {
    Rung.WITHDRAW: nothing,
    Rung.RECLAIM: nothing,
    Rung.THROTTLE: unthrottle,
    Rung.FAR: pages_back,
    Rung.EVICT: nothing,
    Rung.RECREATE: nothing,
}


def down(ladder: Ladder, situation: Situation) -> LadderTurn:
    """Undo rung after rung, as far as time and free memory allow."""
    ladder, notes = _call_off(ladder)
    ladder = msgspec.structs.replace(ladder, since=situation.now)
    if height(ladder.rung) < height(left := ladder.highest_left):
        # Pages that found no room when colocation was switched off, or actions missing from a stored state.
        ladder = msgspec.structs.replace(ladder, rung=left)
    if ladder.rung is None:
        return LadderTurn(msgspec.structs.replace(ladder, calm_since=None, undid_at=None), notes=notes)
    if (
        situation.slack < situation.settings.block_size
        and ladder.has_done_something
        and not situation.facts.off
    ):
        return LadderTurn(msgspec.structs.replace(ladder, calm_since=None), notes=notes)
    calm_since = situation.now if ladder.calm_since is None else ladder.calm_since
    ladder = msgspec.structs.replace(ladder, calm_since=calm_since)
    while not _waits(ladder, situation):
        rung = ladder.rung
        if rung is None or (rung is Rung.WITHDRAW and situation.debt and not situation.facts.off):
            break
        step = UNDO[rung](ladder, situation)
        ladder, notes = step.ladder, (*notes, *step.notes)
        if step.actions:
            ladder = msgspec.structs.replace(ladder, undid_at=situation.now)
        if step.busy:
            return LadderTurn(ladder, step.actions, notes)
        lower = height(rung) - 1
        ladder = msgspec.structs.replace(ladder, rung=RUNGS[lower] if lower >= 0 else None)
    if ladder.rung is None:
        ladder = Ladder(leaving=ladder.leaving, moved=ladder.moved, demotion_is_ours=ladder.demotion_is_ours)
    return LadderTurn(ladder, notes=notes)


def _waits(ladder: Ladder, situation: Situation) -> bool:
    """Whether it is too early for the next step down."""
    if situation.facts.off or ladder.calm_since is None:
        return False
    paused = ladder.undid_at is not None and situation.now - ladder.undid_at < situation.settings.undo_pause
    return paused or situation.now - ladder.calm_since < situation.settings.cool_down


def _call_off(ladder: Ladder) -> tuple[Ladder, tuple[str, ...]]:
    """Cancel evictions that were not accepted; they are no longer needed."""
    called_off = [uid for uid, entry in ladder.leaving.items() if not entry.accepted]
    leaving = {uid: entry for uid, entry in ladder.leaving.items() if entry.accepted}
    notes = tuple(f"Pod {uid} may stay: memory has returned." for uid in called_off)
    return msgspec.structs.replace(ladder, leaving=leaving), notes
