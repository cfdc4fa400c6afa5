"""The ladder: it climbs rung by rung while online work needs memory, and descends when there is some. Pure.

It climbs to the next rung when the deadline of this one is over, when this one has nothing left to try, or, where
much of the margin is used, after one turn. While what is due is within the tolerance, no further pod is touched. On
the way down every rung is undone before the one below it.

Other modules import from here only. A new rung is a name in `settings.Rung`, what a machine needs for it (`rungs`),
what it does (`climb.GIVE`) and how it is undone (`descent.UNDO`).
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
    """The ladder after this turn, with the actions to carry out."""
    ladder, failures = settle(ladder, situation)
    if situation.facts.off or not situation.due:
        rest = down(ladder, situation)
        if situation.debt and not situation.facts.off and rest.ladder.rung is None:
            stands = stand(rest.ladder, Rung.WITHDRAW, situation.now)
            rest = LadderTurn(stands, rest.actions, rest.notes, (Rung.WITHDRAW,))
    else:
        rest = up(ladder, situation)
    return LadderTurn(rest.ladder, rest.actions, (*failures, *rest.notes), rest.stood_on)
