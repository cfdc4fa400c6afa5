"""The decision checks namespaces, too: a pod that holds blocks against them gets nothing more."""

import msgspec
import pytest

from colocate.memory.actions import Evict, Recreate, SetLimit
from colocate.memory.explanation import explain
from colocate.memory.forecast import KoordinatorPolicy
from colocate.memory.usage import UsageView, measure
from colocate.model.memory import NodeMemory, PodMemory
from colocate.model.pod import QosClass
from tests.memory.nodes import GIB, SETTINGS, Guest, Machine, ids
from tests.memory.pressing import guest, pressed

SOLD = msgspec.structs.replace(SETTINGS, namespaces=("colocation-memory",))
BLOCK = SETTINGS.block_size


def outsider(uid: str = "outsider", first: int = 0, **more: object) -> Guest:
    return msgspec.convert(
        {"uid": uid, "ids": ids(first, first + 1, first + 2), "namespace": "elsewhere", **more}, Guest
    )


@pytest.mark.parametrize(
    ("found", "held"), [(None, 3 * BLOCK), (8 * GIB, 3 * BLOCK), (BLOCK, BLOCK), (3 * BLOCK, 3 * BLOCK)]
)
def test_a_pod_of_a_namespace_that_is_not_sold_to_is_held_and_its_limit_is_never_raised(
    found: int | None, held: int
) -> None:
    pod = outsider(limit=found)
    machine = Machine(guests=[pod], settings=SOLD)
    machine.live(60)
    assert pod.limit == held
    pod.namespace = "colocation-memory"
    machine.live(60)
    assert pod.limit == 3 * BLOCK


def test_a_pod_of_a_namespace_that_is_not_sold_to_gives_first_whatever_its_priority() -> None:
    thief = outsider("thief", 30, priority=2_000_000_000, anon=8 * GIB)
    machine = pressed(guest(anon=8, uid="batch", blocks=ids(*range(12))), thief)
    assert machine.turn().pods[0].uid == "batch", "while blocks are sold to all"
    machine.settings = msgspec.structs.replace(machine.settings, namespaces=("colocation-memory",))
    assert machine.turn().pods[0].uid == "thief"
    gone = [action.pod.uid for action in machine.live(300) if isinstance(action, Evict)]
    assert gone[0] == "thief"


def test_a_pod_of_a_namespace_that_is_not_sold_to_is_not_created_again_elsewhere() -> None:
    mover = outsider("mover", anon=20 * GIB, controller="", may_move=True)
    machine = pressed(mover)
    machine.settings = msgspec.structs.replace(machine.settings, namespaces=("colocation-memory",))
    done = machine.live(600)
    assert any(isinstance(action, Evict) for action in done)
    assert not any(isinstance(action, Recreate) for action in done)


def test_who_holds_blocks_that_are_not_sold_to_it_is_named() -> None:
    decision = Machine(guests=[outsider()], settings=SOLD).turn()
    sentences = " ".join(explain(decision, SOLD))
    assert "elsewhere/outsider holds blocks, but only namespace colocation-memory may use them" in sentences
    assert "outsider" not in " ".join(explain(Machine(guests=[outsider()]).turn(), SETTINGS))


# --- mirrors -------------------------------------------------------------------------------------


def test_a_pod_that_was_there_under_its_own_uid_is_no_static_pod_later() -> None:
    """Its owner had it deleted and made a mirror of its name, while its processes end."""
    pod = Guest(uid="pod", ids=ids(0, 1))
    machine = Machine(guests=[pod])
    machine.live(20)
    assert pod.limit == 2 * BLOCK
    pod.static, pod.priority = True, 9
    machine.guests = [msgspec.structs.replace(pod, ids=ids(*range(20)))]
    (colocated,) = machine.turn().pods
    assert (colocated.pod.static, colocated.pod.priority) == (False, 0)
    assert [each.blocks for each in colocated.pod.containers] == [2]


def test_a_static_pod_stays_one_and_follows_its_mirror() -> None:
    pod = Guest(uid="pod", ids=ids(0, 1), static=True)
    machine = Machine(guests=[pod])
    machine.live(20)
    pod.priority = 7
    decision = machine.turn()
    assert (decision.pods[0].pod.static, decision.pods[0].pod.priority) == (True, 7)
    assert not [action for action in decision.plan.actions if isinstance(action, SetLimit)]


def test_the_use_of_a_pod_whose_request_is_unknown_counts_as_its_request() -> None:
    node = NodeMemory(total=8 * GIB, available=4 * GIB, free=4 * GIB, inactive_file=0)
    static = PodMemory(
        uid="static", qos=QosClass.BURSTABLE, usage=3 * GIB, anon=3 * GIB, file=0, inactive_file=0
    )
    usage = measure(node, [static], [], {}, frozenset(), [UsageView.KERNEL])
    (online,) = usage.online_pods
    assert [policy.of(online) for policy in KoordinatorPolicy] == [3 * GIB] * 3
