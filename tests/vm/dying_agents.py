"""Agents of a node in a VM as processes that take a turn when told to, and are killed at a given side effect.

They are forked from the test's own process, which has imported all that they need: that is most of what a start
costs here.
"""

import asyncio
import multiprocessing
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from colocate import crashpoints
from colocate.memory.state import MemoryState, state_from_json, state_to_json
from tests.vm.nodes import Node

_NURSERY = multiprocessing.get_context("fork")


class Agent:
    """One life of an agent, which is killed at the side effect `crash_at`; 0: at none."""

    def __init__(
        self, node: Callable[[], Node], started: float, crash_at: int = 0, log: Path | None = None
    ) -> None:
        """Its node is made in its own process; `started` is the machine's time then."""
        self._born = (node, started, crash_at, log)

    async def __aenter__(self) -> "Agent":
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _NURSERY.Process(target=_live, args=(theirs, *self._born), daemon=True)
            self._process.start()
        self._told, self._teller = await asyncio.open_connection(sock=ours, limit=1 << 20)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        elif self._process.is_alive():
            self._teller.write_eof()
        self._process.join()
        self._teller.close()

    def count_anew(self, crash_at: int, log: Path) -> None:
        """Side effects from now on; it is killed at another one than it was born to."""
        self._teller.write(f"{crash_at} {log}\n".encode())

    async def turn(self) -> MemoryState | None:
        """Its state after one more turn; None where it has died."""
        try:
            self._teller.write(b"turn\n")
            if answer := await self._told.readline():
                return state_from_json(answer)
        except ConnectionError:
            pass  # It was killed with something unheard.
        self._process.join()
        return None

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._process.exitcode


def _live(
    channel: socket.socket, node: Callable[[], Node], started: float, crash_at: int, log: Path | None
) -> None:
    crashpoints.arm(crash_at, log)
    asyncio.run(_listen(channel, node, started))


async def _listen(channel: socket.socket, make: Callable[[], Node], started: float) -> None:
    told, teller = await asyncio.open_connection(sock=channel)
    node = make()
    await node.clock.advance(started)
    await node.part.begin()
    while line := await told.readline():
        match line.decode().split():
            case ["turn"]:
                await node.turn()
                teller.write(state_to_json(node.part.state) + b"\n")
            case [crash_at, log]:
                crashpoints.arm(int(crash_at), Path(log))
    await node.part.executor.close()
    await node.client.close()
    teller.close()
