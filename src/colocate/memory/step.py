"""What a rung wants done in one turn."""

import msgspec

from colocate.memory.actions import PodAction
from colocate.memory.ladder_state import Ladder
from colocate.model.memory import Bytes

WORTH_IT: Bytes = 1 << 20
"""Less than this is not taken, moved or waited for."""


class Step(msgspec.Struct, frozen=True):
    """The ladder as it will stand, the actions, and sentences about what is not done."""

    ladder: Ladder
    actions: tuple[PodAction, ...] = ()
    notes: tuple[str, ...] = ()
    busy: bool = False
    """Whether the rung may still pay."""
