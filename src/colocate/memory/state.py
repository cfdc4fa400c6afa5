"""The state of a node's agent, stored before each plan is carried out, so that it survives a kill.

The state has its own clock. Each turn adds the time since the last one, but only a little after a long gap or a
reboot. So no deadline or cool-down runs out while the agent is down, and jumps of the machine's clock do not matter.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from colocate.errors import UserError
from colocate.memory.blocks import Blocks
from colocate.memory.forecast import Peak
from colocate.memory.ladder import Ladder
from colocate.model.memory import Bytes, NodeWord, PodIdentity, PodUid
from colocate.model.path_word import is_path_word

VERSION = 1

_T = TypeVar("_T")


class Debt(msgspec.Struct, frozen=True):
    """A debt, and since when it exists."""

    bytes: Bytes
    since: float


class MemoryState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one turn passes to the next."""

    version: int = VERSION
    boot: str = ""
    seen: float = 0.0
    """The machine's monotonic time at the last turn."""
    clock: float = 0.0
    blocks: Blocks = Blocks()
    holders: Mapping[PodUid, tuple[str, ...]] = {}
    """The last known holders, with their blocks. A pod without blocks stays here until everything done to it is
    undone."""
    pods: Mapping[PodUid, PodIdentity] = {}
    """The holders' last known identities."""
    word: NodeWord | None = None
    """What the API last said of the node."""
    debt: Debt | None = None
    ladder: Ladder = Ladder()
    history: tuple[Peak, ...] = ()

    def who(self, uid: PodUid, told: PodIdentity | None) -> PodIdentity:
        """A holder's identity: as the facts say, or the last known one where they say less.

        A pod that the API has shown under this uid cannot become a static pod later: a mirror that claims so is an
        attack by a tenant who had the pod deleted.
        """
        known = self.pods.get(uid)
        if known is None:
            return told or PodIdentity(uid=uid, namespace="", name="")
        if told is None or (told.static and known.name and not known.static):
            return known
        return told if told.containers else msgspec.structs.replace(known, terminating=told.terminating)


def go_on(state: MemoryState, boot: str, now: float, longest_gap: float) -> MemoryState:
    """The state with its clock advanced; `now` never decreases between two boots."""
    passed = max(0.0, now - state.seen) if boot == state.boot else 0.0
    clock = state.clock + min(passed, longest_gap)
    # After a reboot the kernel's switches are no longer ours.
    ladder = state.ladder
    if boot != state.boot:
        ladder = msgspec.structs.replace(ladder, demotion_is_ours=False)
    return msgspec.structs.replace(state, boot=boot, seen=now, clock=clock, ladder=ladder)


def state_to_json(state: MemoryState) -> bytes:
    return msgspec.json.encode(state)


def state_from_json(data: bytes) -> MemoryState:
    """Read a state; UserError where this release cannot have written it."""
    try:
        state = msgspec.json.decode(data, type=MemoryState)
    except ValueError as error:
        raise UserError(f"memory: the stored state cannot be read ({error}); {_REMEDY}") from None
    if state.version != VERSION:
        raise UserError(
            f"memory: the stored state has version {state.version}, and this release reads {VERSION}; {_REMEDY}"
        )
    return _without_impossible_pods(state)


def _without_impossible_pods(state: MemoryState) -> MemoryState:
    """Without uids that no pod can have: they become paths of control groups."""
    ladder = state.ladder
    return msgspec.structs.replace(
        state,
        holders=_possible(state.holders),
        pods={uid: pod for uid, pod in _possible(state.pods).items() if pod.uid == uid},
        ladder=msgspec.structs.replace(
            ladder,
            throttled=_possible(ladder.throttled),
            moved=_possible(ladder.moved),
            leaving=_possible(ladder.leaving),
            gave_up=tuple(each for each in ladder.gave_up if is_path_word(each.uid)),
        ),
    )


def _possible(by_uid: Mapping[PodUid, _T]) -> dict[PodUid, _T]:
    return {uid: what for uid, what in by_uid.items() if is_path_word(uid)}


_REMEDY = (
    "move it away: the agent then finds held blocks and its own memory.high again, but pages on far NUMA nodes stay "
    "there until the pod ends"
)
