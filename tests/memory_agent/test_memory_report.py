"""When all is said to be restored. No I/O."""

import pytest

from colocate.cli.memory_status import status_lines
from colocate.memory.actions import ActionResult
from colocate.memory.agent.report import report
from tests.memory.nodes import GIB, SETTINGS, Guest, Machine, ids


def is_restored(machine: Machine, result: ActionResult = ActionResult.DONE) -> bool:
    """By the next turn, which is carried out with this result."""
    facts = machine.facts()
    decision = machine.turn()
    machine.carry_out(decision, result)
    return report(decision, facts, SETTINGS, (), 0.0, dry_run=False).restored


def switched_off(**guest: object) -> Machine:
    pod = Guest(uid="guest", ids=ids(0, 1), anon=GIB // 2, limit=GIB)
    machine = Machine(guests=[pod])
    for name, value in guest.items():
        setattr(pod, name, value)
    machine.turn()
    machine.off = True
    return machine


@pytest.mark.parametrize(
    "guest",
    [{}, {"limit": None}, {"limit": None, "sidecar_without_limit": True}],
    ids=["limit", "swap alone", "groups of containers"],
)
def test_all_is_restored_when_it_has_been_done_and_not_before(guest: dict[str, object]) -> None:
    machine = switched_off(**guest)
    assert not is_restored(machine, ActionResult.FAILED)
    assert not is_restored(machine)
    assert is_restored(machine)


def test_of_a_pod_whose_containers_are_unknown_it_is_not_said_that_it_is_restored() -> None:
    machine = switched_off(limit=None, swap_limit=None)
    assert is_restored(machine)
    machine.guests[0].known = False
    machine.state = type(machine.state)()
    assert not is_restored(machine)


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ((), ""),
        (
            ("batch",),
            "the agent may not evict pods in: batch; to allow it: kubectl -n batch create rolebinding",
        ),
        (
            ("a", "b"),
            "the agent may not evict pods in: a, b; to allow it: kubectl -n NAMESPACE create rolebinding",
        ),
    ],
)
def test_status_names_the_namespaces_in_which_no_pod_may_be_evicted(
    without: tuple[str, ...], words: str
) -> None:
    machine = Machine(without_eviction=frozenset(without))
    facts = machine.facts()
    said = report(machine.turn(), facts, SETTINGS, (), 0.0, dry_run=False)
    assert said.without_eviction == without
    told = "\n".join(status_lines(said, colours=False))
    assert ("may not evict pods" in told) == bool(without)
    assert words in told
