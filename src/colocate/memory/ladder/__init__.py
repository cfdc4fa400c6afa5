"""The ladder: up, rung by rung, while online work needs memory; down again when there is some. Pure.

A rung is left for the next when its deadline is over, when it has nothing left to try, or, where much of the margin
is eaten, after one turn. Nobody new is touched while what is due is within the tolerance, and on the way back every
rung is undone before the one below it.

This is the way in. A new rung is a name in `settings.Rung`, what this machine needs for it (`rungs`), what it does
(`climb.GIVE`) and its way back (`descent.UNDO`).
"""

from colocate.memory.ladder.climb import up
from colocate.memory.ladder.demotion import switch_demotion, way_back, why_no_demotion
from colocate.memory.ladder.descent import down
from colocate.memory.ladder.outcomes import settle
from colocate.memory.ladder.rungs import LadderTurn, RungHere, Situation, rungs_here
from colocate.memory.ladder.state import GaveUp, Ladder, LeavingPod, Moved, Throttled, stand, throttled_again
from colocate.memory.settings import Rung

__all__ = [
    "GaveUp",
    "Ladder",
    "LadderTurn",
    "LeavingPod",
    "Moved",
    "RungHere",
    "Situation",
    "Throttled",
    "rungs_here",
    "switch_demotion",
    "throttled_again",
    "turn",
    "way_back",
    "why_no_demotion",
]


def turn(ladder: Ladder, situation: Situation) -> LadderTurn:
    """What to do now."""
    ladder, failures = settle(ladder, situation)
    if situation.facts.off or not situation.due:
        rest = down(ladder, situation)
        if situation.debt and not situation.facts.off and rest.ladder.rung is None:
            stands = stand(rest.ladder, Rung.WITHDRAW, situation.now)
            rest = LadderTurn(stands, rest.actions, rest.notes, (Rung.WITHDRAW,))
    else:
        rest = up(ladder, situation)
    return LadderTurn(rest.ladder, rest.actions, (*failures, *rest.notes), rest.stood_on)
