"""Which blocks are offered, and how they come and go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.errors import UserError
from colocate.memory import blocks as block_list
from colocate.memory.blocks import (
    BlockPlan,
    Blocks,
    BlockState,
    WantedBlocks,
    block_id,
    blocks_for_settings,
    number,
)
from colocate.memory.explanation import explain, returning
from colocate.memory.forecast import Koordinator
from colocate.memory.settings import MemorySettings, Rung, check_settings
from colocate.memory.state import state_from_json
from colocate.model.device import Device
from colocate.model.values import Seconds, Share, Size
from tests.memory.nodes import GIB, MIB, SETTINGS, Guest, Machine, ids


def turn(
    blocks: Blocks, free: int, now: float, held: tuple[str, ...] = (), in_debt: int = 0, grow: bool = True
) -> tuple[Blocks, BlockPlan]:
    return block_list.turn(blocks, WantedBlocks(free, in_debt, grow, "As wanted."), held, now, SETTINGS)


def changes(plan: BlockPlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is withdrawn and what is offered; a change has its reason, and nothing else has one."""
    assert bool(plan.reason) == bool(plan.withdrawn or plan.offered)
    return plan.withdrawn, plan.offered


def states(blocks: Blocks) -> dict[str, BlockState]:
    return {block.id: block.state for block in blocks.listed}


def offered(blocks: Blocks) -> list[str]:
    return sorted(blocks.healthy())


def test_the_first_list_is_given_at_once() -> None:
    blocks, plan = turn(Blocks(), 3, 0)
    assert offered(blocks) == list(ids(0, 1, 2))
    assert (changes(plan), plan.reason) == (((), ids(0, 1, 2)), "As wanted.")
    assert plan.devices == tuple(Device(id) for id in ids(0, 1, 2))


def test_ids_have_four_digits_and_go_on() -> None:
    assert [block_id(7), block_id(9999), block_id(10_000)] == ["CM-0007", "CM-9999", "CM-10000"]
    assert [number("CM-0007"), number("CM-10000"), number("CM-07"), number("CM-00007"), number("gpu-0")] == [
        7,
        10_000,
        None,
        None,
        None,
    ]


def test_a_free_block_that_is_withdrawn_is_off_the_list_at_once() -> None:
    """The SDK then tells the kubelet, and keeps the id for as long as an Allocate may ask for it."""
    blocks, _ = turn(Blocks(), 2, 0)
    blocks, plan = turn(blocks, 1, 10)
    assert (changes(plan), plan.reason) == ((ids(1), ()), "As wanted.")
    assert plan.devices == (Device("CM-0000"),)
    assert list(states(blocks)) == list(ids(0))


def test_a_withdrawn_block_that_is_held_is_unhealthy_on_the_list_until_it_is_free() -> None:
    blocks, _ = turn(Blocks(), 2, 0)
    for now in range(10, 600, 10):
        blocks, plan = turn(blocks, 0, now, held=ids(1), in_debt=1)
        assert states(blocks) == {"CM-0001": BlockState.WITHDRAWN}
        assert plan.devices == (Device("CM-0001").unhealthy(),)
        assert changes(plan) == ((ids(0, 1), ()) if now == 10 else ((), ()))
    blocks, plan = turn(blocks, 0, 610)
    assert (states(blocks), plan.devices, changes(plan)) == ({}, (), ((), ()))


def test_a_state_of_a_build_that_let_blocks_drain_is_read() -> None:
    stored = b'{"blocks": {"listed": [{"id": "CM-0000", "state": "drained", "since": 3.0}], "started": true}}'
    assert states(state_from_json(stored).blocks) == {"CM-0000": BlockState.WITHDRAWN}
    blocks, _ = turn(state_from_json(stored).blocks, 0, 0)
    assert states(blocks) == {}


def test_free_blocks_go_first_highest_number_first_and_held_ones_as_their_pods_give() -> None:
    blocks, _ = turn(Blocks(), 4, 0)
    _, plan = turn(blocks, 0, 10, held=ids(1, 3), in_debt=1)
    assert changes(plan) == (ids(2, 0, 1), ())


def test_blocks_come_back_after_the_cool_down_lowest_number_first() -> None:
    blocks, _ = turn(Blocks(), 4, 0)
    blocks, _ = turn(blocks, 0, 10)
    for now in (20, 40, 79):
        blocks, plan = turn(blocks, 4, now)
        assert not plan.offered
    blocks, plan = turn(blocks, 4, 80)
    assert plan.offered == ids(0, 1, 2, 3)


def test_held_blocks_come_back_before_free_ones() -> None:
    blocks, _ = turn(Blocks(), 4, 0)
    blocks, _ = turn(blocks, 0, 10, held=ids(3), in_debt=1)
    blocks, _ = turn(blocks, 1, 20, held=ids(3))
    _, plan = turn(blocks, 1, 80, held=ids(3))
    assert plan.offered == ids(3, 0)


