"""Plugins for tests, and what a node shows of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from prometheus_client import REGISTRY

from colocate.kubelet import Allocation, Device, DevicePlugin, Health
from colocate.kubelet.plugin import DeviceList
from colocate.testing import TestNode

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


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def ids(node: TestNode, resource: str = FAN) -> dict[str, Health]:
    return {id: device.health for id, device in node.kubelet.devices.table.devices.get(resource, {}).items()}


async def until_ids(node: TestNode, **expected: Health) -> None:
    wanted = {id.replace("_", "-"): health for id, health in expected.items()}
    await node.kubelet.until(lambda: ids(node) == wanted, f"{wanted}, not {ids(node)}")
