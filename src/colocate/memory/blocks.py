"""Decides which blocks are offered: the list of ids for the kubelet.

A free block that is withdrawn leaves the list at once; a held one stays on it as Unhealthy while a pod holds it. The
SDK decides how an id that is off the list leaves the kubelet (Unhealthy first, never while it is held). The list
shrinks at once. It grows when more blocks than the hysteresis have been missing for the whole cool-down, by as many
as there was room for all that time. Held blocks need no hysteresis, since no new pod gets them.

Free blocks are withdrawn first, the highest number first; then held ones, of the pod that gives back first, so that
no other pod gets them when it ends. They return in reverse order: held ones, then the lowest numbers.
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
    """What happens to a listed block when no pod holds it."""

    HEALTHY = "healthy"
    """It is offered."""
    WITHDRAWN = "withdrawn"
    """It goes off the list."""

    @classmethod
    def _missing_(cls, value: object) -> "BlockState | None":
        # States of earlier builds have this value.
        return cls.WITHDRAWN if value == "drained" else None


class Block(msgspec.Struct, frozen=True):
    """One block on the list."""

    id: str
    state: BlockState = BlockState.HEALTHY


class Growth(msgspec.Struct, frozen=True):
    """There is room for more blocks, and since when."""

    since: float
    least: int
    """The smallest number of blocks that were missing in that time."""


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """The list of blocks, ordered by number."""

    resource: str = ""
    """Empty before the first turn."""
    size: Bytes = 0
    """0 before the first turn."""
    listed: tuple[Block, ...] = ()
    growth: Growth | None = None
    started: bool = False
    """Whether there was a turn: the first list is published without a cool-down."""

    def devices(self) -> tuple[Device, ...]:
        """The blocks as devices for the kubelet."""
        return tuple(
            Device(block.id) if block.state is BlockState.HEALTHY else Device(block.id).unhealthy()
            for block in self.listed
        )

    def healthy(self) -> frozenset[str]:
        return frozenset(block.id for block in self.listed if block.state is BlockState.HEALTHY)


class BlockPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The list to publish, and its changes: a turn withdraws blocks or offers more, never both."""

    devices: tuple[Device, ...] = ()
    """The whole list, ordered by number."""
    withdrawn: tuple[str, ...] = ()
    """Blocks that are no longer offered, in the order of withdrawal."""
    offered: tuple[str, ...] = ()
    """Blocks that are offered again, in the order of return."""
    reason: str = ""
    """Why the list changes."""


class WantedBlocks(msgspec.Struct, frozen=True):
    """How many blocks the list should have."""

    free: int
    """Free blocks that there is room for."""
    in_debt: int
    """Held blocks with no memory behind them."""
    may_grow: bool
    reason: str
    waits_for: str = ""
    """Why there are no more blocks, where there is room."""


def block_id(number: int) -> str:
    return f"CM-{number:04d}"


def number(id: str) -> int | None:
    """The number of a block; None where the id is not one of ours."""
    match = _ID.fullmatch(id)
    return int(match[1]) if match else None


def blocks_for_settings(blocks: Blocks, settings: MemorySettings, held: AbstractSet[str]) -> Blocks:
    """The list for these settings: an empty one where size or name changed; UserError where pods hold old blocks."""
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
    """The next list, and what changes. `held` starts with the blocks that are given back first."""
    first = not blocks.started
    mine = frozenset(held)
    table = {
        block.id: block for block in blocks.listed if block.state is BlockState.HEALTHY or block.id in mine
    }
    for id in held:
        # An agent that has lost its state learns its blocks from their holders.
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
    """Withdraw surplus blocks from the table; their ids in the order of withdrawal."""
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
    """Add blocks to the table; their ids in the order of return."""
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
    """Sorts by number; ids that are not ours come last."""
    found = number(id)
    return (1, 0, id) if found is None else (0, found, id)


def _order(block: Block) -> tuple[int, int, str]:
    return block_place(block.id)
