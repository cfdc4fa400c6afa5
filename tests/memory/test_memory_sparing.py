"""Which pods the ladder spares, and which limits stay: holders of nothing, containers beside blocks, off."""

import pytest

from colocate.memory.actions import (
    Evict,
    MovePages,
    Reclaim,
    ReturnPages,
    SetLimit,
    Throttle,
    Unthrottle,
)
from colocate.memory.explanation import explain
from colocate.model.memory import ContainerMemory, KubeletReserves, MemoryControls, NodeWord
from tests.memory.nodes import GIB, SETTINGS, V1, V2, Guest, Machine, ids, kinds
from tests.memory.pressing import BLOCKS, guest, on_pods, pressed


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


def test_a_limit_that_was_reset_is_set_again() -> None:
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


class NodeWithoutConfigz(Machine):
    """Its kubelet evicts below 10 GiB, which the agent may not ask."""

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
    """One block, and a database that grows within its request: the pod with the sold memory gives it back."""
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
    assert "20 GiB is memory requested besides blocks; it counts as online" in said
    assert "No rung is left to try" in said


def test_what_it_uses_beyond_its_request_is_of_its_blocks_and_its_end_pays_with_all_it_uses() -> None:
    mixed = Guest(uid="mixed", ids=BLOCKS, anon=26 * GIB, others=(database(24),))
    machine = pressed(mixed, guest(anon=1, uid="other", blocks=ids(70, 71)), share=0.9)
    done = [action for action in machine.live(300) if isinstance(action, Evict)]
    assert [action.pod.uid for action in done] == ["mixed"]
    assert "gives back 2 GiB of blocks, and 24 GiB that it requested besides" in done[0].reason


def test_no_more_pages_of_a_pod_go_to_far_nodes_than_its_blocks_have() -> None:
    mixed = Guest(uid="mixed", ids=BLOCKS, anon=26 * GIB, others=(database(24),))
    machine = pressed(mixed, far_total=32 * GIB, share=0.9)
    moved = [action for action in machine.live(60) if isinstance(action, MovePages)]
    assert sum(action.bytes for action in moved) == 2 * GIB
