"""How a debt is paid, rung by rung, and how everything comes back."""

import msgspec
import pytest

from colocate.errors import UserError
from colocate.memory.actions import (
    Ease,
    Evict,
    MovePages,
    PodAction,
    Reclaim,
    Recreate,
    ReturnPages,
    SetLimit,
    Throttle,
    Unthrottle,
)
from colocate.memory.decide import Decision
from colocate.memory.explain import bar, explain
from colocate.memory.facts import Result
from colocate.memory.rung import Rung
from colocate.memory.rungs import rungs_here
from colocate.memory.settings import MemorySettings
from colocate.memory.state import State, from_json, to_json
from colocate.model.memory import ContainerMemory, KubeletReserves, MemoryControls, NodeWord
from tests.memory.nodes import GIB, MIB, SETTINGS, V1, V2, Guest, Machine, ids, kinds

BLOCKS = ids(*range(60))


def guest(anon: float = 20, cache: float = 0, uid: str = "guest", blocks: tuple[str, ...] = BLOCKS) -> Guest:
    limit = len(blocks) * SETTINGS.block_size
    return Guest(uid=uid, ids=blocks, anon=int(anon * GIB), cache=int(cache * GIB), limit=limit)


def pressed(*guests: Guest, share: float = 0.4, **machine: object) -> Machine:
    """A machine whose blocks are held, where online work then grows into `share` of the margin."""
    made = msgspec.structs.replace(Machine(guests=list(guests)), **machine)
    made.turn()
    presses(made, share)
    return made


def presses(machine: Machine, share: float) -> None:
    decision = machine.turn()
    balance = decision.balance
    machine.online = balance.capacity - balance.safety - balance.used - machine.system
    machine.online += int(share * decision.expected.margin) - sum(decision.usage.besides.values())


def on_pods(decision: Decision) -> list[PodAction]:
    return [action for action in decision.plan.actions if isinstance(action, PodAction)]


def test_free_blocks_are_withdrawn_in_the_very_turn_in_which_online_work_grows() -> None:
    machine = pressed(guest())
    decision = machine.turn()
    assert decision.offered == 0
    assert decision.state.ladder.rung is Rung.WITHDRAW
    assert on_pods(decision) == []


def test_a_debt_within_the_tolerance_touches_nobody() -> None:
    machine = pressed(guest(cache=5), share=0.2)
    assert machine.live(600) == []
    decision = machine.turn()
    assert decision.balance.debt > 0
    assert decision.state.debt is not None
    assert decision.state.debt.since < decision.state.clock - 500


def test_what_pods_hold_but_do_not_use_is_a_debt_on_paper_that_touches_nobody() -> None:
    machine = Machine(guests=[guest(anon=1)], online=40 * GIB)
    assert machine.live(600) == []
    decision = machine.turn()
    assert decision.balance.debt > 0
    assert decision.balance.due == 0
    assert "none of it is needed now" in " ".join(explain(decision, machine.settings))


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
        machine.carry_out(decision, Result.FAILED)
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
    assert "is not let go yet: it may grow by 10 GiB." in " ".join(machine.turn().plan.notes)


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


def test_who_gives_last_is_eased_first_and_nobody_gets_the_same_room_twice() -> None:
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
        machine.carry_out(machine.turn(), Result.FAILED)
    assert kinds(machine.live(60)) == ["Ease"]


def test_a_throttle_gives_way_to_far_pages_even_when_what_is_due_is_within_the_tolerance() -> None:
    machine = pressed(guest(anon=20))
    machine.live(30)
    machine.online -= int(0.2 * machine.turn().expected.margin)
    assert machine.turn().balance.due > 0
    assert machine.live(600) == []
    assert "for which nobody is evicted: throttled pods stay so" in " ".join(machine.turn().plan.notes)
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
    assert "is held at what it uses: it loses 50 % of its time" in " ".join(decision.plan.notes)


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
    machine.carry_out(decision, Result.FAILED)
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


def test_far_pages_of_which_nobody_can_say_where_they_lie_do_not_keep_a_pod_throttled_for_ever() -> None:
    machine = pressed(guest(anon=20), far_total=32 * GIB)
    assert kinds(machine.live(120)) == ["Throttle", "MovePages"]
    machine.by_node, machine.online = False, 8 * GIB
    said: list[str] = []
    for _ in range(30):
        decision = machine.turn()
        said += decision.plan.notes
        machine.carry_out(decision)
    assert any("Nobody can say where the memory of colocation-memory/guest lies" in each for each in said)
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


