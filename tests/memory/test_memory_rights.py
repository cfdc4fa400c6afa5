"""Namespaces in which this agent may not evict: their pods are not counted on, others go, and it is said."""

import msgspec
import pytest

from colocate.memory.actions import ActionResult, Evict, PodAction, Recreate
from colocate.memory.explanation import explain
from colocate.memory.settings import Rung
from tests.memory.nodes import Guest, Machine, ids, kinds
from tests.memory.pressing import guest, on_pods, pressed

FORBIDDEN = frozenset({"tenant"})


def tenant(anon: float = 10, uid: str = "tenant", blocks: tuple[str, ...] = ids(*range(20))) -> Guest:
    """A pod of a namespace without a RoleBinding."""
    return msgspec.structs.replace(guest(anon, uid=uid, blocks=blocks), namespace="tenant")


def gone(machine: Machine, seconds: float = 300) -> list[PodAction]:
    return [action for action in machine.live(seconds) if isinstance(action, Evict | Recreate)]


def test_a_pod_that_may_not_be_evicted_is_passed_over_for_the_next() -> None:
    first = tenant()
    first.created = 9.0
    machine = pressed(first, guest(10, uid="other", blocks=ids(*range(20, 40))), without_eviction=FORBIDDEN)
    assert [each.uid for each in machine.turn().pods] == ["tenant", "other"]
    assert [action.pod.uid for action in gone(machine)] == ["other"]


def test_where_no_pod_may_be_evicted_all_else_is_done_and_the_namespace_is_named() -> None:
    machine = pressed(tenant(20, blocks=ids(*range(60))), share=0.9, without_eviction=FORBIDDEN)
    done = machine.live(600)
    assert "Throttle" in kinds(done)
    assert not any(isinstance(action, Evict | Recreate) for action in done)
    decision = machine.turn()
    said = " ".join(explain(decision, machine.settings))
    assert "this agent may not evict pods of namespace tenant" in said
    assert "No rung is left to try" in said
    assert decision.state.ladder.leaving == {}


def test_a_right_that_is_taken_away_while_a_pod_waits_to_go_keeps_no_other_from_going() -> None:
    first = tenant()
    first.created = 9.0
    machine = pressed(first, guest(10, uid="other", blocks=ids(*range(20, 40))), api=False)
    machine.live(100)
    assert "tenant" in machine.state.ladder.leaving
    machine.api, machine.without_eviction = True, FORBIDDEN
    decision = machine.turn()
    assert [action.pod.uid for action in on_pods(decision)] == ["other"]
    assert "tenant" not in decision.state.ladder.leaving


def test_no_pod_waits_for_one_that_was_chosen_and_may_no_longer_be_evicted() -> None:
    machine = pressed(tenant(20, blocks=ids(*range(60))), share=0.9, api=False)
    machine.live(100)
    assert "tenant" in machine.state.ladder.leaving
    machine.api, machine.without_eviction = True, FORBIDDEN
    decision = machine.turn()
    assert decision.state.ladder.leaving == {}
    assert "No rung is left to try" in " ".join(decision.plan.notes)


def test_a_right_that_is_granted_counts_from_the_next_turn_on() -> None:
    machine = pressed(tenant(20, blocks=ids(*range(60))), share=0.9, without_eviction=FORBIDDEN)
    assert gone(machine) == []
    machine.without_eviction = frozenset()
    assert [action.pod.uid for action in on_pods(machine.turn())] == ["tenant"]


@pytest.mark.parametrize(("without", "by"), [(FORBIDDEN, Evict), (frozenset(), Recreate)])
def test_a_bare_pod_is_created_again_only_where_pods_may_be_created(
    without: frozenset[str], by: type[PodAction]
) -> None:
    bare = tenant(20, blocks=ids(*range(60)))
    bare.controller, bare.may_move = "", True
    machine = pressed(bare, without_creation=without)
    assert [type(action) for action in gone(machine)] == [by]


def test_an_eviction_that_is_under_way_is_counted_on_though_the_right_is_gone() -> None:
    machine = pressed(tenant(), guest(10, uid="other", blocks=ids(*range(20, 40))))
    machine.guests[0].created = 9.0
    machine.live(40)
    decision = machine.turn()
    assert [action.pod.uid for action in on_pods(decision)] == ["tenant"]
    machine.carry_out(decision, ActionResult.GONE)
    machine.without_eviction = FORBIDDEN
    decision = machine.turn()
    assert on_pods(decision) == []
    assert decision.state.ladder.leaving["tenant"].accepted
    assert decision.state.ladder.rung is Rung.EVICT
