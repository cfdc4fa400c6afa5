"""A memory part as a process that is told on standard input when to take a turn; the crash tests kill it.

Arguments: the cluster's folder, the control group of its pods, and the machine's time at which this life begins.
"""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import msgspec

from colocate import telemetry
from colocate.apps.memory.cluster_view import ClusterView
from colocate.apps.memory.part import MemoryPart
from colocate.apps.memory.store import Store
from colocate.clock import ManualClock
from colocate.cluster import connection
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Flags
from colocate.kubelet import KubeletPaths, Plugins, Settings
from colocate.lab.cluster import MACHINE
from colocate.memory.settings import Deadlines
from colocate.memory.state import to_json
from tests.memory_agent.driving import SETTINGS
from tests.memory_agent.small_machine import SmallMachine

NO_TIME = Deadlines(withdraw=0, reclaim=0, throttle=0, far=0, evict=0, recreate=0)


LONGEST = 250
"""Seconds that a life may last."""


class LaterClock(ManualClock):
    """A manual clock of a machine that has run for a while."""

    def __init__(self, already: float) -> None:
        super().__init__()
        self._elapsed = already


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


async def main(root: Path, cgroup_root: Path, now: float) -> None:
    signal.alarm(LONGEST)  # Should the test that started it be killed.
    telemetry.configure_logs("text", "info")
    clock = LaterClock(now)
    small = SmallMachine(cgroup_root)
    client = Client(connection.find(Flags(kubeconfig=root / "kubeconfig")), clock, ClientSettings(attempts=1))
    cluster = ClusterView(client, MACHINE)
    paths = KubeletPaths(root / "kubelet")
    part = MemoryPart(
        msgspec.structs.replace(SETTINGS, deadlines=NO_TIME, cool_down=5.0, undo_pause=0.0),
        store=Store(root / "state"),
        machine=small.machine(),
        cluster=cluster,
        paths=paths,
        clock=clock,
    )
    plugins = Plugins(part.plugin, settings=Settings(paths=paths))
    tasks = [asyncio.create_task(cluster.run()), asyncio.create_task(plugins.run())]
    await cluster._pods.synced()
    await cluster._nodes.synced()
    say("ok")
    while line := await asyncio.to_thread(sys.stdin.readline):
        match line.split():
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
            case ["report"]:
                say(to_json(part.state).decode())
                continue
        say("ok")
    plugins.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await tasks[1]
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await part.executor.close()
    await cluster.client.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
