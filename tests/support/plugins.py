"""Plugins for tests."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from colocate.kubelet import Allocation, Device, DevicePlugin
from colocate.kubelet.plugin import DeviceList

FAN = "example.com/fan"


class Fans(DevicePlugin):
    """A plugin whose list a test changes as it likes."""

    resource = FAN

    def __init__(self, *ids: str | Device, resource: str = FAN) -> None:
        self.resource = resource
        self._lists: asyncio.Queue[DeviceList] = asyncio.Queue()
        self.allocated: list[list[str]] = []
        if ids:
            self.show(*ids)

    def show(self, *ids: str | Device) -> None:
        self._lists.put_nowait(list(ids))

    async def devices(self) -> AsyncIterator[DeviceList]:
        while True:
            yield await self._lists.get()

    async def allocate(self, ids: Sequence[str]) -> Allocation:
        self.allocated.append(list(ids))
        return Allocation(envs={"FANS": ",".join(ids)})
