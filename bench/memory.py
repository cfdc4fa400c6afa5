"""How much memory a process has, once it has come to rest."""

import asyncio
from pathlib import Path

import msgspec

MEGABYTE = 1_000_000
_REST = 0.25
_ALIKE = 1.002


class Memory(msgspec.Struct, frozen=True):
    """The memory of one process, in bytes."""

    resident: float
    """Everything that is mapped and present, shared libraries in full: what `ps` shows."""
    proportional: float
    """The same, with every shared page divided by the number of its users."""


def memory_of(process: int) -> Memory:
    fields = {}
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = line.split()
        fields[name] = 1024.0 * int(value)
    return Memory(fields["Rss:"], fields["Pss:"])


async def memory_at_rest(process: int) -> Memory:
    """The memory of a process when it does not change any more."""
    before = memory_of(process)
    while True:
        await asyncio.sleep(_REST)
        after = memory_of(process)
        if max(before.resident, after.resident) <= _ALIKE * min(before.resident, after.resident):
            return after
        before = after
