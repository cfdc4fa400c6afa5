"""Health from a background task: a folder has a file for every fan, which says `ok` while the fan turns.

    python examples/plugins/health.py /run/fans

The task looks every few seconds, in a thread, so that a slow bus holds up nobody. It waits by the plugin's clock, so
that a test can let the seconds pass. A fan whose file cannot be read, or says anything else, is Unhealthy: pods that
hold it keep it, new ones do not get it. A fan whose file is gone leaves the list; the SDK drops its id once no pod
holds it.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from colocate.kubelet import Allocation, Device, DevicePlugin, Health, run


class Fans(DevicePlugin):
    resource = "example.com/fan"

    def __init__(self, folder: Path, interval: float = 5.0) -> None:
        self._folder = folder
        self._interval = interval
        self._found: list[Device] = []
        self._changed = asyncio.Event()

    async def open(self) -> None:
        # The first look is here: what cannot be read at all is tried again by the SDK, before anything is registered.
        self._found = await asyncio.to_thread(self._look)
        self._watch = asyncio.create_task(self._look_again())

    async def close(self) -> None:
        self._watch.cancel()

    async def devices(self) -> AsyncIterator[list[Device]]:
        while True:
            self._changed.clear()
            yield self._found
            await self._changed.wait()

    def allocate(self, ids: Sequence[str]) -> Allocation:
        return Allocation(envs={"FANS": ",".join(ids)})

    async def _look_again(self) -> None:
        while True:
            await self.clock.sleep(self._interval)
            try:
                found = await asyncio.to_thread(self._look)
            except OSError:
                # Nobody knows how they are: no new pod should get one.
                found = [device.unhealthy() for device in self._found]
            if found != self._found:
                self._found = found
                self._changed.set()

    def _look(self) -> list[Device]:
        return [Device(file.name, _health(file)) for file in sorted(self._folder.iterdir())]


def _health(file: Path) -> Health:
    try:
        return Health.HEALTHY if file.read_text().strip() == "ok" else Health.UNHEALTHY
    except OSError:
        return Health.UNHEALTHY


if __name__ == "__main__":
    run(Fans(Path(sys.argv[1])))
