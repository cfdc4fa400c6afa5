"""The ladder: up, rung by rung, while online work needs memory; down again when there is some.

A rung is left for the next when its deadline is over, when it has nothing left to try, or, where much of the margin
is eaten, after one turn. Nobody new is touched while what is due is within the tolerance, and on the way back every
rung is undone before the one below it.
"""

import msgspec

from colocate.memory.actions import PodAction
from colocate.memory.figures import amount
from colocate.memory.giving import GIVE, throttle_again
from colocate.memory.ladder_state import Ladder
from colocate.memory.rung import RUNGS, Rung, height
from colocate.memory.settling import settle
from colocate.memory.situation import Situation
from colocate.memory.step import Step
from colocate.memory.undoing import UNDO


class LadderTurn(msgspec.Struct, frozen=True):
    """One turn's end."""

    ladder: Ladder
    actions: tuple[PodAction, ...] = ()
    notes: tuple[str, ...] = ()
    stood_on: tuple[Rung, ...] = ()
    """The rungs that were tried in this turn, in order."""


def turn(ladder: Ladder, situation: Situation) -> LadderTurn:
    """What to do now."""
    ladder, failures = settle(ladder, situation)
    if situation.facts.off or not situation.due:
        rest = _down(ladder, situation)
        if situation.debt and not situation.facts.off and rest.ladder.rung is None:
            stands = _stand(rest.ladder, Rung.WITHDRAW, situation)
            rest = LadderTurn(stands, rest.actions, rest.notes, (Rung.WITHDRAW,))
    else:
        rest = _up(ladder, situation)
    return LadderTurn(rest.ladder, rest.actions, (*failures, *rest.notes), rest.stood_on)


def _up(ladder: Ladder, situation: Situation) -> LadderTurn:
    ladder = msgspec.structs.replace(ladder, calm_since=None, undid_at=None)
    notes: list[str] = []
    rung = ladder.rung
    if rung is None:
        rung = Rung.WITHDRAW
        ladder = _stand(ladder, rung, situation)
        notes.append(f"There is a debt of {amount(situation.debt)}, so free blocks are withdrawn.")
    higher = _next(ladder, rung, situation)
    if higher is None and not situation.presses:
        ladder = msgspec.structs.replace(ladder, since=situation.now)
        if ladder.throttled:
            notes.append(
                f"{amount(situation.due)} is due, too little to evict a pod; throttled pods stay throttled."
            )
    elif higher is not None and (why := _is_over(ladder, rung, situation)):
        notes.append(f"{why}; {higher} comes next.")
        rung, ladder = higher, _stand(ladder, higher, situation)
    actions: tuple[PodAction, ...] = ()
    stood_on = []
    while True:
        stood_on.append(rung)
        step = _try(rung, ladder, situation)
        ladder, actions = step.ladder, step.actions
        notes += step.notes
        if step.busy or not situation.presses:
            break
        higher = situation.above(rung)
        if higher is None:
            notes.append(f"No rung is left to try; a debt of {amount(situation.debt)} remains.")
            break
        notes.append(f"{rung} has nothing left to try; {higher} comes next.")
        rung, ladder = higher, _stand(ladder, higher, situation)
    if height(rung) > height(Rung.THROTTLE) and situation.here(Rung.THROTTLE).is_here:
        again = throttle_again(ladder, situation)
        ladder, actions = again.ladder, (*again.actions, *actions)
    return LadderTurn(ladder, actions, tuple(notes), tuple(stood_on))


def _next(ladder: Ladder, rung: Rung, situation: Situation) -> Rung | None:
    """The rung that follows when this one has had its time; None where this one has all the time."""
    higher = situation.above(rung)
    # Pages on far nodes harm less than a throttle that lasts, so it gives way to them within the tolerance, too.
    ends_a_throttle = rung is Rung.THROTTLE and higher is Rung.FAR and bool(ladder.throttled)
    return higher if situation.presses or ends_a_throttle else None


def _try(rung: Rung, ladder: Ladder, situation: Situation) -> Step:
    here = situation.here(rung)
    if not here.is_here:
        # It was, when it was reached.
        return Step(ladder, notes=(f"{rung} is no longer available: {here.missing}.",))
    return GIVE[rung](ladder, situation)


def _is_over(ladder: Ladder, rung: Rung, situation: Situation) -> str:
    """Why a rung has had its time; empty where it has not."""
    waited = situation.now - ladder.since
    if waited >= situation.here(rung).deadline:
        return f"{rung} has not paid {amount(situation.due)} within {situation.here(rung).deadline:g} s"
    if situation.hurries and (rung is Rung.WITHDRAW or waited > 0):
        share = situation.settings.hurry
        return f"{amount(situation.due)} is due, more than {share:.0%} of the margin, so {rung} gets no more time"
    return ""


def _down(ladder: Ladder, situation: Situation) -> LadderTurn:
    ladder, notes = _call_off(ladder)
    ladder = msgspec.structs.replace(ladder, since=situation.now)
    if height(ladder.rung) < height(left := ladder.highest_left):
        # Pages that found no room when colocation was switched off, or what a stored state had forgotten.
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
    """Whether it is too early to undo more."""
    if situation.facts.off or ladder.calm_since is None:
        return False
    paused = ladder.undid_at is not None and situation.now - ladder.undid_at < situation.settings.undo_pause
    return paused or situation.now - ladder.calm_since < situation.settings.cool_down


def _call_off(ladder: Ladder) -> tuple[Ladder, tuple[str, ...]]:
    """Forget who was to go and has not gone: the memory is there without."""
    called_off = [uid for uid, entry in ladder.leaving.items() if not entry.accepted]
    leaving = {uid: entry for uid, entry in ladder.leaving.items() if entry.accepted}
    notes = tuple(f"Pod {uid} may stay: memory has returned." for uid in called_off)
    return msgspec.structs.replace(ladder, leaving=leaving), notes


def _stand(ladder: Ladder, rung: Rung, situation: Situation) -> Ladder:
    return msgspec.structs.replace(ladder, rung=rung, since=situation.now)
