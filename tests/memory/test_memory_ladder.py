"""How a debt is paid, rung by rung, and how everything comes back."""

import msgspec
import pytest

from colocate.errors import UserError
from colocate.memory.actions import (
    ActionResult,
    Ease,
    MovePages,
    Reclaim,
    Throttle,
    Unthrottle,
)
from colocate.memory.explanation import explain, memory_bar
from colocate.memory.ladder.rungs import rungs_here
from colocate.memory.settings import MemorySettings, Rung
from colocate.memory.state import MemoryState, state_from_json, state_to_json
from colocate.model.memory import MemoryControls
from tests.memory.nodes import GIB, MIB, SETTINGS, V1, V2, Machine, ids, kinds
from tests.memory.pressing import guest, on_pods, pressed


def test_free_blocks_are_withdrawn_in_the_very_turn_in_which_online_work_grows() -> None:
    machine = pressed(guest())
    decision = machine.turn()
    assert decision.offered == 0
    assert decision.state.ladder.rung is Rung.WITHDRAW
    assert on_pods(decision) == []


def test_a_debt_within_the_tolerance_touches_no_pod() -> None:
    machine = pressed(guest(cache=5), share=0.2)
    assert machine.live(600) == []
    decision = machine.turn()
    assert decision.balance.debt > 0
    assert decision.state.debt is not None
    assert decision.state.debt.since < decision.state.clock - 500


def test_what_pods_hold_but_do_not_use_is_a_debt_on_paper_that_touches_no_pod() -> None:
    machine = Machine(guests=[guest(anon=1)], online=40 * GIB)
    assert machine.live(600) == []
    decision = machine.turn()
    assert decision.balance.debt > 0
    assert decision.balance.due == 0
    assert "Online work needs none of the debt now" in " ".join(explain(decision, machine.settings))


def test_a_pod_that_uses_more_than_its_blocks_is_counted_by_what_it_uses() -> None:
    within, beyond = (
        Machine(guests=[guest(anon=anon, blocks=ids(0, 1))]).turn().balance for anon in (1.0, 3.0)
    )
    assert (within.held, beyond.held) == (GIB, 3 * GIB)
    assert within.free - beyond.free == 4