def test_pods_go_by_priority_then_by_what_they_pay_then_the_youngest() -> None:
    def made(uid: str, first: int, priority: int, anon: float, created: float) -> Guest:
        pod = guest(anon=anon, uid=uid, blocks=ids(*range(first, first + 12)))
        pod.priority, pod.created = priority, created
        return pod

    machine = pressed(
        made("precious", 0, 9, 6, 1),
        made("small", 12, 0, 1, 9),
        made("old", 24, 0, 5, 1),
        made("young", 36, 0, 5, 2),
    )
    decision = machine.turn()
    assert [each.uid for each in decision.pods] == ["young", "old", "small", "precious"]
    gone = [action.pod.uid for action in machine.live(120) if isinstance(action, Evict)]
    assert gone == ["young"]


def test_an_eviction_that_a_budget_stops_makes_way_for_the_next_pod_and_is_asked_for_again() -> None:
    first, second = guest(10, uid="a", blocks=ids(*range(20))), guest(10, uid="b", blocks=ids(*range(20, 40)))
    first.created = 5.0
    machine = pressed(first, second)
    machine.live(40)
    decision = machine.turn()
    assert [action.pod.uid for action in on_pods(decision)] == ["a"]
    machine.carry_out(decision, Result.BLOCKED)
    decision = machine.turn()
    assert [action.pod.uid for action in on_pods(decision)] == ["b"]
    machine.carry_out(decision, Result.BLOCKED)
    asked = [on_pods(machine.turn()) for _ in range(4)]
    assert any(actions and actions[0].pod.uid == "a" for actions in asked)


def test_while_the_api_is_away_evictions_wait_and_are_not_forgotten() -> None:
    machine = pressed(guest(anon=20), api=False)
    machine.live(60)
    assert machine.live(600) == []
    decision = machine.turn()
    assert "guest" in decision.state.ladder.leaving
    assert "as soon as the API server answers" in " ".join(decision.plan.notes)
    machine.api = True
    assert kinds(on_pods(machine.turn())) == ["Evict"]


def test_an_eviction_that_waits_is_called_off_when_memory_returns() -> None:
    machine = pressed(guest(anon=20), api=False)
    machine.live(300)
    machine.online, machine.api = 8 * GIB, True
    done = machine.live(300)
    assert kinds(done) == ["Unthrottle"]


def test_an_evicted_pod_that_does_not_go_is_counted_on_for_a_while_only() -> None:
    machine = pressed(
        guest(10, uid="a", blocks=ids(*range(20))), guest(10, uid="b", blocks=ids(*range(20, 40)))
    )
    machine.live(40)
    decision = machine.turn()
    (action,) = on_pods(decision)
    machine.carry_out(decision, Result.GONE)
    asked = [type(each) for _ in range(11) for each in on_pods(machine.turn())]
    assert asked == []
    (other,) = [each for _ in range(3) for each in on_pods(machine.turn())][:1]
    assert other.pod != action.pod


def test_a_bare_pod_that_allows_it_is_created_again_elsewhere_and_only_then() -> None:
    bare = guest(anon=20)
    bare.controller, bare.may_move = "", True
    machine = pressed(bare)
    (action,) = [each for each in machine.live(200) if isinstance(each, Evict | Recreate)]
    assert isinstance(action, Recreate)
    assert action.avoid == "node-1"


def test_a_bare_pod_that_could_not_be_created_again_is_evicted_like_others() -> None:
    bare = guest(anon=20)
    bare.controller, bare.may_move = "", True
    machine = pressed(bare)
    asked: list[PodAction] = []
    for _ in range(30):
        decision = machine.turn()
        moves = [each for each in on_pods(decision) if isinstance(each, Recreate)]
        asked += [each for each in on_pods(decision) if isinstance(each, Evict | Recreate)]
        machine.carry_out(decision, Result.FAILED if moves else Result.DONE)
    assert kinds(asked) == ["Recreate", "Evict"]


def test_pods_that_are_created_again_by_us_are_left_to_the_last_rung() -> None:
    movable = guest(10, uid="movable", blocks=ids(*range(20)))
    movable.controller, movable.may_move = "", True
    owned = guest(1, uid="owned", blocks=ids(*range(20, 40)))
    owned.priority = 9
    machine = pressed(movable, owned, share=0.49)
    gone = [action for action in machine.live(300) if isinstance(action, Evict | Recreate)]
    assert kinds(gone) == ["Evict", "Recreate"]
    assert gone[0].pod.uid == "owned"


def test_a_bare_pod_that_does_not_allow_it_is_evicted_and_it_is_said_that_it_is_lost() -> None:
    bare = guest(anon=20)
    bare.controller = ""
    (action,) = [each for each in pressed(bare).live(200) if isinstance(each, Evict | Recreate)]
    assert isinstance(action, Evict)
    assert "nothing will create it again" in action.reason


