"""What a stored state has forgotten: it is found on the pods themselves, and undone."""

from typing import Any

import pytest

from colocate.memory.actions import RestoreLimit, Throttle, Unthrottle
from colocate.memory.settings import Rung
from colocate.model.memory import OurHigh
from tests.memory.nodes import GIB, SETTINGS, Guest, Machine, ids, kinds

BLOCKS = ids(*range(40))
HELD = len(BLOCKS) * SETTINGS.block_size


def forgotten(before: int | None = None, **guest: object) -> Machine:
    """A machine whose agent has lost its state while a pod was throttled."""
    pod = Guest(uid="guest", ids=BLOCKS, anon=9 * GIB, limit=HELD, high=10 * GIB, our_high=OurHigh(before))
    for name, value in guest.items():
        setattr(pod, name, value)
    return Machine(guests=[pod])


@pytest.mark.parametrize("before", [None, 12 * GIB])
@pytest.mark.parametrize("off", [True, False], ids=["off", "on"])
def test_a_throttle_that_the_state_has_forgotten_is_taken_away(off: bool, before: int | None) -> None:
    machine = forgotten(before)
    machine.off = off
    done = machine.live(300)
    assert Unthrottle in {type(action) for action in done}
    (guest,) = machine.guests
    assert (guest.high, guest.limit) == (before, None if off else HELD)
    last = machine.turn().state.ladder
    assert (last.rung, last.throttled) == (None, {})


def test_switched_off_limits_that_the_state_has_forgotten_are_restored_after_the_throttle() -> None:
    machine = forgotten()
    machine.off = True
    assert kinds(machine.live(60)) == ["Unthrottle", "RestoreLimit"]
    assert machine.guests[0].swap_limit is None


def test_no_new_pod_gets_a_block_before_a_forgotten_throttle_is_undone() -> None:
    machine = forgotten()
    first = machine.turn()
    assert first.offered == 0
    assert first.state.ladder.throttled["guest"].to == 10 * GIB
    machine.live(300)
    assert machine.turn().offered > 0


def test_a_forgotten_throttle_stays_while_online_work_needs_the_memory() -> None:
    machine = forgotten()
    machine.online = 52 * GIB
    done = machine.live(60)
    assert Unthrottle not in {type(action) for action in done}
    assert all(action.before is None for action in done if isinstance(action, Throttle)), (
        "not what we set ourselves"
    )
    assert machine.state.ladder.rung is not None


def test_a_memory_high_that_is_not_ours_is_left_alone() -> None:
    machine = forgotten(our_high=None)
    machine.off = True
    assert kinds(machine.live(120)) == ["RestoreLimit"]
    assert machine.guests[0].high == 10 * GIB


@pytest.mark.parametrize("off", [True, False], ids=["off", "on"])
@pytest.mark.parametrize("guest", [{"listed": False}, {"asks": False}], ids=["holds none", "asks for none"])
def test_nothing_is_done_to_a_pod_that_holds_no_block_although_it_is_marked(
    guest: dict[str, Any], off: bool
) -> None:
    machine = forgotten(**guest)
    machine.off = off
    assert machine.live(300) == []
    assert machine.guests[0].high == 10 * GIB


def test_a_throttle_that_was_forgotten_on_a_lower_rung_is_undone_from_there() -> None:
    machine = forgotten()
    machine.guests[0].high = None
    machine.online = 38 * GIB
    assert machine.turn().state.ladder.rung is Rung.WITHDRAW
    machine.guests[0].high = 10 * GIB
    machine.online = 8 * GIB
    assert RestoreLimit not in {type(action) for action in machine.live(300)}
    assert [guest.high for guest in machine.guests] == [None]
    assert machine.turn().state.ladder.rung is None
