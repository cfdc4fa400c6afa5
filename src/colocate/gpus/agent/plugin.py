"""The device plugin of GPU memory in one dialect: GPUs as slices, and their containers handed to who knows pods.

It knows ids, units and the kubelet. Which pod a container is of, and which GPU it gets, is answered by a
`GpuAllocation`, which knows pods, annotations and the book. Neither knows the other's half.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from colocate import telemetry
from colocate.aio import Watched, first
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.errors import Unavailable, UserError
from colocate.gpus import (
    DEAR_FROM,
    DIALECTS,
    AnswerKey,
    DeviceCost,
    Dialect,
    GpuBook,
    GpuHolding,
    KubeletVersion,
    bearable_unit,
    device_cost,
    message_bytes,
    other_unit,
    slice_order,
    slices_of,
    smallest_unit,
    why_too_dear,
)
from colocate.gpus.agent.monitor import GpuMonitor
from colocate.kubelet import MESSAGE_LIMIT, DevicePlugin
from colocate.kubelet.holders import InjectedEntry, held_in, injected_entries
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import list_pods
from colocate.model.device import Allocation, Device, from_one_group
from colocate.model.figures import amount, count, some
from colocate.model.gpu import GpuInventory
from colocate.telemetry import Event

_DRAIN_LOOK = 10.0
"""Seconds between two looks at what is still held in a dialect that drains."""


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

    def held(self, resource: str) -> AbstractSet[str]:
        """The devices that containers hold, as far as it was told."""

    def ended(self, uids: AbstractSet[str]) -> AbstractSet[str]:
        """Those of these pods that have ended, by the API; none while it has not told."""

    def unhealthy(self, resource: str) -> AbstractSet[str]:
        """The devices to be marked Unhealthy, so that what the kubelet counts as free is what the book has free."""

    def take_inventory(self, inventory: GpuInventory) -> None:
        """The GPUs as they are from now on: new ones, sick ones, ones that are well again."""


class DeviceBound:
    """Whether a kubelet can bear all devices of a node, of all dialects and other resources together."""

    def __init__(
        self,
        dialects: Sequence[Dialect],
        others: int,
        kubelet: Callable[[], Awaitable[KubeletVersion | None]],
    ) -> None:
        """`others` are devices that the agent may offer beside GPUs; `kubelet` asks for its version."""
        self.warning = ""
        """What an older kubelet bears and a newer one would not; empty where there is nothing to fear."""
        self._dialects = dialects
        self._others = others
        self._kubelet = kubelet

    def cost(self, inventory: GpuInventory) -> DeviceCost:
        return device_cost(inventory.shared, self._dialects, self._others)

    async def check(self, inventory: GpuInventory) -> None:
        """UserError where there are too many for the kubelet of this node, or for one whose version nobody knows."""
        reason = why_too_dear(inventory.shared, self._dialects, self._others)
        if not reason:
            return
        version = await self._kubelet()
        if version is None or version >= DEAR_FROM:
            raise UserError(reason)
        if not self.warning:
            telemetry.logger().warning(
                Event.GPU_DEVICES_DEAR, kubelet=f"{version[0]}.{version[1]}", reason=reason
            )
        self.warning = f"before this node's kubelet becomes 1.36 or newer: {reason}"


class GpuPlugin(DevicePlugin):
    """Serves the GPU memory of this node under the name of one dialect."""

    def __init__(
        self,
        dialect: Dialect,
        monitor: GpuMonitor,
        allocation: GpuAllocation,
        paths: KubeletPaths | None = None,
        bound: DeviceBound | None = None,
        served: Sequence[Dialect] = (),
    ) -> None:
        """With paths, it looks at the kubelet's checkpoint before it starts: see `open`. `served` are all dialects of
        this agent."""
        self.resource = dialect.memory
        self.dialect = dialect
        self._monitor = monitor
        self._allocation = allocation
        self._paths = paths
        self._bound = bound
        self._served = served or (dialect,)
        self._take(GpuInventory())

    async def open(self) -> None:
        """Wait for the driver.

        UserError where one message to the kubelet has no room for all slices, where a kubelet could not bear so many,
        or where pods hold slices of another size or of a dialect that is served no more: that would be sold twice.
        """
        await self._monitor.ready()
        inventory = self._monitor.inventory
        if not self.dialect.drains and (reason := why_too_many(inventory, self.dialect)):
            raise UserError(reason)
        if self._bound is not None and not self.dialect.drains:
            await self._bound.check(inventory)
        if self._paths is not None and (
            reason := await _why_other_unit(self._paths, self._monitor.clock, inventory, self.dialect)
        ):
            raise UserError(reason)
        if self._paths is not None and (
            reason := await _why_unserved(self._paths, self._monitor.clock, self._served)
        ):
            raise UserError(reason)

    async def devices(self) -> AsyncIterator[list[Device]]:
        await self._monitor.ready()
        while True:
            gpus, book = self._monitor.changed.count, self._allocation.changed.count
            held = await self._held() if self.dialect.drains else None
            yield self._listed(held)
            reached("gpus.published")
            changes = (self._monitor.changed.beyond(gpus), self._allocation.changed.beyond(book))
            if self.dialect.drains:
                # Its pods end, and the kubelet's records say so a moment later.
                await first(*changes, self._monitor.clock.sleep(_DRAIN_LOOK))
            else:
                await first(*changes)

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

    async def _held(self) -> AbstractSet[str] | None:
        """The slices that containers hold by the agent's answers or the kubelet's records; None: nobody can say."""
        held = self._allocation.held(self.resource)
        if self._paths is None:
            return held
        try:
            # Not by a List of podresources: it makes the kubelet forget the Allocate in flight (see known_pods).
            entries = await injected_entries(self._paths, {self.resource})
        except Unavailable:
            return None
        ended = self._allocation.ended({entry.uid for entry in entries})
        return held | {id for entry in entries if entry.uid not in ended for id in entry.ids}

    def _listed(self, held: AbstractSet[str] | None = None) -> list[Device]:
        """Every slice; the very same objects where nothing has changed, which the SDK compares quickly.

        Of a dialect that drains, those that are `held`: what they name stays theirs, and nothing else is there to be
        had. Where nobody can say which these are, all are listed, and none of them can be had.
        """
        inventory = self._monitor.inventory
        if inventory.shared != self._inventory.shared:
            self._take(inventory)
        marked = self._allocation.unhealthy(self.resource)
        if self.dialect.drains:
            kept = self._devices if held is None else [each for each in self._devices if each.id in held]
            mine = self._allocation.held(self.resource) if held is None else held
            return [each.unhealthy() if each.id in marked or each.id not in mine else each for each in kept]
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
        f"unit of gpus.dialects[{dialect.name}] to {unit}Mi or more, {bearable_unit(inventory.shared)}Mi for "
        "kubelets from 1.36 on, on every node of the cluster"
    )


async def _alive_entries(paths: KubeletPaths, clock: Clock, resource: str) -> Sequence[InjectedEntry]:
    """What containers hold by the checkpoint, without pods that have ended: their entries linger there."""
    entries = await injected_entries(paths, {resource})
    try:
        alive = held_in(await list_pods(paths, clock), resource)
    except Unavailable:
        return entries
    return tuple(each for each in entries if each.ids & alive)


async def _why_other_unit(
    paths: KubeletPaths, clock: Clock, inventory: GpuInventory, dialect: Dialect
) -> str:
    """Which pods were given slices of another size; empty where none was, or nobody can say."""
    try:
        entries = await _alive_entries(paths, clock, dialect.memory)
    except Unavailable:
        return ""
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


async def _why_unserved(paths: KubeletPaths, clock: Clock, served: Sequence[Dialect]) -> str:
    """Which pods hold GPU memory under names that this agent knows and does not serve; empty where none does."""
    mine = {dialect.memory for dialect in served}
    for dialect in DIALECTS.values():
        if dialect.memory in mine:
            continue
        try:
            entries = await _alive_entries(paths, clock, dialect.memory)
        except Unavailable:
            return ""
        if pods := sorted({each.uid for each in entries}):
            return (
                f"{count(len(pods), 'running pod')} of this node {'hold' if len(pods) > 1 else 'holds'} "
                f"{dialect.memory} ({some(pods)}), which gpus.dialects does not name: it would be sold twice; "
                f"add {{name: {dialect.name}, drain: true}} to gpus.dialects, with the unit that it had, until they "
                "have ended"
            )
    return ""
