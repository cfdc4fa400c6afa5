"""A rung that is left out of the code is noticed: what the suite checks of the ladder does not hold without it."""

from collections.abc import Callable

import pytest

from colocate.memory import blocks
from colocate.memory.actions import PodAction
from colocate.memory.ladder import climb, descent
from colocate.memory.ladder.rungs import LadderStep, Situation
from colocate.memory.ladder.state import Ladder
from colocate.memory.settings import RUNGS, Rung, height
from tests.memory.nodes import GIB, Guest, Machine, ids, kinds
from tests.memory.pressing import guest, presses
from tests.memory.test_memory_stateful import check_blocks, check_ladder, check_pods

Story = Callable[[], None]


def live(machine: Machine, turns: int) -> list[PodAction]:
    """Turns in which everything is carried out, and all that must always hold is looked at."""
    done: list[PodAction] = []
    for _ in range(turns):
        before = machine.state
        decision = machine.turn()
        check_blocks(before, decision)
        check_pods(before, decision, {guest.uid for guest in machine.guests})
        check_ladder(before, decision, machine.off)
        done += [action for action in decision.plan.actions if isinstance(action, PodAction)]
        machine.carry_out(decision)
    return done


def pressed(*guests: Guest, far: int, share: float = 0.49) -> Machine:
    machine = Machine(guests=list(guests), far_total=far)
    live(machine, 1)
    presses(machine, share)
    return machine


def down() -> None:
    """Every rung does its part, one after another, and the first touches no pod."""
    movable = guest(20, 0.25, uid="movable", blocks=ids(*range(60)))
    movable.controller, movable.may_move = "", True
    owned = guest(1, uid="owned", blocks=ids(*range(60, 80)))
    owned.priority = 9
    machine = pressed(movable, owned, far=GIB // 4)
    assert live(machine, 1) == []
    assert kinds(live(machine, 40)) == ["Reclaim", "Throttle", "MovePages", "Evict", "Recreate"]


def back() -> None:
    """What was done is undone, in reverse."""
    machine = pressed(guest(20, 0.5), far=32 * GIB)
    live(machine, 12)
    machine.online = 8 * GIB
    assert kinds(live(machine, 25)) == ["ReturnPages", "Unthrottle"]
    assert (machine.guests[0].far, machine.guests[0].high) == (0, None)
    assert machine.turn().offered > 0


def nothing(ladder: Ladder, situation: Situation) -> LadderStep:
    return LadderStep(ladder)


@pytest.mark.parametrize("story", [down, back])
def test_with_all_of_them_the_story_holds(story: Story) -> None:
    story()


@pytest.mark.parametrize("left_out", RUNGS)
def test_a_rung_that_does_nothing_is_noticed(left_out: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(climb.GIVE, left_out, nothing)
    with pytest.raises(AssertionError):
        down()


@pytest.mark.parametrize("left_out", [rung for rung in RUNGS if rung is not Rung.WITHDRAW])
def test_a_rung_that_is_stepped_over_is_noticed(left_out: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    def above(situation: Situation, rung: Rung) -> Rung | None:
        higher = [each.rung for each in situation.rungs[height(rung) + 1 :] if each.is_here]
        return next((each for each in higher if each is not left_out), None)

    monkeypatch.setattr(Situation, "above", above)
    with pytest.raises(AssertionError):
        down()


def test_blocks_that_are_not_withdrawn_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_shrink", lambda *_: [])
    with pytest.raises(AssertionError, match="shrinking is at once"):
        live(pressed(guest(), far=0), 2)


@pytest.mark.parametrize("left_out", [Rung.FAR, Rung.THROTTLE])
def test_a_way_back_that_is_missing_is_noticed(left_out: Rung, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(descent.UNDO, left_out, nothing)
    with pytest.raises(AssertionError):
        back()
