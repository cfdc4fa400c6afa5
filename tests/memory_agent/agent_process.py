"""Memory parts as processes that a test tells when to take a turn, and that die where it says."""

import asyncio
import multiprocessing
import socket
from pathlib import Path

from colocate.memory.state import MemoryState, state_from_json
from tests.memory_agent import crashing_agent
from tests.memory_agent.crashing_agent import Life
from tests.memory_agent.lab import MemoryLab

NURSERY = multiprocessing.get_context("forkserver")
"""Forks agents that have imported everything already."""
NURSERY.set_forkserver_preload([crashing_agent.__name__])


class Process:
    """A memory part as a process, told to die at a certain side effect or never."""

    def __init__(self, lab: MemoryLab, life: int, crash_at: int = 0, log: Path | None = None) -> None:
        self._life = Life(lab.root, lab.runtime.cgroup_root, life * 10_000.0, crash_at, log)

    async def __aenter__(self) -> "Process":
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = NURSERY.Process(target=crashing_agent.live, args=(self._life, theirs))
            self._process.start()
        self._told, self._teller = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self._said: asyncio.Queue[str] = asyncio.Queue()
        self._life_time = asyncio.create_task(self._listen())
        assert await self.hears("begun")
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.dead:
            self._process.kill()
            await self._life_time
        self._teller.close()

    @property
    def dead(self) -> bool:
        return self._life_time.done()

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    async def hears(self, words: str) -> bool:
        """Wait for its next words, which are these; whether it lives."""
        heard = await asyncio.wait_for(self._said.get(), 60)
        assert heard in (words, ""), heard
        if not heard:
            await self._life_time
        return bool(heard)

    async def tell(self, words: str, times: int = 1) -> bool:
        """Say something, several times; whether it lives."""
        for _ in range(times):
            if self.dead:
                return False
            self._teller.write(f"{words}\n".encode())
            if not await self.hears("ok"):
                return False
        return True

    async def state(self) -> MemoryState:
        self._teller.write(b"report\n")
        return state_from_json((await self._said.get()).encode())

    async def end(self) -> int | None:
        """As SIGTERM would, and wait."""
        self._teller.write_eof()
        await asyncio.wait_for(self._life_time, 60)
        return self.exit_code

    async def _listen(self) -> None:
        """Hear all that it says, and see it end."""
        try:
            while line := await self._told.readline():
                self._said.put_nowait(line.decode().strip())
        except ConnectionResetError:
            pass  # It was killed with something unsaid.
        await asyncio.to_thread(self._process.join)
        self._said.put_nowait("")