def test_a_pod_with_a_sidecar_without_limit_is_reclaimed_from_but_not_bound() -> None:
    pod = guest(anon=20, cache=0.5)
    pod.limit, pod.sidecar_without_limit = None, True
    done = [action for action in pressed(pod).live(300) if not isinstance(action, SetLimit)]
    assert kinds(done) == ["Reclaim", "Evict"]


@pytest.mark.parametrize("off", [False, True], ids=["memory returns", "off"])
def test_a_pod_that_is_said_to_hold_nothing_any_more_gets_back_what_was_taken_from_it(off: bool) -> None:
    machine = pressed(guest(anon=20, cache=0.5), far_total=32 * GIB)
    assert kinds(machine.live(120)) == ["Reclaim", "Throttle", "MovePages"]
    machine.guests[0].listed = False
    machine.online, machine.off = 8 * GIB, off
    assert {ReturnPages, Unthrottle} <= {type(action) for action in machine.live(300)}
    assert (machine.guests[0].far, machine.guests[0].high) == (0, None)
    last = machine.turn()
    assert not last.state.ladder.has_done_something
    assert last.state.holders == {}


def test_nothing_more_is_taken_from_a_pod_that_is_said_to_hold_nothing_any_more() -> None:
    machine = pressed(guest(anon=20, cache=0.5), far_total=32 * GIB)
    machine.live(120)
    machine.guests[0].listed = False
    machine.online += 4 * GIB
    taken = [action for action in machine.live(300) if not isinstance(action, SetLimit)]
    assert taken == []


def test_a_pod_that_asks_for_no_block_is_left_alone_whatever_it_is_said_to_hold() -> None:
    pod = guest(anon=20, cache=0.5)
    pod.asks = False
    assert pressed(pod, far_total=32 * GIB, share=0.9).live(300) == []


INIT = ContainerMemory(name="fetch", limit=GIB, init=True)


@pytest.mark.parametrize(
    ("other", "started", "bound"),
    [
        (ContainerMemory(name="logs", limit=GIB), True, False),
        (ContainerMemory(name="proxy", limit=GIB, init=True, sidecar=True), True, False),
        (INIT, False, False),
        (INIT, True, True),
        (ContainerMemory(name="more", blocks=1), True, True),
    ],
    ids=["container", "sidecar", "init container that may run", "init container that has ended", "blocks"],
)
@pytest.mark.parametrize("controls", [V1, V2], ids=["v1", "v2"])
def test_a_container_without_blocks_is_not_held_down_with_its_pod(
    other: ContainerMemory, started: bool, bound: bool, controls: MemoryControls
) -> None:
    pod = guest(anon=4, cache=0.6)
    pod.others, pod.started = (other,), started
    found = {type(action) for action in pressed(pod, controls=controls).live(300)}
    assert (Throttle in found) == (bound and controls is V2)
    assert (Reclaim in found) == (bound or controls is V2)


def test_a_limit_that_somebody_reset_is_set_again() -> None:
    machine = Machine(guests=[guest(anon=1)])
    machine.turn()
    machine.guests[0].limit = None
    (action,) = on_pods(machine.turn())
    assert isinstance(action, SetLimit)
    assert (action.limit, action.swap) == (30 * GIB, 0)
    assert "Found: none." in action.reason


def test_off_undoes_everything_at_once_and_withdraws_every_block() -> None:
    machine = pressed(guest(anon=20), far_total=32 * GIB)
    machine.live(120)
    machine.off = True
    done = machine.live(60)
    assert kinds(done)[-1] == "RestoreLimit"
    assert ReturnPages not in {type(action) for action in done[1:]}
    assert Unthrottle in {type(action) for action in done}
    assert (machine.guests[0].high, machine.guests[0].limit) == (None, None)
    assert machine.turn().state.blocks.healthy() == frozenset()


def test_off_restores_every_pod_but_the_one_whose_memory_high_is_stuck() -> None:
    first, second = guest(6, uid="a", blocks=ids(*range(20))), guest(6, uid="b", blocks=ids(*range(20, 40)))
    machine = pressed(first, second)
    while "a" not in machine.state.ladder.throttled:
        machine.carry_out(machine.turn())
    machine.off = True
    for _ in range(6):
        machine.carry_out(machine.turn())
        machine.outcomes = tuple(
            each
            for each in machine.outcomes
            if isinstance(each.action, Unthrottle) and each.action.pod.uid == "b"
        )
    assert [each.limit for each in machine.guests] == [10 * GIB, None]


