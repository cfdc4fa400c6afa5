"""Compares what a node has with what it has promised: the result is room for free blocks, or a debt.

free blocks + held + online + safety <= capacity + debt, always; a pod holds the larger of its blocks and what it
uses. The debt is on paper, since pods may not use all that they hold. The part that online work needs now is *due*:
only that is taken back from pods.
"""

from collections.abc import Mapping

import msgspec

from colocate.memory.forecast import Expectation
from colocate.memory.usage import MemoryUsage
from colocate.model.figures import amount, count
from colocate.model.memory import Bytes, PodUid


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one turn."""

    capacity: Bytes
    online: Bytes
    """What online work is expected to use."""
    safety: Bytes
    allocated: Bytes
    """Bytes of the blocks that pods hold or were promised."""
    used: Bytes
    """What colocated pods use."""
    held: Bytes
    free: int
    """Further blocks that there is room for."""
    debt: Bytes
    due: Bytes
    slack: Bytes
    """What is unused now above the safety; 0 where something is due."""
    block_size: Bytes

    @property
    def blocks_in_debt(self) -> int:
        """How many held blocks have no memory behind them."""
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
    """The balance, from `blocks`, the number that each pod holds, and `promised`, those given to no pod yet."""
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
        # A forecast may expect less than is used now; the debt is never less than what is due.
        free=max(0, room) // block_size if now >= 0 else 0,
        debt=max(0, -room, -now),
        due=max(0, -now),
        slack=max(0, now),
        block_size=block_size,
    )
