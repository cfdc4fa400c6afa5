"""Updates the ladder with the outcomes of earlier plans, before anything new is planned."""

import msgspec

from colocate.memory.actions import (
    ActionOutcome,
    ActionResult,
    Demote,
    Evict,
    MovePages,
    Reclaim,
    Recreate,
    ReturnPages,
    Throttle,
    Unthrottle,
)
from colocate.memory.ladder.rungs import Situation
from colocate.memory.ladder.state import GaveUp, Ladder, LeavingPod, drop, put
from colocate.memory.settings import Rung
from colocate.model.figures import count
from colocate.model.memory import PodUid

_LONGEST_PAUSE = 600.0
_DOUBLINGS = 20
"""The pause doubles at most this often, which keeps the power small."""


def settle(ladder: Ladder, situation: Situation) -> tuple[Ladder, tuple[str, ...]]:
    """The ladder with all outcomes and without pods that are gone; and a sentence for each failure."""
    notes: list[str] = []
    for outcome in situation.facts.outcomes:
        ladder = _take_in(ladder, outcome, situation)
        if outcome.result not in (ActionResult.DONE, ActionResult.GONE):
            notes.append(_failure(outcome))
    holders = {each.uid for each in situation.pods}
    ladder = msgspec.structs.replace(
        ladder,
        throttled={uid: done for uid, done in ladder.throttled.items() if uid in holders},
        moved={uid: done for uid, done in ladder.moved.items() if uid in holders},
        leaving={uid: entry for uid, entry in ladder.leaving.items() if uid in holders},
        gave_up=tuple(each for each in ladder.gave_up if each.uid in holders),
    )
    for each in situation.pods:
        entry = ladder.leaving.get(each.uid)
        if each.pod.terminating and (entry is None or not entry.accepted):
            going = LeavingPod(Rung.EVICT, situation.now, accepted=True)
            ladder = msgspec.structs.replace(ladder, leaving=put(ladder.leaving, each.uid, going))
    return ladder, tuple(notes)


def _take_in(ladder: Ladder, outcome: ActionOutcome, situation: Situation) -> Ladder:
    failed = outcome.result not in (ActionResult.DONE, ActionResult.GONE)
    match outcome.action:
        case Reclaim(pod=pod) if failed:
            return _give_up(ladder, Rung.RECLAIM, pod.uid, outcome.message)
        case Throttle(pod=pod) if failed:
            return _give_up(ladder, Rung.THROTTLE, pod.uid, outcome.message)
        case MovePages(pod=pod) | Demote(pod=pod) if failed:
            return _give_up(ladder, Rung.FAR, pod.uid, outcome.message)
        case Unthrottle(pod=pod) if not failed:
            return msgspec.structs.replace(ladder, throttled=drop(ladder.throttled, pod.uid))
        case ReturnPages(pod=pod) if failed:
            # Far pages are slow but harmless: they must not keep the pod throttled for ever.
            return msgspec.structs.replace(ladder, moved=drop(ladder.moved, pod.uid))
        case Evict(pod=pod):
            return _take_in_leaving(ladder, Rung.EVICT, pod.uid, outcome, situation)
        case Recreate(pod=pod):
            return _take_in_leaving(ladder, Rung.RECREATE, pod.uid, outcome, situation)
    return ladder


def _take_in_leaving(
    ladder: Ladder, by: Rung, uid: PodUid, outcome: ActionOutcome, situation: Situation
) -> Ladder:
    now = situation.now
    known = ladder.leaving.get(uid) or LeavingPod(by, now)
    match outcome.result:
        case ActionResult.DONE | ActionResult.GONE:
            entry = known if known.accepted else LeavingPod(by, now, accepted=True)
        case ActionResult.BLOCKED:
            entry = LeavingPod(by, known.since, False, now + situation.settings.retry, outcome.message)
        case ActionResult.UNREACHABLE:
            entry = LeavingPod(by, known.since, False, 0.0, outcome.message)
        case ActionResult.REFUSED | ActionResult.FAILED if by is Rung.RECREATE:
            # It is then evicted like other pods.
            ladder = _give_up(ladder, by, uid, outcome.message)
            return msgspec.structs.replace(ladder, leaving=drop(ladder.leaving, uid))
        case ActionResult.REFUSED | ActionResult.FAILED:
            entry = _refused(known, outcome.message, situation)
    return msgspec.structs.replace(ladder, leaving=put(ladder.leaving, uid, entry))


def _refused(known: LeavingPod, why: str, situation: Situation) -> LeavingPod:
    """Try again after a pause that doubles: a right may be granted, a webhook repaired."""
    refusals = known.refusals + 1
    pause = min(_LONGEST_PAUSE, situation.settings.retry * 2.0 ** min(refusals - 1, _DOUBLINGS))
    often = f"{count(refusals, 'time')} in a row; the agent tries again after {pause:g} s"
    waits_for = f"the API refused {often}" + (f" ({why.rstrip('.')})" if why else "")
    return LeavingPod(Rung.EVICT, known.since, False, situation.now + pause, waits_for, refusals)


def _give_up(ladder: Ladder, rung: Rung, uid: PodUid, why: str) -> Ladder:
    if ladder.has_given_up(rung, uid):
        return ladder
    return msgspec.structs.replace(ladder, gave_up=(*ladder.gave_up, GaveUp(rung, uid, why)))


def _failure(outcome: ActionOutcome) -> str:
    name = type(outcome.action).__name__
    pod = getattr(outcome.action, "pod", "the node")
    return f"{name} for {pod}: {outcome.result}" + (f", {outcome.message}." if outcome.message else ".")
