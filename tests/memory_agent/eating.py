"""Pods of the embedded cluster whose process takes memory when told to."""

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.memory_agent.lab import MemoryLab
from tests.support.memory_probe import is_counted
from tests.support.waiting import until

MIB = 1 << 20

# Cache is read twice after it is written, so that the kernel takes it for active.
_EATER = """
import mmap, os, sys
held = []
# Open for writing as well: so there is always a writer, and no end.
told = os.open(sys.argv[1], os.O_RDWR)
print("ready", flush=True)
for line in os.fdopen(told):
    what, size, file = line.split()
    size = int(size)
    if what == "anon":
        held.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        for at in range(0, size, 4096):
            held[-1][at:at + 8] = at.to_bytes(8, "little")
    elif what == "cache":
        with open(file, "wb") as out:
            for _ in range(size >> 20):
                out.write(os.urandom(1 << 20))
                os.fsync(out.fileno())
        for _ in range(2):
            with open(file, "rb") as back:
                while back.read(1 << 20):
                    pass
    elif what == "free":
        held.clear()
    print("done", flush=True)
"""


class Eater:
    """A pod that eats; `ready` waits for its process."""

    def __init__(
        self,
        lab: MemoryLab,
        name: str,
        blocks: int,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        self._lab = lab
        self.name = name
        self._fifo = lab.root / f"{name}.fifo"
        self._file = lab.root / f"{name}.data"
        os.mkfifo(self._fifo)
        self._done = 0
        command = f"exec {sys.executable} -c {shlex.quote(_EATER)} {self._fifo}"
        self.uid = lab.create_pod(name, blocks, command, annotations=annotations, **spec)

    async def ready(self) -> "Eater":
        await self._lab.until_running(self.name)
        await until(lambda: "ready" in self._lab.said(self.name), f"{self.name} to be ready")
        return self

    async def anon(self, amount: int) -> None:
        await self._do(f"anon {amount} -")

    async def cache(self, amount: int) -> None:
        await self._do(f"cache {amount} {self._file}")

    async def free(self) -> None:
        await self._do("free 0 -")

    def begin(self, what: str) -> None:
        """Tell it what to do, and do not wait."""
        with Path(self._fifo).open("w") as fifo:
            fifo.write(f"{what}\n")

    async def _do(self, what: str) -> None:
        self.begin(what)
        self._done += 1
        await until(lambda: self._lab.said(self.name).count("done") == self._done, f"{self.name} to {what}")
        groups = (self._lab.group(self.name), self._lab.all_pods)
        await until(lambda: all(map(is_counted, groups)), f"the kernel to count what {self.name} has done")
