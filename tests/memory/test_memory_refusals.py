"""Pods that are hard to get rid of: the API refuses, or their use is unknown."""

import itertools

import msgspec

from colocate.memory.actions import ActionResult, Evict, PodAction, Recreate
from colocate.memory.decision import MemoryDecision
from colocate.memory.explanation import explain
from tests.memory.nodes import Machine, ids, kinds
from tests.memory.pressing import guest, on_pods, pressed


def asked_to_go(machine: Machine, seconds: float, result: ActionResult) -> list[float]:
    """When evictions were asked for, each of which ends in one way."""
    times = []
    for _ in range(int(seconds / 10)):
        decision = machine.turn()
        if any(isinstance(action, Evict) for action in decision.plan.actions):
            times.append(machine.now)
        machine.carry_out(decision, result)
    return times


def when_asked(machine: Machine, kind: type[PodAction]) -> MemoryDecision:
    """The first decision with such an action."""
    for _ in range(60):
        decision = machine.turn()
        if any(isinstance(action, kind) for action in decision.plan.actions):
            return decision
        machine.carry_out(decision)
    raise AssertionError(f"{kind.__name__} was never asked for")


def test_an_eviction_that_the_api_refuses_is_asked_for_again_after_ever_longer_pauses() -> None:
    machine = pressed(guest(anon=20), share=0.9)
    times = asked_to_go(machine, 7200, ActionResult.REFUSED)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    # It is known to be refused a turn after it was asked for.
    assert pauses[:6] == [40.0, 70.0, 130.0, 250.0, 490.0, 610.0]
    assert set(pauses[5:]) == {610.0}
    said = " ".join(explain(machine.turn(), machine.settings))
    assert "in a row; the agent tries again after 600 s (as the test wants)" in said
    assert "No rung is left to try" in said


def test_once_the_right_is_granted_the_pod_goes() -> None:
    machine = pressed(guest(anon=20), share=0.9)
    assert asked_to_go(machine, 120, ActionResult.REFUSED)
    assert kinds(machine.live(120)) == ["Evict"]
    assert machine.guests == []


def test_a_refused_eviction_does_not_keep_other_pods_from_leaving() -> None:
    machine = pressed(guest(anon=20), guest(anon=1, uid="other", blocks=ids(70, 71)), share=0.9)
    machine.carry_out(when_asked(machine, Evict), ActionResult.REFUSED)
    evicted = [action.pod.uid for action in on_pods(machine.turn()) if isinstance(action, Evict)]
    assert evicted == ["other"]


def test_a_pod_that_cannot_be_created_elsewhere_is_evicted_instead() -> None:
    bare = msgspec.structs.replace(guest(anon=20), controller="", may_move=True)
    machine = pressed(bare, share=0.9)
    machine.carry_out(when_asked(machine, Recreate), ActionResult.REFUSED)
    assert kinds(machine.live(60)) == ["Evict"]


def test_a_pod_that_runs_and_cannot_be_read_is_evicted_by_its_blocks_after_those_that_can() -> None:
    unread = guest(anon=8, uid="unread", blocks=ids(*range(20)))
    machine = pressed(unread, guest(anon=1, uid="read", blocks=ids(70, 71)), share=0.9)
    unread.readable = False
    evicted = [action for action in machine.live(300) if isinstance(action, Evict)]
    assert [action.pod.uid for action in evicted] == ["read", "unread"]
    assert "gives back 10 GiB, going by its blocks, because its use cannot be read" in evicted[1].reason


def test_a_pod_that_has_not_started_and_has_no_control_group_uses_nothing_that_could_be_given_back() -> None:
    early = msgspec.structs.replace(guest(anon=0), started=False, readable=False)
    machine = pressed(early, share=0.9)
    assert machine.live(300) == []
    assert machine.guests == [early]
