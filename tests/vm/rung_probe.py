"""Run in a container: does to a pod what each rung does, and prints what became of it, as JSON."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from colocate.clock import SystemClock
from colocate.errors import ColocateError
from colocate.host.cgroups import find_tree
from colocate.host.memory_capabilities import memory_capabilities
from colocate.host.memory_group import MemoryGroup
from colocate.host.memory_limits import GroupLimits, mark_high, read_high_mark, set_limits
from colocate.host.page_calls import Kernel
from colocate.host.page_migration import PageMigration
from colocate.host.reclaim import reclaim_once

MIB = 1 << 20


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Empty where it was done; the reason where it was refused."""

    limit: str
    throttle: str
    mark: str
    reclaim: str
    far: str
    told: str
    """What the agent would say of moving pages here."""


def attempt(deed: Callable[[], object]) -> str:
    try:
        deed()
    except (OSError, ColocateError) as error:
        return str(error)
    return ""


def throttle(group: MemoryGroup) -> None:
    mark_high(group.folder, None)
    group.write("memory.high", str(256 * MIB))


async def far(group: MemoryGroup, near: frozenset[int], target: int) -> str:
    moving = PageMigration(
        group,
        sources=near,
        target=target,
        rate=1 << 30,
        clock=SystemClock(),
        calls=Kernel(),
        at_most=4 * MIB,
    )
    done = await moving.run()
    return "" if done.moved >= 4 * MIB else "; ".join(each.reason for each in done.refused) or str(done)


def main(folder: str, below: str, near: str, target: str) -> None:
    group = MemoryGroup(Path(folder), 2)
    tried = Tried(
        limit=attempt(lambda: set_limits(group, GroupLimits(memory=512 * MIB, high=None, swap=0))),
        throttle=attempt(lambda: throttle(group)),
        mark="" if read_high_mark(group.folder) else "there is no mark",
        reclaim=attempt(lambda: reclaim_once(group, MIB, 0)),
        far=asyncio.run(far(group, frozenset(map(int, near.split(","))), int(target))),
        told=memory_capabilities(find_tree(), below=Path(below)).migration.found,
    )
    sys.stdout.write(msgspec.json.encode(tried).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
