"""What a node's agent must not forget, whatever kills it: stored before each plan is carried out.

It has a clock of its own, which goes on by what passed since the last turn, and by little where nobody looked for
long or the machine was started again. So no deadline and no cool-down runs out unseen, and no clock's jump matters.
"""

from collections.abc import Mapping

import msgspec

from colocate.errors import UserError
from colocate.memory.blocks import Blocks
from colocate.memory.forecast import Peak
from colocate.memory.ladder_state import Ladder
from colocate.model.memory import Bytes, NodeWord, PodIdentity, PodUid

VERSION = 1


class Debt(msgspec.Struct, frozen=True):
    """What is owed, and since when."""

    bytes: Bytes
    since: float


class State(msgspec.Struct, frozen=True, kw_only=True):
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


def go_on(state: State, boot: str, now: float, longest_gap: float) -> State:
    """The state with its clock moved on; `now` never goes back while the machine runs."""
    passed = max(0.0, now - state.seen) if boot == state.boot else 0.0
    clock = state.clock + min(passed, longest_gap)
    # The kernel's own switches are as somebody else has them since.
    ladder = state.ladder
    if boot != state.boot:
        ladder = msgspec.structs.replace(ladder, demotion_is_ours=False)
    return msgspec.structs.replace(state, boot=boot, seen=now, clock=clock, ladder=ladder)


def to_json(state: State) -> bytes:
    return msgspec.json.encode(state)


def from_json(data: bytes) -> State:
    """UserError where it is not a state that this release wrote."""
    try:
        state = msgspec.json.decode(data, type=State)
    except ValueError as error:
        raise UserError(f"memory: the stored state cannot be read ({error}); {_REMEDY}") from None
    if state.version != VERSION:
        raise UserError(
            f"memory: the stored state has version {state.version}, and this release reads {VERSION}; {_REMEDY}"
        )
    return state


_REMEDY = (
    "move it away, and blocks that pods hold and a memory.high that was set for a debt are found again, but pages on "
    "far NUMA nodes stay there until the pod ends"
)
