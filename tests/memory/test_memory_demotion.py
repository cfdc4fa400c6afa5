"""The far rung by the kernel's demotion: when it is, where memory goes, and a switch that never stays on unseen."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colocate.memory.actions import ActionResult, Demote, MovePages, PodAction, ReturnPages, SwitchDemotion
from colocate.memory.decision import MemoryDecision, decide
from colocate.memory.explanation import explain
from colocate.memory.ladder import demotion
from colocate.memory.ladder.rungs import rungs_here
from colocate.memory.settings import Rung, height
from colocate.memory.state import MemoryState, state_from_json, state_to_json
from colocate.model.memory import Demotion, MemoryControls, NumaMemory
from tests.memory.nodes import DEMOTES, GIB, MIB, SETTINGS, V1, V2, Machine, kinds
from tests.memory.pressing import guest, on_pods, pressed, presses

ALLOWED = msgspec.structs.replace(SETTINGS, demotion=True)
FAR = frozenset({2})


def demoting(**machine: Any) -> Machine:
    """A machine on which online work needs memory, and the kernel may demote."""
    options: dict[str, Any] = {"far_total": 32 * GIB, "controls": DEMOTES, "settings": ALLOWED, **machine}
    return pressed(guest(anon=20, cache=0.25), **options)


def until_demoted(machine: Machine) -> MemoryDecision:
    for _ in range(20):
        decision = machine.turn()
        if any(isinstance(action, Demote) for action in decision.plan.actions):
            return decision
        machine.carry_out(decision)
    raise AssertionError(f"no memory is to go: {decision.plan.notes}")


def is_on(machine: Machine) -> bool:
    return machine.controls.demotion.enabled


def switched(decision: MemoryDecision) -> list[bool]:
    return [action.on for action in decision.plan.actions if isinstance(action, SwitchDemotion)]


def test_without_a_right_over_processes_the_far_rung_is_by_demotion_and_comes_in_its_place() -> None:
    machine = demoting()
    assert kinds(machine.live(200))[:3] == ["Reclaim", "Throttle", "Demote"]
    assert machine.guests[0].far > 0
    assert machine.turn().balance.due < 4096


def test_where_both_ways_are_here_the_one_with_fewer_rights_is_taken() -> None:
    machine = demoting(controls=msgspec.structs.replace(DEMOTES, migrate=True))
    done = machine.live(200)
    assert any(isinstance(action, Demote) for action in done)
    assert not any(isinstance(action, MovePages) for action in done)


def test_what_the_operator_has_not_allowed_is_not_switched_on() -> None:
    machine = demoting(settings=SETTINGS, controls=msgspec.structs.replace(DEMOTES, migrate=True))
    done = machine.live(200)
    assert any(isinstance(action, MovePages) for action in done)
    assert not any(isinstance(action, Demote) for action in done)
    assert not machine.controls.demotion.enabled
    machine = demoting(settings=SETTINGS)
    assert not any(isinstance(action, Demote | MovePages) for action in machine.live(200))
    assert "memory.demotion does not allow it" in machine.turn().rungs[height(Rung.FAR)].missing


def test_the_switch_comes_before_the_deed_and_is_remembered_in_the_same_state() -> None:
    decision = until_demoted(demoting())
    names = [type(action).__name__ for action in decision.plan.actions]
    assert names.index("SwitchDemotion") < names.index("Demote")
    assert state_from_json(state_to_json(decision.state)).ladder.demotion_is_ours
    assert "was off before" in " ".join(explain(decision, ALLOWED))


def test_the_switch_is_put_back_in_the_first_turn_in_which_nothing_is_demoted() -> None:
    machine = demoting()
    machine.carry_out(until_demoted(machine))
    assert machine.controls.demotion.enabled
    decision = machine.turn()
    assert decision.balance.due < 4096
    assert switched(decision) == [False]
    assert decision.state.ladder.demotion_is_ours, "until it is seen to be off"
    machine.carry_out(decision)
    assert not is_on(machine)
    decision = machine.turn()
    assert (switched(decision), decision.state.ladder.demotion_is_ours) == ([], False)


def test_off_puts_the_switch_back_whatever_else_is_left_to_undo() -> None:
    machine = demoting()
    machine.carry_out(until_demoted(machine))
    machine.off = True
    decision = machine.turn()
    assert switched(decision) == [False]
    machine.carry_out(decision)
    machine.live(60)
    assert not machine.state.ladder.demotion_is_ours
    assert not machine.state.ladder.has_done_something


@pytest.mark.parametrize("off", [True, False])
def test_a_pod_that_ends_while_it_is_demoted_takes_no_switch_with_it(off: bool) -> None:
    machine = demoting()
    machine.carry_out(until_demoted(machine))
    machine.guests.clear()
    machine.off, machine.online = off, GIB
    assert switched(machine.turn()) == [False]


def test_a_switch_that_cannot_be_put_back_is_tried_at_every_turn_and_told() -> None:
    machine = demoting()
    machine.carry_out(until_demoted(machine))
    machine.off = True
    for _ in range(20):
        decision = machine.turn()
        assert switched(decision) == [False]
        machine.carry_out(decision, ActionResult.FAILED)
    assert machine.state.ladder.demotion_is_ours


def test_a_switch_that_was_on_already_is_not_put_back() -> None:
    machine = demoting()
    machine.switch_demotion(True)
    decision = until_demoted(machine)
    assert (switched(decision), decision.state.ladder.demotion_is_ours) == ([], False)
    machine.off = True
    assert not any(switched(machine.turn()) for _ in range(5))


@pytest.mark.parametrize("done", [False, True], ids=["before it was switched", "after"])
def test_an_agent_killed_around_the_switch_is_followed_by_one_that_puts_it_back(done: bool) -> None:
    machine = demoting()
    until_demoted(machine)
    machine.switch_demotion(done)
    machine.online = GIB
    decision = machine.turn()
    assert switched(decision) == ([False] if done else [])
    machine.switch_demotion(False)
    assert not machine.turn().state.ladder.demotion_is_ours


def test_after_a_restart_of_the_machine_the_switch_is_no_longer_ours() -> None:
    machine = demoting()
    machine.carry_out(until_demoted(machine))
    machine.online = GIB
    facts = msgspec.structs.replace(machine.facts(), boot="another")
    decision = decide(machine.state, facts, ALLOWED, 5.0)
    assert machine.controls.demotion.enabled
    assert (switched(decision), decision.state.ladder.demotion_is_ours) == ([], False)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.floats(0, 0.9), st.booleans(), st.booleans(), st.sampled_from(ActionResult)), max_size=25
    )
)
def test_in_any_history_the_switch_is_on_only_for_a_deed_or_remembered_as_ours(
    steps: list[tuple[float, bool, bool, ActionResult]],
) -> None:
    machine = demoting()
    for share, off, carried, result in steps:
        machine.off = off
        presses(machine, share)
        decision = machine.turn()
        demotes = any(isinstance(action, Demote) for action in decision.plan.actions)
        assert not (off and demotes)
        assert True not in switched(decision) or demotes
        if carried:
            machine.carry_out(decision, result)
        assert not machine.controls.demotion.enabled or machine.state.ladder.demotion_is_ours
    machine.off = True
    machine.live(100)
    assert not machine.controls.demotion.enabled
    assert not machine.state.ladder.demotion_is_ours


# --- how much, and where to ----------------------------------------------------------------------------------


def test_a_far_node_is_left_its_reserve() -> None:
    machine = demoting(far_total=8 * GIB, far_taken=8 * GIB - 600 * MIB)
    [action] = [each for each in until_demoted(machine).plan.actions if isinstance(each, Demote)]
    assert action.bytes <= 600 * MIB - 8 * GIB // 20
    assert action.leave == {2: int(8 * GIB * 0.05)}
    full = demoting(far_total=8 * GIB, far_taken=8 * GIB)
    assert "Demote" not in kinds(full.live(300))


def test_a_pod_that_suffers_from_its_throttle_is_demoted_and_not_evicted() -> None:
    machine = demoting()
    machine.guests[0].pressure = 50.0
    assert kinds(machine.live(200)) == ["Throttle", "Demote"]


@pytest.mark.parametrize(
    ("changes", "migrate", "done"),
    [
        ({}, False, None),
        ({}, True, MovePages),
        ({"settings": msgspec.structs.replace(ALLOWED, swap=True)}, False, Demote),
        ({"swap_free": 0}, False, Demote),
    ],
    ids=["left alone", "moved", "swap is allowed", "there is no swap"],
)
def test_a_pod_that_the_kernel_might_swap_is_not_demoted(
    changes: dict[str, object], migrate: bool, done: type | None
) -> None:
    pod = guest(anon=20)
    # Containers without a limit: the pod's swap is as the kubelet left it.
    pod.swap_limit, pod.sidecar_without_limit = None, True
    controls = msgspec.structs.replace(DEMOTES, migrate=migrate)
    options: dict[str, Any] = {"far_total": 32 * GIB, "controls": controls, "settings": ALLOWED}
    machine = pressed(pod, **{**options, "swap_free": GIB, **changes})
    found = {type(action) for action in machine.live(100)} & {Demote, MovePages}
    assert found == ({done} if done else set())


def test_a_demotion_that_fails_is_not_tried_again_and_the_next_rung_comes() -> None:
    machine = demoting(share=0.9)
    decision = until_demoted(machine)
    machine.switch_demotion(True)
    machine.carry_out(decision, ActionResult.FAILED)
    done = machine.live(200)
    assert "Demote" not in kinds(done)
    assert "Evict" in kinds(done)
    assert not machine.controls.demotion.enabled


NODES = (
    NumaMemory(id=0, total=GIB, free=0, distances={0: 10, 1: 20, 2: 40, 3: 50}),
    NumaMemory(id=1, total=GIB, free=0, distances={0: 20, 1: 10, 2: 50, 3: 40}),
    NumaMemory(id=2, total=GIB, free=0, has_cpus=False, distances={0: 40, 1: 50, 2: 10, 3: 60}),
    NumaMemory(id=3, total=GIB, free=0, has_cpus=False, distances={0: 50, 1: 40, 2: 60, 3: 10}),
)


def test_the_kernel_demotes_to_the_nearest_of_the_next_lower_tier() -> None:
    flat = Demotion(tiers={0: 4, 1: 4, 2: 22, 3: 22})
    assert [demotion.targets(id, flat, NODES) for id in range(4)] == [[2], [3], [], []]
    steep = Demotion(tiers={0: 4, 1: 4, 2: 22, 3: 30})
    assert [demotion.targets(id, steep, NODES) for id in range(4)] == [[2], [2], [3], []]


@pytest.mark.parametrize(
    ("controls", "far", "why"),
    [
        (DEMOTES, {2}, ""),
        (V1, {2}, "cgroup v1 has no memory.reclaim"),
        (msgspec.structs.replace(DEMOTES, reclaim=False), {2}, "no memory.reclaim"),
        (V2, {2}, "not looked for yet"),
        # Fast memory without CPUs is far by its looks, and in an upper tier.
        (msgspec.structs.replace(DEMOTES, demotion=Demotion(tiers={0: 4, 2: 2})), {2}, "lower memory tier"),
        (msgspec.structs.replace(DEMOTES, demotion=Demotion(tiers={0: 4, 2: 4})), {2}, "lower memory tier"),
        (msgspec.structs.replace(DEMOTES, demotion=Demotion(tiers={0: 4, 2: 22, 3: 22})), {2}, "memory tier"),
        (
            msgspec.structs.replace(DEMOTES, demotion=Demotion(tiers={0: 4, 2: 30, 3: 22})),
            {2},
            "also demote to NUMA 3",
        ),
    ],
)
def test_why_the_kernel_is_not_asked_to_demote(controls: MemoryControls, far: set[int], why: str) -> None:
    told = demotion.why_no_demotion(controls, far, ALLOWED)
    assert why in told
    assert bool(told) is bool(why)


# --- the way back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"migrate": True}, "pages are moved back"),
        ({}, "the kernel brings back pages that are used (kernel.numa_balancing is 2)"),
        ({"demotion": Demotion(tiers={0: 4, 2: 22})}, "none until the pod frees them"),
    ],
)
def test_the_way_back_is_told(changes: dict[str, object], told: str) -> None:
    controls = msgspec.structs.replace(DEMOTES, **changes)
    assert told in rungs_here(controls, FAR, ALLOWED)[height(Rung.FAR)].way_back
    machine = demoting(controls=controls)
    decision = until_demoted(machine)
    [action] = [each for each in decision.plan.actions if isinstance(each, Demote)]
    assert told in action.reason
    machine.carry_out(decision)
    machine.online = GIB
    done: list[PodAction] = []
    notes: list[str] = []
    for _ in range(30):
        decision = machine.turn()
        done += on_pods(decision)
        notes += decision.plan.notes
        machine.carry_out(decision)
    assert any(isinstance(each, ReturnPages) for each in done) is controls.migrate
    assert controls.migrate or any(told in note for note in notes)
    assert machine.state.ladder == msgspec.structs.replace(
        MemoryState().ladder, since=machine.state.ladder.since
    ), "no pod stays throttled because pages stay far"