def test_off_gives_swap_back_even_where_the_limit_is_as_the_kubelet_left_it() -> None:
    machine = Machine(guests=[guest(anon=1)], off=True)
    machine.guests[0].limit = None
    assert kinds(machine.live(30)) == ["RestoreLimit"]
    assert machine.guests[0].swap_limit is None
    assert machine.live(30) == []


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
            {Rung.RECLAIM: "cannot be written", Rung.THROTTLE: "cannot be written", Rung.FAR: "CAP_SYS_NICE"},
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


def test_no_deadline_runs_out_while_nobody_looks() -> None:
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
        from_json(data)


def test_an_agent_without_the_api_still_knows_its_pods() -> None:
    machine = pressed(guest(anon=20))
    state = from_json(to_json(machine.state))
    assert state.pods["guest"].containers
    assert State() == from_json(to_json(State()))


def test_the_bar_shows_how_much_of_the_safety_a_debt_has_taken() -> None:
    machine = Machine(guests=[guest(anon=1)], online=28 * GIB)
    decision = machine.turn()
    parts = bar(decision)
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
    assert "10 more blocks could be offered: there has been room for 0 s" in " ".join(
        explain(machine.turn(), machine.settings)
    )


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


class NodeWithoutConfigz(Machine):
    """Its kubelet evicts below 10 GiB, which nobody may ask."""

    def word(self) -> NodeWord:
        return NodeWord(
            reserves=KubeletReserves(capacity=self.total, allocatable=self.total - 10 * GIB),
        )


def test_the_ladder_acts_before_a_kubelet_evicts_that_was_not_asked_for_its_threshold() -> None:
    machine = NodeWithoutConfigz(system=10 * GIB, guests=[guest(anon=10, blocks=ids(*range(20)))])
    machine.live(30)
    available = machine.total
    while not any(isinstance(action, Throttle | Evict) for action in machine.live(10)):
        machine.online += GIB // 4
        node = machine.facts().node
        available = node.total - node.working_set
        assert available > 10 * GIB, "the kubelet evicts first"
    assert available > 12 * GIB


def database(gib: int) -> ContainerMemory:
    return ContainerMemory(name="db", limit=gib * GIB, request=gib * GIB)


def test_a_pod_is_not_evicted_for_what_a_database_beside_its_blocks_requested() -> None:
    """One block, and a database that grows within its request: whoever holds the sold memory gives it back."""
    mixed = Guest(uid="mixed", ids=ids(0), anon=GIB // 4, others=(database(24),))
    machine = Machine(guests=[mixed])
    machine.live(90)
    offered = machine.turn().offered
    sold = ids(*range(1, offered + 1))
    machine.guests.append(Guest(uid="sold", ids=sold, anon=offered * SETTINGS.block_size))
    machine.live(60)
    mixed.anon = 20 * GIB
    done = machine.live(300)
    assert {action.pod.uid for action in done if not isinstance(action, SetLimit)} == {"sold"}
    assert kinds(done)[-1] == "Evict"
    assert machine.guests == [mixed]


def test_alone_on_the_node_it_is_not_evicted_either_and_it_is_said_why() -> None:
    machine = pressed(Guest(uid="mixed", ids=ids(0), anon=20 * GIB, others=(database(24),)), share=0.9)
    assert kinds(machine.live(300)) == ["SetLimit"]
    said = " ".join(explain(machine.turn(), machine.settings))
    assert "20 GiB is what they requested besides their blocks: it counts as online" in said
    assert "No rung is left to try" in said


def test_what_it_uses_beyond_its_request_is_of_its_blocks_and_its_end_pays_with_all_it_uses() -> None:
    mixed = Guest(uid="mixed", ids=BLOCKS, anon=26 * GIB, others=(database(24),))
    machine = pressed(mixed, guest(anon=1, uid="other", blocks=ids(70, 71)), share=0.9)
    done = [action for action in machine.live(300) if isinstance(action, Evict)]
    assert [action.pod.uid for action in done] == ["mixed"]
    assert "gives back 2 GiB of blocks, and 24 GiB besides" in done[0].reason


def test_no_more_pages_of_a_pod_go_to_far_nodes_than_its_blocks_have() -> None:
    mixed = Guest(uid="mixed", ids=BLOCKS, anon=26 * GIB, others=(database(24),))
    machine = pressed(mixed, far_total=32 * GIB, share=0.9)
    moved = [action for action in machine.live(60) if isinstance(action, MovePages)]
    assert sum(action.bytes for action in moved) == 2 * GIB
