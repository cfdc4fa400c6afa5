"""Pods whose containers are resized while they run: their limit follows, and kills no process."""

from colocate.memory.actions import SetLimit
from colocate.model.memory import ContainerMemory
from tests.memory.nodes import GIB, SETTINGS, Guest, Machine, ids

OWN = 3 * SETTINGS.block_size


def sidecar(gib: int) -> tuple[ContainerMemory, ...]:
    return (ContainerMemory(name="side", limit=gib * GIB, request=gib * GIB),)


def resized(using: int) -> tuple[Machine, Guest]:
    """A sidecar's limit of 5 GiB has become one of 1 GiB."""
    guest = Guest(uid="guest", ids=ids(0, 1, 2), anon=using, others=sidecar(5))
    machine = Machine(guests=[guest])
    machine.live(30)
    assert guest.limit == OWN + 5 * GIB
    guest.others = sidecar(1)
    return machine, guest


def test_a_limit_is_not_lowered_below_what_the_pod_uses_and_follows_it_down() -> None:
    machine, guest = resized(using=5 * GIB)
    decision = machine.turn()
    (action,) = [each for each in decision.plan.actions if isinstance(each, SetLimit)]
    assert action.limit == 5 * GIB
    assert action.reason.endswith("The pod uses more than that, so its limit is 5 GiB until it uses less.")
    machine.carry_out(decision)
    assert machine.live(60) == [], "it is set as far as it can be"
    guest.anon = 4 * GIB
    machine.live(20)
    assert guest.limit == 4 * GIB
    guest.anon = GIB
    machine.live(20)
    assert guest.limit == OWN + GIB


def test_a_limit_that_fits_is_lowered_at_once() -> None:
    machine, guest = resized(using=GIB)
    machine.live(10)
    assert guest.limit == OWN + GIB
