"""A memory part as a process that is told over a socket when to take a turn; the crash tests kill it.

It is forked from a process that has imported all this, which is most of what a start costs.
"""

import asyncio
import contextlib
import os
import signal
import socket
from functools import partial
from pathlib import Path

import msgspec

from colocate import crashpoints, telemetry
from colocate.clock import ManualClock
from colocate.cluster import connection
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Flags
from colocate.host import memory_group
from colocate.kubelet import KubeletPaths, Plugins, Settings
from colocate.lab.cluster import MACHINE
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.part import MemoryPart
from colocate.memory.agent.store import MemoryStore
from colocate.memory.settings import Deadlines
from colocate.memory.state import state_to_json
from tests.memory_agent.driving import SETTINGS
from tests.memory_agent.small_machine import SmallMachine

NO_TIME = Deadlines(withdraw=0, reclaim=0, throttle=0, far=0, evict=0, recreate=0)


LONGEST = 250
"""Seconds that a life may last."""


class Life(msgspec.Struct, frozen=True):
    """Where a part lives, and when it dies."""

    root: Path
    """The cluster's folder."""
    cgroup_root: Path
    """The control group of its pods."""
    now: float
    """The machine's time at which it begins."""
    crash_at: int = 0
    """The side effect at which it is killed; 0: none."""
    log: Path | None = None
    """Where each side effect is written down."""


class LaterClock(ManualClock):
    """A manual clock of a machine that has run for a while; by the wall clock, a life begins soon after the last."""

    def __init__(self, already: float) -> None:
        super().__init__(1_700_000_000.0 - already * 0.96)
        self._elapsed = already


def live(life: Life, channel: socket.socket) -> None:
    """The process."""
    signal.alarm(LONGEST)  # Should the test that started it be killed.
    crashpoints.arm(life.crash_at, life.log)
    log = os.open(life.root / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    asyncio.run(main(life, channel))


def _die_at(point: str, here: str) -> None:
    if here == point:
        os.kill(os.getpid(), signal.SIGKILL)


async def main(life: Life, channel: socket.socket) -> None:
    told, teller = await asyncio.open_connection(sock=channel)

    def say(words: str) -> None:
        teller.write(f"{words}\n".encode())

    telemetry.configure_logs("text", "info")
    clock = LaterClock(life.now)
    small = SmallMachine(life.cgroup_root)
    found = connection.find(Flags(kubeconfig=life.root / "kubeconfig"))
    client = Client(found, clock, ClientSettings(attempts=1))
    cluster = ClusterView(client, MACHINE)
    paths = KubeletPaths(life.root / "kubelet")
    part = MemoryPart(
        msgspec.structs.replace(SETTINGS, deadlines=NO_TIME, cool_down=5.0, undo_pause=0.0),
        store=MemoryStore(life.root / "state"),
        machine=small.machine(),
        cluster=cluster,
        paths=paths,
        clock=clock,
    )
    await part.begin()
    say("begun")
    plugins = Plugins(part.plugin, settings=Settings(paths=paths))
    tasks = [asyncio.create_task(cluster.run()), asyncio.create_task(plugins.run())]
    await cluster._pods.synced()
    await cluster._nodes.synced()
    say("ok")
    while line := await told.readline():
        match line.decode().split():
            case ["turn"]:
                await clock.advance(10.0)
                await part.turn()
                while part.executor.is_busy:
                    await clock.advance(0.05)
                    await asyncio.sleep(0.002)
            case ["system", amount]:
                small.system = int(amount)
            case ["off"]:
                part.switch(True)
            case ["on"]:
                part.switch(False)
            case ["die", point]:
                setattr(memory_group, "reached", partial(_die_at, point))  # noqa: B010 -- it is not exported
            case ["report"]:
                say(state_to_json(part.state).decode())
                continue
        say("ok")
    plugins.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await tasks[1]
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await part.executor.close()
    await cluster.client.close()