def test_a_held_block_comes_back_when_the_debt_is_paid_however_few_are_missing() -> None:
    blocks, _ = turn(Blocks(), 2, 0)
    blocks, _ = turn(blocks, 0, 10, held=ids(0, 1), in_debt=1)
    assert states(blocks)["CM-0000"] is BlockState.WITHDRAWN
    for now in (20, 79):
        blocks, plan = turn(blocks, 0, now, held=ids(0, 1))
        assert not plan.offered
    blocks, plan = turn(blocks, 0, 80, held=ids(0, 1))
    assert plan.offered == ids(0)


def test_held_blocks_that_come_back_bring_no_free_one_within_the_hysteresis() -> None:
    settings = MemorySettings(hysteresis=3)
    wanted = [
        WantedBlocks(3, 0, True, "."),
        WantedBlocks(0, 1, True, "."),
        *[WantedBlocks(1, 0, True, ".")] * 2,
    ]
    blocks, held = Blocks(), ids(0)
    for now, each in zip((0, 10, 20, 80), wanted, strict=True):
        blocks, plan = block_list.turn(blocks, each, held if now else (), now, settings)
    assert plan.offered == ids(0)
    assert offered(blocks) == list(ids(0))


def test_a_pod_whose_one_block_lost_its_memory_is_whole_again_on_a_node_that_is_full() -> None:
    machine = Machine(guests=[Guest(uid="g", ids=ids(0), anon=GIB // 4, limit=GIB // 2)])
    balance = machine.turn().balance
    room = balance.capacity - balance.online - balance.safety - balance.held
    machine.online += room + 100 * MIB
    assert states(machine.turn().state.blocks)["CM-0000"] is BlockState.WITHDRAWN
    machine.online -= 101 * MIB
    machine.live(120)
    assert states(machine.turn().state.blocks)["CM-0000"] is BlockState.HEALTHY


def test_only_as_many_come_back_as_there_was_room_for_all_the_time() -> None:
    blocks, _ = turn(Blocks(), 0, 0)
    for now, room in ((10, 9), (30, 4), (60, 8)):
        blocks, _ = turn(blocks, room, now)
    _, plan = turn(blocks, 9, 70)
    assert plan.offered == ids(0, 1, 2, 3)


@given(st.lists(st.integers(5, 6), min_size=1, max_size=60))
def test_noise_within_the_hysteresis_changes_the_list_once_at_most(noise: list[int]) -> None:
    blocks, _ = turn(Blocks(), 6, 0)
    changed = 0
    for place, room in enumerate(noise):
        blocks, plan = turn(blocks, room, 10.0 * (place + 1))
        changed += changes(plan) != ((), ())
    assert changed <= 1


@given(st.lists(st.integers(-255, 255), min_size=1, max_size=60))
def test_noise_of_less_than_a_block_in_what_is_used_changes_the_list_once_at_most(noise: list[int]) -> None:
    machine = Machine()
    machine.turn()
    changed = 0
    for mib in noise:
        machine.online = 8 * GIB + mib * MIB
        changed += changes(machine.turn().plan.blocks) != ((), ())
    assert changed <= 2


def test_a_state_that_was_lost_finds_its_blocks_by_who_holds_them() -> None:
    machine = Machine(guests=[Guest(uid="old", ids=ids(7, 300), anon=GIB, limit=GIB)])
    decision = machine.turn()
    listed = states(decision.state.blocks)
    assert listed["CM-0007"] is listed["CM-0300"] is BlockState.HEALTHY
    assert decision.held == 2
    assert decision.offered == decision.balance.free


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (MemorySettings(resource="test.com/colocation-memory"), "name"),
        (MemorySettings(block_size=Size(GIB)), "size"),
    ],
)
def test_a_change_of_size_or_name_is_refused_while_blocks_are_held(
    changed: MemorySettings, what: str
) -> None:
    blocks, _ = turn(blocks_for_settings(Blocks(), SETTINGS, frozenset()), 3, 0)
    with pytest.raises(
        UserError, match=rf"the {what} of blocks .* hold 1 block .*CM-0000.*'colocate memory off'"
    ):
        blocks_for_settings(blocks, changed, frozenset({"CM-0000"}))
    fresh = blocks_for_settings(blocks, changed, frozenset())
    assert fresh == Blocks(resource=changed.resource, size=changed.block_size)


@pytest.mark.parametrize("why", ["absent", "cordoned", "memory_pressure"])
def test_a_node_that_is_closed_offers_nothing_and_opens_after_the_cool_down(why: str) -> None:
    machine = Machine(guests=[Guest(uid="g", ids=ids(0, 1), anon=GIB, limit=GIB)])
    before = machine.turn().offered
    setattr(machine, why, True)
    closed = machine.turn()
    assert closed.offered == 0
    assert "offers no block" in closed.wanted.reason
    assert states(closed.state.blocks)["CM-0000"] is BlockState.HEALTHY
    setattr(machine, why, False)
    machine.live(40)
    waiting = machine.turn()
    assert waiting.offered == 0
    many, seconds = returning(waiting, machine.settings)
    assert (many, seconds) == (before, 20)
    assert f"{before} more blocks come in 20 s (cool-down)" in " ".join(explain(waiting, machine.settings))
    machine.turn()
    opened = machine.turn()
    assert opened.offered == before
    assert returning(opened, machine.settings) == (0, 0.0)


def test_a_node_that_the_api_does_not_know_is_named_and_keeps_its_reserves() -> None:
    machine = Machine()
    before = machine.turn()
    machine.absent = True
    decision = machine.turn()
    assert decision.wanted.reason == (
        "The node is unknown to the API server under the name node-1, so it offers no block."
    )
    assert decision.safety == before.safety


def test_never_more_blocks_than_configured() -> None:
    machine = Machine(settings=MemorySettings(forecast=SETTINGS.forecast, most_blocks=5))
    assert machine.turn().offered == 5


@pytest.mark.parametrize(
    ("settings", "because"),
    [
        (MemorySettings(resource="memory"), "needs a domain"),
        (MemorySettings(block_size=Size(1000)), "at least 1Mi"),
        (MemorySettings(block_size=Size(MIB + 1)), "whole pages"),
        (MemorySettings(margin=Share(1.5)), "margin is 1.5; give a share below 1"),
        (MemorySettings(margin=Share(10.0)), "margin is 10.0; give a share below 1; did you mean 10%?"),
        (
            MemorySettings(forecast=Koordinator(threshold=6500)),
            "threshold is 65; give a share above 0 and at most 1; did you mean 65%?",
        ),
        (MemorySettings(cool_down=Seconds(-1)), "cool_down is -1"),
        (MemorySettings(tolerance=Share(0.9)), "hurry"),
        (MemorySettings(without=(Rung.WITHDRAW,)), "withdraw"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_a_remedy(settings: MemorySettings, because: str) -> None:
    with pytest.raises(UserError, match=because):
        check_settings(settings)


def test_the_defaults_can_be() -> None:
    assert check_settings(MemorySettings()) == MemorySettings()


def after_a_restart(machine: Machine) -> Machine:
    """Its agent starts again, and the API server is away."""
    machine.heard = machine.api = False
    return machine


@pytest.mark.parametrize("why", ["cordoned", "memory_pressure"])
def test_a_node_that_was_closed_stays_so_after_a_restart_without_the_api_server(why: str) -> None:
    machine = Machine()
    setattr(machine, why, True)
    machine.turn()
    after_a_restart(machine)
    setattr(machine, why, False)
    machine.live(200)
    decision = machine.turn()
    assert decision.offered == 0
    said = explain(decision, machine.settings)
    assert "has not answered since the agent started" in said[0]
    assert {
        "cordoned": "then the node was cordoned.",
        "memory_pressure": "then the node was under MemoryPressure.",
    }[why] in said[0]
    machine.heard = True
    machine.live(100)
    assert machine.turn().offered > 0


def test_a_node_that_was_open_keeps_its_blocks_and_gets_no_more_until_the_api_server_answers() -> None:
    machine = Machine(online=20 * GIB)
    before = machine.turn()
    after_a_restart(machine)
    machine.online = 8 * GIB
    machine.live(200)
    decision = machine.turn()
    assert decision.offered == before.offered > 0
    assert decision.safety == before.safety, "reserves are as last heard"
    said = " ".join(explain(decision, machine.settings))
    assert "then the node was not cordoned" in said
    assert "but the API server has not answered since the agent started" in said
    machine.online = 30 * GIB
    assert machine.turn().offered < before.offered, "withdrawal goes on"


def test_a_node_of_which_the_api_never_said_anything_offers_nothing() -> None:
    machine = after_a_restart(Machine(guests=[Guest(uid="g", ids=ids(0, 1), anon=GIB, limit=GIB)]))
    decision = machine.turn()
    assert decision.offered == 0
    assert states(decision.state.blocks)["CM-0000"] is BlockState.HEALTHY
    assert any(
        "The agent does not know yet whether the node is cordoned" in each
        for each in explain(decision, machine.settings)
    )
    machine.heard = True
    machine.live(100)
    assert machine.turn().offered > 0


def test_why_no_block_is_added_is_said() -> None:
    machine = Machine(online=20 * GIB)
    machine.turn()
    machine.online, machine.holders_known = 8 * GIB, False
    assert "would fit, but the agent does not know which pods hold which blocks." in " ".join(
        explain(machine.turn(), SETTINGS)
    )