def test_v2_goes_down_the_whole_ladder_in_order() -> None:
    machine = pressed(guest(anon=20, cache=0.25), far_total=GIB // 4)
    assert kinds(machine.live(300)) == ["Reclaim", "Throttle", "MovePages", "Evict"]
    assert machine.guests == []


def test_v1_has_no_throttle() -> None:
    machine = pressed(guest(anon=4, cache=0.6), controls=V1, far_total=GIB // 4)
    done = machine.live(300)
    assert kinds(done) == ["Reclaim", "MovePages", "Evict"]


@pytest.mark.parametrize("left_out", [Rung.RECLAIM, Rung.THROTTLE, Rung.FAR, Rung.EVICT])
def test_a_rung_that_is_left_out_is_not_used_and_the_next_is(left_out: Rung) -> None:
    names = {
        Rung.RECLAIM: "Reclaim",
        Rung.THROTTLE: "Throttle",
        Rung.FAR: "MovePages",
        Rung.EVICT: "Evict",
    }
    settings = msgspec.structs.replace(SETTINGS, without=(left_out,))
    machine = pressed(guest(anon=20, cache=0.25), far_total=GIB // 4, settings=settings)
    assert kinds(machine.live(300)) == [name for rung, name in names.items() if rung is not left_out]


def test_a_rung_that_pays_is_the_last() -> None:
    machine = pressed(guest(anon=10, cache=8))
    assert kinds(machine.live(600)) == ["Reclaim"]
    assert machine.turn().balance.due < MIB


def test_each_rung_has_until_its_deadline() -> None:
    machine = pressed(guest(anon=20))
    assert machine.turn().state.ladder.rung is Rung.WITHDRAW
    assert machine.turn(9).state.ladder.rung is Rung.WITHDRAW
    decision = machine.turn(1)
    # There is no cache: reclaim has nothing to try.
    assert decision.plan.stood_on == (Rung.RECLAIM, Rung.THROTTLE)
    machine.carry_out(decision)
    assert machine.turn(29).state.ladder.rung is Rung.THROTTLE
    assert machine.turn(1).state.ladder.rung is Rung.EVICT


def test_with_half_of_the_margin_gone_every_turn_is_a_rung() -> None:
    machine = pressed(guest(anon=20, cache=1), share=0.9)
    rungs = []
    for _ in range(4):
        decision = machine.turn(2)
        rungs.append(decision.state.ladder.rung)
        machine.carry_out(decision)
    assert rungs[:3] == [Rung.RECLAIM, Rung.THROTTLE, Rung.EVICT]


def test_memory_comes_back_in_reverse_pages_then_throttles_then_blocks() -> None:
    machine = pressed(guest(anon=20, cache=0.5), far_total=32 * GIB)
    assert kinds(machine.live(120)) == ["Reclaim", "Throttle", "MovePages"]
    assert machine.guests[0].far > 0
    machine.online = 8 * GIB
    assert machine.live(50) == []
    assert kinds(machine.live(200)) == ["ReturnPages", "Unthrottle"]
    assert (machine.guests[0].far, machine.guests[0].high) == (0, None)
    decision = machine.turn()
    assert decision.state.ladder.rung is None
    assert decision.offered == decision.balance.free > 0


def test_no_block_is_offered_before_pods_have_back_what_was_taken_from_them() -> None:
    machine = pressed(guest(anon=20), far_total=32 * GIB)
    machine.live(120)
    machine.online = 8 * GIB
    for _ in range(30):
        decision = machine.turn()
        if decision.state.ladder.has_done_something:
            assert decision.offered == 0
        machine.carry_out(decision)
    assert decision.offered > 0


def test_what_could_not_be_undone_is_tried_again() -> None:
    machine = pressed(guest(anon=20))
    machine.live(30)
    machine.online = 8 * GIB
    tried = 0
    for _ in range(30):
        decision = machine.turn()
        tried += len(on_pods(decision))
        machine.carry_out(decision, ActionResult.FAILED)
    assert tried > 5
    assert "guest" in decision.state.ladder.throttled
    machine.live(60)
    assert machine.guests[0].high is None


def test_a_pod_is_let_go_only_when_there_is_room_for_what_it_may_grow_to() -> None:
    machine = pressed(guest(anon=20))
    machine.live(30)
    machine.online -= 6 * GIB
    decision = machine.turn()
    assert 0 < decision.balance.slack < 10 * GIB
    assert Unthrottle not in {type(action) for action in machine.live(600)}
    assert "stays throttled for now: it may grow by 10 GiB." in " ".join(machine.turn().plan.notes)


def test_until_then_its_memory_high_follows_the_room_there_is() -> None:
    machine = pressed(guest(anon=20))
    machine.live(30)
    machine.online -= 6 * GIB
    slack = machine.turn().balance.slack
    (action,) = machine.live(600)
    assert isinstance(action, Ease)
    assert action.high == (20 * GIB + slack - SETTINGS.block_size) // 4096 * 4096
    assert machine.state.ladder.throttled["guest"].before is None
    machine.guests[0].anon = action.high
    machine.online -= 7 * GIB
    assert kinds(machine.live(600)) == ["Unthrottle"]


def test_who_gives_last_is_eased_first_and_no_two_pods_get_the_same_room() -> None:
    first = guest(9, uid="first", blocks=ids(*range(40)))
    last = guest(9, uid="last", blocks=ids(*range(40, 80)))
    last.priority = 1
    machine = pressed(first, last, share=0.45)
    while len(machine.state.ladder.throttled) < 2:
        machine.carry_out(machine.turn())
    machine.online -= 6 * GIB
    assert {action.pod.uid for action in machine.live(600)} == {"last"}


def test_an_ease_that_fails_is_tried_again() -> None:
    machine = pressed(guest(anon=20))
    machine.live(30)
    machine.online -= 6 * GIB
    for _ in range(12):
        machine.carry_out(machine.turn(), ActionResult.FAILED)
    assert kinds(machine.live(60)) == ["Ease"]


def test_a_throttle_gives_way_to_far_pages_even_when_what_is_due_is_within_the_tolerance() -> None:
    machine = pressed(guest(anon=20))
    machine.live(30)
    machine.online -= int(0.2 * machine.turn().expected.margin)
    assert machine.turn().balance.due > 0
    assert machine.live(600) == []
    assert "too little to evict a pod; throttled pods stay throttled" in " ".join(machine.turn().plan.notes)
    machine.far_total = 32 * GIB
    assert kinds(machine.live(600)) == ["MovePages"]
    assert machine.turn().balance.due < MIB


def test_a_pod_under_pressure_is_not_reclaimed_from() -> None:
    suffering = guest(anon=10, cache=8)
    suffering.pressure = 30.0
    machine = pressed(suffering)
    machine.turn()
    decision = machine.turn()
    assert decision.state.ladder.rung is Rung.THROTTLE
    assert "loses 30 % of its time" in " ".join(decision.plan.notes)


def test_a_pod_under_pressure_is_held_where_it_is_and_no_lower() -> None:
    suffering = guest(anon=0.02, cache=9)
    suffering.pressure = 50.0
    machine = pressed(suffering)
    machine.turn()
    decision = machine.turn()
    (action,) = on_pods(decision)
    assert isinstance(action, Throttle)
    assert action.high == (suffering.anon + suffering.cache) // 4096 * 4096
    assert "is throttled at what it uses, no lower: it already loses 50 % of its time" in " ".join(
        decision.plan.notes
    )


def test_a_throttled_pod_keeps_some_page_cache() -> None:
    settings = msgspec.structs.replace(SETTINGS, without=(Rung.RECLAIM,))
    pod = guest(anon=1, cache=0.5)
    machine = pressed(pod, settings=settings)
    machine.turn()
    (action,) = on_pods(machine.turn())
    assert isinstance(action, Throttle)
    assert action.high == GIB + 16 * MIB


@pytest.mark.parametrize("controls", [V1, V2], ids=["v1", "v2"])
def test_no_rung_leaves_a_pod_with_a_lower_limit_that_would_kill_it_when_it_grows(
    controls: MemoryControls,
) -> None:
    machine = pressed(guest(anon=10, cache=4), controls=controls)
    for _ in range(12):
        machine.carry_out(machine.turn())
        assert [each.limit for each in machine.guests] == [30 * GIB] * len(machine.guests)


def test_a_limit_that_a_death_left_lowered_is_put_right_even_while_the_pod_is_reclaimed_from() -> None:
    machine = pressed(guest(anon=10, cache=4), controls=V1)
    machine.turn()
    machine.guests[0].limit = 13 * GIB
    assert kinds(on_pods(machine.turn())) == ["SetLimit", "Reclaim"]


def test_a_pod_of_which_nothing_can_be_reclaimed_is_given_up() -> None:
    machine = pressed(guest(anon=10, cache=4), controls=V1)
    machine.turn()
    decision = machine.turn()
    assert kinds(on_pods(decision)) == ["Reclaim"]
    machine.carry_out(decision, ActionResult.FAILED)
    machine.api = False
    decision = machine.turn()
    assert decision.state.ladder.rung is not Rung.RECLAIM
    assert "as the test wants" in decision.plan.notes[0]


def test_pages_go_only_where_there_is_room() -> None:
    machine = pressed(guest(anon=20), far_total=8 * GIB, far_taken=8 * GIB - 600 * MIB)
    moved = [action for action in machine.live(120) if isinstance(action, MovePages)]
    # A twentieth of the far node, 410 MiB, is left free.
    assert sum(action.bytes for action in moved) <= 191 * MIB
    assert moved[0].sources == (0,)
    assert moved[0].targets == (2,)


def test_a_far_node_that_is_full_or_gone_means_the_next_rung() -> None:
    for change in ({"far_taken": 8 * GIB}, {"far_total": 0}):
        machine = pressed(guest(anon=20), **{"far_total": 8 * GIB, **change})
        assert kinds(machine.live(60)) == ["Throttle", "Evict"]


def test_a_far_node_that_vanishes_with_pages_on_it_is_no_reason_to_stay_throttled() -> None:
    machine = pressed(guest(anon=20), far_total=32 * GIB)
    machine.live(120)
    machine.far_total, machine.guests[0].far = 0, 0
    machine.online = 8 * GIB
    assert kinds(machine.live(200)) == ["Unthrottle"]


def test_far_pages_whose_nodes_are_unknown_do_not_keep_a_pod_throttled_for_ever() -> None:
    machine = pressed(guest(anon=20), far_total=32 * GIB)
    assert kinds(machine.live(120)) == ["Throttle", "MovePages"]
    machine.by_node, machine.online = False, 8 * GIB
    said: list[str] = []
    for _ in range(30):
        decision = machine.turn()
        said += decision.plan.notes
        machine.carry_out(decision)
    assert any("cannot read on which nodes the memory of colocation-memory/guest is" in each for each in said)
    assert machine.guests[0].high is None
    assert decision.state.ladder.rung is None
    assert decision.offered > 0


def test_figures_that_are_missing_for_a_moment_forget_no_far_page() -> None:
    machine = pressed(guest(anon=20), far_total=32 * GIB)
    machine.live(120)
    machine.by_node, machine.online = False, 8 * GIB
    machine.live(90)
    machine.by_node = True
    assert kinds(machine.live(120)) == ["ReturnPages", "Unthrottle"]
    assert machine.guests[0].far == 0


@pytest.mark.parametrize(
    ("controls", "far", "missing"),
    [
        (V2, {2}, {}),
        (V2, set(), {Rung.FAR: "no far NUMA node"}),
        (V1, {2}, {Rung.THROTTLE: "cgroup v1 has no memory.high"}),
        (
            MemoryControls(cgroup=2, high=True, migrate=True),
            {2},
            {Rung.RECLAIM: "no memory.reclaim"},
        ),
        (
            MemoryControls(cgroup=2, reclaim=True, high=True, writable=False),
            {2},
            {
                Rung.RECLAIM: "cannot be written",
                Rung.THROTTLE: "cannot be written",
                Rung.FAR: "may not move pages",
            },
        ),
    ],
)
def test_which_rungs_a_machine_has(controls: MemoryControls, far: set[int], missing: dict[Rung, str]) -> None:
    table = rungs_here(controls, frozenset(far), SETTINGS)
    assert [each.rung for each in table] == list(Rung)
    assert {each.rung for each in table if not each.is_here} == missing.keys()
    for each in table:
        assert missing.get(each.rung, "") in each.missing


def test_read_only_control_groups_leave_the_api() -> None:
    controls = MemoryControls(cgroup=2, reclaim=True, high=True, writable=False)
    machine = pressed(guest(anon=20, cache=4), controls=controls)
    assert kinds(machine.live(120)) == ["Evict"]


def test_no_deadline_runs_out_while_the_agent_is_down() -> None:
    machine = pressed(guest(anon=20))
    machine.live(20)
    assert machine.turn(-500.0).state.ladder.rung is Rung.THROTTLE
    for jump in (1e6, 0.0):
        before = machine.state.clock
        machine.turn(jump)
        assert machine.state.clock - before <= SETTINGS.longest_gap


def test_a_machine_that_was_started_again_goes_on_where_it_was() -> None:
    machine = pressed(guest(anon=20))
    machine.live(30)
    machine.state = msgspec.structs.replace(machine.state, boot="an earlier one", seen=1e9)
    clock, ladder = machine.state.clock, machine.state.ladder
    decision = machine.turn()
    assert decision.state.clock == clock
    assert decision.state.ladder.throttled == ladder.throttled


def test_a_throttle_that_was_stored_and_never_set_is_set_although_the_next_rung_has_come() -> None:
    machine = pressed(guest(anon=20), share=0.8, far_total=GIB // 4)
    while not any(isinstance(action, Throttle) for action in on_pods(machine.turn())):
        pass
    machine.guests[0].anon += MIB
    decision = machine.turn()
    assert decision.state.ladder.rung is Rung.FAR
    assert kinds(on_pods(decision)) == ["Throttle", "MovePages"]
    machine.carry_out(decision)
    assert machine.guests[0].high == 20 * GIB + MIB, "not below what it cannot give"
    assert Throttle not in {type(action) for action in on_pods(machine.turn())}


@pytest.mark.parametrize(
    ("data", "because"), [(b"{", "cannot be read"), (b'{"version": 9}', "has version 9")]
)
def test_a_state_that_is_none_is_refused_with_a_remedy(data: bytes, because: str) -> None:
    with pytest.raises(UserError, match=rf"{because}.*move it away"):
        state_from_json(data)


def test_an_agent_without_the_api_still_knows_its_pods() -> None:
    machine = pressed(guest(anon=20))
    state = state_from_json(state_to_json(machine.state))
    assert state.pods["guest"].containers
    assert MemoryState() == state_from_json(state_to_json(MemoryState()))


def test_the_bar_shows_how_much_of_the_safety_a_debt_has_taken() -> None:
    machine = Machine(guests=[guest(anon=1)], online=28 * GIB)
    decision = machine.turn()
    parts = memory_bar(decision)
    assert parts.debt == decision.balance.debt > 0
    assert parts.colocated + parts.debt == 30 * GIB
    assert parts.safety == decision.balance.safety - parts.debt
    assert sum(size for _, size in parts.parts()) == parts.capacity == 64 * GIB


def test_the_number_of_blocks_is_explained_with_every_figure() -> None:
    machine = Machine(settings=MemorySettings(forecast=SETTINGS.forecast))
    text = "\n".join(explain(machine.turn(), machine.settings))
    for figure in (
        "2 GiB of 64 GiB",
        "1 Burstable pod 8 GiB",
        "10% of 64 GiB: 6.4 GiB",
        "room for 94 free blocks",
    ):
        assert figure in text
    machine.online += 5 * GIB
    machine.turn()
    machine.online -= 5 * GIB
    assert "10 more blocks come in 60 s (cool-down)" in " ".join(explain(machine.turn(), machine.settings))


def test_reclaim_takes_no_more_than_its_share_at_a_time() -> None:
    machine = pressed(guest(anon=1, cache=15), share=0.49)
    machine.turn()
    (action,) = on_pods(machine.turn())
    assert isinstance(action, Reclaim)
    assert action.bytes <= 4 * GIB


def test_on_v1_some_cache_is_left_for_who_allocates_while_the_limit_is_lowered() -> None:
    machine = pressed(guest(anon=4, cache=0.6), controls=V1)
    reclaims = [action for action in machine.live(300) if isinstance(action, Reclaim)]
    assert {action.leave for action in reclaims} == {16 * MIB}
    assert sum(action.bytes for action in reclaims) == int(0.6 * GIB) // 4096 * 4096 - 16 * MIB


def test_a_throttle_never_raises_what_the_kubelet_set() -> None:
    pod = guest(anon=20)
    pod.high = 15 * GIB
    machine = pressed(pod)
    (action,) = [each for each in machine.live(30) if isinstance(each, Throttle)]
    assert action.high == 15 * GIB
