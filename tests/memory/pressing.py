"""Machines whose blocks are held, and on which online work then grows."""

import msgspec

from colocate.memory.actions import (
    PodAction,
)
from colocate.memory.decision import MemoryDecision
from tests.memory.nodes import GIB, SETTINGS, Guest, Machine, ids

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


def on_pods(decision: MemoryDecision) -> list[PodAction]:
    return [action for action in decision.plan.actions if isinstance(action, PodAction)]
