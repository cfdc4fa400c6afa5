"""The device plugin of GPU memory in one dialect: GPUs as slices, and their containers handed to who knows pods.

It knows ids, units and the kubelet. Which pod a container is of, and which GPU it gets, is answered by a
`GpuAllocation`, which knows pods, annotations and the book. Neither knows the other's half.
"""

from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from colocate.aio import Watched, first
from colocate.apps.gpus.monitor import GpuMonitor
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.errors import Unavailable, UserError
from colocate.gpus import (
    AnswerKey,
    Dialect,
    GpuBook,
    GpuHolding,
    message_bytes,
    other_unit,
    slice_order,
    slices_of,
    smallest_unit,
)
from colocate.kubelet import MESSAGE_LIMIT, DevicePlugin
from colocate.kubelet.holders import held_in, injected_entries
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import list_pods
from colocate.model.device import Allocation, Device, from_one_group
from colocate.model.figures import amount, count, some
from colocate.model.gpu import GpuInventory


class GpuAllocation(Protocol):
    """Answers the device plugins of all dialects of one node. `Refused` carries the sentence for the pod's event."""

    changed: Watched
    """Counts changes of the book: health and free count of devices may be others now."""

    @property
    def book(self) -> GpuBook:
        """Who has what now."""

    async def allocate(self, resource: str, ids: Sequence[str]) -> Allocation:
        """What the container that is given these devices is started with."""

    async def prestart(self, resource: str, ids: Sequence[str]) -> None:
        """Return where the container that holds these devices was given its own GPU; Refused where not."""

    def unhealthy(self, resource: str) -> AbstractSet[str]:
        """The devices to be marked Unhealthy, so that what the kubelet counts as free is what the book has free."""

    def take_inventory(self, inventory: GpuInventory) -> None:
        """The GPUs as they are from now on: new ones, sick ones, ones that are well again."""


class GpuPlugin(DevicePlugin):
    """Serves the GPU memory of this node under the name of one dialect."""

    def __init__(
        self,
        dialect: Dialect,
        monitor: GpuMonitor,
        allocation: GpuAllocation,
        paths: KubeletPaths | None = None,
    ) -> None:
        """With paths, it looks at the kubelet's checkpoint before it starts: see `open`."""
        self.resource = dialect.memory
        self.dialect = dialect
        self._monitor = monitor
        self._allocation = allocation
        self._paths = paths
        self._take(GpuInventory())

    async def open(self) -> None:
        """Wait for the driver.

        UserError where one message to the kubelet has no room for all slices, or where pods hold slices of another
        size: counted by the new one, their GPUs would be sold twice.
        """
        await self._monitor.ready()
        inventory = self._monitor.inventory
        if reason := why_too_many(inventory, self.dialect):
            raise UserError(reason)
        if self._paths is not None and (
            reason := await _why_other_unit(self._paths, self._monitor.clock, inventory, self.dialect)
        ):
            raise UserError(reason)

    async def devices(self) -> AsyncIterator[list[Device]]:
        await self._monitor.ready()
        while True:
            gpus, book = self._monitor.changed.count, self._allocation.changed.count
            yield self._listed()
            reached("gpus.published")
            await first(self._monitor.changed.beyond(gpus), self._allocation.changed.beyond(book))

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Slices of one GPU."""
        places = {key: place for place, key in enumerate(self._slices.keys)}

        def group(id: str) -> int:
            return places.get(id.partition("-")[0], -1)

        return from_one_group(group, slice_order, available, must_include, size)

    async def allocate(self, ids: Sequence[str]) -> Allocation:
        return await self._allocation.allocate(self.resource, ids)

    async def prestart(self, ids: Sequence[str]) -> None:
        await self._allocation.prestart(self.resource, ids)

    def _listed(self) -> list[Device]:
        """Every slice; the very same objects where nothing has changed, which the SDK compares quickly."""
        inventory = self._monitor.inventory
        if inventory.shared != self._inventory.shared:
            self._take(inventory)
        marked = self._allocation.unhealthy(self.resource)
        if not marked:
            return list(self._devices)
        listed = list(self._devices)
        for id in marked:
            if (place := self._places.get(id)) is not None:
                listed[place] = self._unhealthy.setdefault(id, self._devices[place].unhealthy())
        return listed

    def _take(self, inventory: GpuInventory) -> None:
        self._inventory = inventory
        self._slices = slices_of(inventory.shared, self.dialect.unit)
        near = {gpu.uuid: () if gpu.numa is None else (gpu.numa,) for gpu in inventory.shared}
        self._devices = [Device(id, numa=near[uuid]) for uuid, ids in self._slices.ids.items() for id in ids]
        self._places = {device.id: place for place, device in enumerate(self._devices)}
        self._unhealthy: dict[str, Device] = {}


def why_too_many(inventory: GpuInventory, dialect: Dialect) -> str:
    """Why a kubelet could not take the slices of these GPUs, and which unit to use; empty where it could."""
    if message_bytes(inventory.shared, dialect.unit) <= MESSAGE_LIMIT:
        return ""
    memory = sum(gpu.memory for gpu in inventory.shared)
    devices = sum(gpu.memory // dialect.unit for gpu in inventory.shared)
    unit = smallest_unit(inventory.shared, MESSAGE_LIMIT)
    return (
        f"{dialect.memory}: {count(len(inventory.shared), 'GPU')} with {amount(memory << 20)} in units of "
        f"{amount(dialect.unit << 20)} make {devices} devices, and a kubelet takes 4 MiB in one message; set the "
        f"unit of gpus.dialects[{dialect.name}] to {unit}Mi or more, on every node of the cluster"
    )


async def _why_other_unit(
    paths: KubeletPaths, clock: Clock, inventory: GpuInventory, dialect: Dialect
) -> str:
    """Which pods were given slices of another size; empty where none was, or nobody can say."""
    try:
        entries = await injected_entries(paths, {dialect.memory})
    except Unavailable:
        return ""
    # Entries of pods that have ended linger in the checkpoint: a drained node may have another unit.
    try:
        alive = held_in(await list_pods(paths, clock), dialect.memory)
        entries = tuple(each for each in entries if each.ids & alive)
    except Unavailable:
        pass
    held = [
        GpuHolding(
            key=AnswerKey(each.uid, each.resource, each.container), ids=each.ids, injected=each.injected
        )
        for each in entries
    ]
    pods = sorted({each.key.uid for each in held if other_unit(each, inventory, dialect)})
    if not pods:
        return ""
    return (
        f"{dialect.memory}: {count(len(pods), 'running pod')} got devices of another unit than "
        f"{amount(dialect.unit << 20)} ({some(pods)}); set the unit of gpus.dialects[{dialect.name}] back, or delete "
        "these pods first"
    )
