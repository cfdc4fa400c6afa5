"""What a node's agent must not forget, whatever kills it: stored before each plan is carried out.

It has a clock of its own, which goes on by what passed since the last turn, and by little where nobody looked for
long or the machine was started again. So no deadline and no cool-down runs out unseen, and no clock's jump matters.
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
    """What is owed, and since when."""

    bytes: Bytes
    since: float


class MemoryState(msgspec.Struct, frozen=True, kw_only=True):
    """All that is carried from one turn to the next."""

    version: int = VERSION
    boot: str = ""
    seen: float = 0.0
    """The machine's time of the last turn."""
    clock: float = 0.0
    blocks: Blocks = Blocks()
    holders: Mapping[PodUid, tuple[str, ...]] = {}
    """As last known. A pod that holds none is here as long as something that was done to it is to be undone."""
    pods: Mapping[PodUid, PodIdentity] = {}
    """Who they are, as last known."""
    word: NodeWord | None = None
    """What the API last said of the node."""
    debt: Debt | None = None
    ladder: Ladder = Ladder()
    history: tuple[Peak, ...] = ()

    def who(self, uid: PodUid, told: PodIdentity | None) -> PodIdentity:
        """Who a holder is: as the facts say, or as last known where these say less.

        What the API has shown as a pod of its own under this uid is no static pod later: a mirror that says so was
        made by somebody who had that pod deleted.
        """
        known = self.pods.get(uid)
        if known is None:
            return told or PodIdentity(uid=uid, namespace="", name="")
        if told is None or (told.static and known.name and not known.static):
            return known
        return told if told.containers else msgspec.structs.replace(known, terminating=told.terminating)


def go_on(state: MemoryState, boot: str, now: float, longest_gap: float) -> MemoryState:
    """The state with its clock moved on; `now` never goes back while the machine runs."""
    passed = max(0.0, now - state.seen) if boot == state.boot else 0.0
    clock = state.clock + min(passed, longest_gap)
    # The kernel's own switches are as somebody else has them since.
    ladder = state.ladder
    if boot != state.boot:
        ladder = msgspec.structs.replace(ladder, demotion_is_ours=False)
    return msgspec.structs.replace(state, boot=boot, seen=now, clock=clock, ladder=ladder)


def state_to_json(state: MemoryState) -> bytes:
    return msgspec.json.encode(state)


def state_from_json(data: bytes) -> MemoryState:
    """UserError where it is not a state that this release wrote."""
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
    """Uids become paths of control groups: what no pod can have is forgotten, whoever wrote it there."""
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
