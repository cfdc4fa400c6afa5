"""Which blocks are offered: the list for the kubelet, of ids that stay what they are.

A block that is withdrawn is off the list at once where it is free, and on it as Unhealthy for as long as a pod holds
it. How an id that is off the list leaves the kubelet (Unhealthy first, never while it is held) is for the SDK alone.
Shrinking is at once; blocks come back when more than the hysteresis of them has been missing for the whole cool-down,
and then as many as there was room for all that time. Held ones need no hysteresis, for nobody new gets them.

Free blocks go first, the highest number first; then held ones, of the pod that would give back first, so that they
are not given anew when it ends. They come back the other way round: held ones, then the lowest numbers.
"""

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum

import msgspec

from colocate.errors import UserError
from colocate.memory.settings import MemorySettings
from colocate.model.device import Device
from colocate.model.figures import amount, count, some
from colocate.model.memory import Bytes

_ID = re.compile(r"CM-(\d{4}|[1-9]\d{4,})", re.ASCII)


class BlockState(StrEnum):
    """What becomes of a listed block when nobody holds it."""

    HEALTHY = "healthy"
    """It is offered."""
    WITHDRAWN = "withdrawn"
    """It goes off the list."""

    @classmethod
    def _missing_(cls, value: object) -> "BlockState | None":
        # So it stands in states of builds that let blocks drain here.
        return cls.WITHDRAWN if value == "drained" else None


class Block(msgspec.Struct, frozen=True):
    """One block on the list."""

    id: str
    state: BlockState = BlockState.HEALTHY


class Growth(msgspec.Struct, frozen=True):
    """More room than blocks, for a while already."""

    since: float
    least: int
    """The fewest blocks that were missing in that time."""


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """The list, in the order of the numbers."""

    resource: str = ""
    size: Bytes = 0
    """Empty and 0 before the first turn."""
    listed: tuple[Block, ...] = ()
    growth: Growth | None = None
    started: bool = False
    """Whether there was a turn: the first list is given at once."""

    def devices(self) -> tuple[Device, ...]:
        """As the kubelet is told."""
        return tuple(
            Device(block.id) if block.state is BlockState.HEALTHY else Device(block.id).unhealthy()
            for block in self.listed
        )

    def healthy(self) -> frozenset[str]:
        return frozenset(block.id for block in self.listed if block.state is BlockState.HEALTHY)


class BlockPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The list to publish, and what changes in it: blocks are withdrawn or offered, never both in one turn."""

    devices: tuple[Device, ...] = ()
    """All of it, in the order of the numbers."""
    withdrawn: tuple[str, ...] = ()
    """No longer offered from now on, in the order of leaving: nobody new gets them."""
    offered: tuple[str, ...] = ()
    """Offered from now on, in the order of returning."""
    reason: str = ""
    """Of the change."""


class WantedBlocks(msgspec.Struct, frozen=True):
    """What the list should come to."""

    free: int
    """Free blocks that there is room for."""
    in_debt: int
    """Held blocks with no memory behind them."""
    may_grow: bool
    reason: str
    waits_for: str = ""
    """Why there may not be more, where there is room."""


def block_id(number: int) -> str:
    return f"CM-{number:04d}"


def number(id: str) -> int | None:
    """The number of a block; None where the id is none of ours."""
    match = _ID.fullmatch(id)
    return int(match[1]) if match else None


def blocks_for_settings(blocks: Blocks, settings: MemorySettings, held: AbstractSet[str]) -> Blocks:
    """The list for these settings: anew where size or name changed; UserError where blocks are still held."""
    same = (blocks.resource, blocks.size) == (settings.resource, settings.block_size)
    if same or (not blocks.size and not blocks.resource):
        return msgspec.structs.replace(blocks, resource=settings.resource, size=int(settings.block_size))
    if not held:
        return Blocks(resource=settings.resource, size=int(settings.block_size))
    what = "name" if blocks.resource != settings.resource else "size"
    raise UserError(
        f"memory: the {what} of blocks cannot become {settings.resource} of {amount(settings.block_size)} while pods "
        f"hold {count(len(held), 'block')} of {blocks.resource} of {amount(blocks.size)} ({some(sorted(held))}); put "
        "the old value back, switch colocation off with 'colocate memory off', wait until no pod holds a block, "
        "and then change it"
    )


def turn(
    blocks: Blocks, wanted: WantedBlocks, held: Sequence[str], now: float, settings: MemorySettings
) -> tuple[Blocks, BlockPlan]:
    """The next list and what changes. `held` begins with the blocks that are to be given back first."""
    first = not blocks.started
    mine = frozenset(held)
    table = {
        block.id: block for block in blocks.listed if block.state is BlockState.HEALTHY or block.id in mine
    }
    for id in held:
        # An agent whose state was lost finds its blocks by who holds them.
        table.setdefault(id, Block(id))
    withdrawn = _shrink(table, wanted, held)
    missing = _missing(table, wanted, held, 0 if first else settings.hysteresis)
    growth = None
    offered: list[str] = []
    if not withdrawn and wanted.may_grow and missing:
        growth = Growth(now, missing)
        if blocks.growth is not None:
            growth = Growth(blocks.growth.since, min(blocks.growth.least, missing))
        if first or now - growth.since >= settings.cool_down:
            offered = _grow(table, growth.least, held)
            growth = None
    listed = tuple(sorted(table.values(), key=_order))
    following = msgspec.structs.replace(blocks, listed=listed, growth=growth, started=True)
    return following, BlockPlan(
        devices=following.devices(),
        withdrawn=tuple(withdrawn),
        offered=tuple(offered),
        reason=wanted.reason if withdrawn or offered else "",
    )


def _shrink(table: dict[str, Block], wanted: WantedBlocks, held: Sequence[str]) -> list[str]:
    """Withdraw what is too many, in place; the ids in the order of leaving."""
    free = _healthy_free(table, held)
    leaving = sorted(free, key=block_place, reverse=True)[: max(0, len(free) - wanted.free)]
    for id in leaving:
        del table[id]
    firm = [id for id in held if table[id].state is BlockState.HEALTHY]
    marked = firm[: max(0, wanted.in_debt - (len(held) - len(firm)))]
    for id in marked:
        table[id] = Block(id, BlockState.WITHDRAWN)
    return [*leaving, *marked]


def _missing(table: dict[str, Block], wanted: WantedBlocks, held: Sequence[str], hysteresis: int) -> int:
    """How many more blocks should be healthy."""
    withdrawn = sum(table[id].state is not BlockState.HEALTHY for id in held)
    paid = max(0, withdrawn - wanted.in_debt)
    missing = wanted.free - len(_healthy_free(table, held)) + paid
    return missing if missing > hysteresis else paid


def _grow(table: dict[str, Block], many: int, held: Sequence[str]) -> list[str]:
    """Bring blocks back, in place; the ids in the order of returning."""
    back = [id for id in reversed(held) if table[id].state is not BlockState.HEALTHY]
    back += _unoffered(table, held, many - len(back))
    back = back[:many]
    for id in back:
        table[id] = Block(id)
    return back


def _unoffered(table: dict[str, Block], held: Iterable[str], many: int) -> list[str]:
    """The lowest numbers that are neither offered nor held."""
    taken = {id for id, block in table.items() if block.state is BlockState.HEALTHY} | set(held)
    ids: list[str] = []
    candidate = 0
    while len(ids) < many:
        if (id := block_id(candidate)) not in taken:
            ids.append(id)
        candidate += 1
    return ids


def _healthy_free(table: dict[str, Block], held: Sequence[str]) -> list[str]:
    mine = set(held)
    return [id for id, block in table.items() if block.state is BlockState.HEALTHY and id not in mine]


def block_place(id: str) -> tuple[int, int, str]:
    """By number; ids that are none of ours come last."""
    found = number(id)
    return (1, 0, id) if found is None else (0, found, id)


def _order(block: Block) -> tuple[int, int, str]:
    return block_place(block.id)
