"""Who is asked to leave, in which order, and what becomes of those who do not go."""

from colocate.memory.actions import (
    ActionResult,
    Evict,
    PodAction,
    Recreate,
)
from tests.memory.nodes import GIB, Guest, ids, kinds
from tests.memory.pressing import guest, on_pods, pressed


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
    machine.carry_out(decision, ActionResult.BLOCKED)
    decision = machine.turn()
    assert [action.pod.uid for action in on_pods(decision)] == ["b"]
    machine.carry_out(decision, ActionResult.BLOCKED)
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
    machine.carry_out(decision, ActionResult.GONE)
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
        machine.carry_out(decision, ActionResult.FAILED if moves else ActionResult.DONE)
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
