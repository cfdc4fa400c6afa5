"""While the state cannot be stored: nothing is sold, what is undone without it goes on, and no successor is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colocate.memory.actions import (
    Evict,
    MovePages,
    Reclaim,
    Recreate,
    ReturnPages,
    Throttle,
    Unthrottle,
)
from colocate.memory.explanation import explain
from colocate.memory.settings import Rung
from colocate.model.device import Device
from tests.memory.nodes import GIB, SETTINGS, V1, V2, Guest, Machine, ids, kinds

FULL = "/var/lib/colocate: no space left on device"
BLOCKS = ids(*range(40))
HELD = len(BLOCKS) * SETTINGS.block_size


def pressed(**machine: object) -> Machine:
    """A machine with a pod that holds 20 GiB of blocks, whose online work can grow."""
    pod = Guest(uid="guest", ids=BLOCKS, anon=12 * GIB, cache=6 * GIB, limit=HELD)
    made = Machine(guests=[pod])
    for name, value in machine.items():
        setattr(made, name, value)
    made.live(30)
    return made


def test_a_full_disk_takes_every_free_block_off_the_list_and_leaves_those_of_pods() -> None:
    machine = pressed()
    assert machine.turn().offered > 0
    machine.unstored = FULL
    decision = machine.turn()
    assert (decision.offered, decision.held) == (0, len(BLOCKS))
    assert decision.state.blocks.healthy() == set(BLOCKS)
    for _ in range(60):
        decision = machine.turn()
        assert decision.plan.blocks.devices == tuple(Device(id) for id in sorted(BLOCKS))
        machine.carry_out(decision)
    said = explain(machine.turn(), SETTINGS)
    assert "The agent cannot store its state (/var/lib/colocate: no space left on device)" in said[0]
    assert sum("cannot store" in sentence for sentence in said) == 1
    machine.unstored = ""
    machine.live(120)
    assert machine.turn().offered > 0


def test_a_disk_that_is_full_from_the_start_sells_nothing() -> None:
    machine = Machine(unstored=FULL)
    assert machine.turn().state.blocks.listed == ()


@pytest.mark.parametrize("controls", [V1, V2], ids=["v1", "v2"])
def test_on_a_full_disk_the_ladder_stops_below_the_rungs_that_only_a_record_can_undo(
    controls: object,
) -> None:
    machine = pressed(controls=controls, far_total=32 * GIB)
    machine.unstored, machine.online = FULL, 50 * GIB
    done = machine.live(600)
    assert any(isinstance(action, Reclaim) for action in done)
    assert any(isinstance(action, Throttle) for action in done) == (controls is V2)
    assert not any(isinstance(action, MovePages | Evict | Recreate) for action in done)
    missing = {each.rung: each.missing for each in machine.turn().rungs}
    for rung in (Rung.FAR, Rung.EVICT, Rung.RECREATE):
        assert "the state cannot be stored" in missing[rung]
    machine.unstored = ""
    assert any(isinstance(action, MovePages) for action in machine.live(60)), "it goes on from there"


def test_on_a_full_disk_pods_get_back_what_was_taken_before() -> None:
    machine = pressed(far_total=32 * GIB)
    machine.online = 46 * GIB
    done = machine.live(120)
    assert any(isinstance(action, Throttle) for action in done)
    assert any(isinstance(action, MovePages) for action in done)
    machine.unstored, machine.online = FULL, 8 * GIB
    back = kinds(machine.live(600))
    assert ReturnPages.__name__ in back
    assert Unthrottle.__name__ in back
    assert (machine.guests[0].high, machine.guests[0].far) == (None, 0)


def test_on_a_full_disk_off_gives_everything_back() -> None:
    machine = pressed()
    machine.unstored, machine.online = FULL, 46 * GIB
    machine.live(120)
    assert machine.guests[0].high is not None
    machine.off = True
    machine.live(60)
    (guest,) = machine.guests
    assert (guest.high, guest.limit) == (None, None)


@settings(max_examples=40)
@given(
    loads=st.lists(st.integers(4, 60), min_size=1, max_size=5),
    before=st.lists(st.integers(4, 60), max_size=3),
    controls=st.sampled_from([V1, V2]),
)
def test_whatever_was_done_without_a_record_a_successor_with_the_old_state_undoes(
    loads: list[int], before: list[int], controls: object
) -> None:
    machine = pressed(controls=controls, far_total=32 * GIB)
    for online in before:
        machine.online = online * GIB
        machine.live(20)
    stored = machine.state
    was_there = bool(machine.guests)
    machine.unstored = FULL
    for online in loads:
        machine.online = online * GIB
        machine.live(20)
        assert machine.turn().offered == 0
    assert bool(machine.guests) == was_there, "no pod leaves"
    machine.state, machine.outcomes, machine.unstored = stored, (), ""
    machine.online = 8 * GIB
    machine.live(400)
    for guest in machine.guests:
        assert (guest.high, guest.limit, guest.far) == (None, HELD, 0)
    assert machine.turn().state.ladder.rung is None
