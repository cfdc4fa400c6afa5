"""What a node has against what it has promised: the room for free blocks, or the debt.

free blocks + held + online + safety <= capacity + debt, always, where held is, pod by pod, the larger of what it was
given and what it uses. The debt is on paper: pods may not use what they hold. What of it online work needs now,
is *due*: that alone is taken back from pods.
"""

from collections.abc import Mapping

import msgspec

from colocate.memory.forecast import Expectation
from colocate.memory.usage import MemoryUsage
from colocate.model.figures import amount, count
from colocate.model.memory import Bytes, PodUid


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """The reckoning of one turn."""

    capacity: Bytes
    online: Bytes
    """Expected."""
    safety: Bytes
    allocated: Bytes
    """Blocks given, in bytes."""
    used: Bytes
    """By colocated pods."""
    held: Bytes
    free: int
    """Blocks that there is room for beside all this."""
    debt: Bytes
    due: Bytes
    slack: Bytes
    """What is in nobody's use now, above the safety: the opposite of due."""
    block_size: Bytes

    @property
    def blocks_in_debt(self) -> int:
        """How many held blocks are without memory behind them."""
        return -(-self.debt // self.block_size)

    @property
    def reasons(self) -> tuple[str, ...]:
        sums = (
            f"{amount(self.capacity)} - {amount(self.online)} online - {amount(self.safety)} safety "
            f"- {amount(self.held)} held by colocated pods"
        )
        if not self.debt:
            room = self.capacity - self.online - self.safety - self.held
            blocks = count(self.free, "free block")
            return (f"{sums} = {amount(room)}: room for {blocks} of {amount(self.block_size)}.",)
        needed = (
            f"Online work needs {amount(self.due)} of the debt now."
            if self.due
            else f"Online work needs none of the debt now: {amount(self.slack)} is unused."
        )
        missing = count(self.blocks_in_debt, "held block")
        return (
            f"{sums}: there is no room, but a debt of {amount(self.debt)} ({missing}).",
            needed,
        )


def strike(
    usage: MemoryUsage, expected: Expectation, blocks: Mapping[PodUid, int], promised: int, block_size: Bytes
) -> Balance:
    """From what is used and expected, and how many blocks each pod holds; `promised` are with none yet."""
    held = promised * block_size + sum(
        max(number * block_size, usage.colocated.get(uid, 0)) for uid, number in blocks.items()
    )
    used = usage.colocated_total
    room = usage.capacity - expected.online - expected.safety - held
    now = usage.capacity - usage.online - expected.safety - used
    return Balance(
        capacity=usage.capacity,
        online=expected.online,
        safety=expected.safety,
        allocated=(sum(blocks.values()) + promised) * block_size,
        used=used,
        held=held,
        # A forecast may expect less than is used now; what is due is owed all the same.
        free=max(0, room) // block_size if now >= 0 else 0,
        debt=max(0, -room, -now),
        due=max(0, -now),
        slack=max(0, now),
        block_size=block_size,
    )
