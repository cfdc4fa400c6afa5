"""The device plugin of GPU memory in one dialect: GPUs as slices, without any knowledge of pods.

It knows ids, units and the kubelet. A `GpuAllocation`, which knows pods, annotations and the book, answers which pod
a container is of and which GPU it gets. Neither knows the other's half.
"""

from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

import msgspec

from colocate import telemetry
from colocate.aio import Watched, first
from colocate.crashpoints import reached
from colocate.errors import Unavailable, UserError
from colocate.gpus import (
    DIALECTS,
    AnswerKey,
    Dialect,
    GpuBook,
    GpuHolding,
    bearable_unit,
    message_bytes,
    other_unit,
    slice_order,
    slices_of,
    smallest_unit,
)
from colocate.gpus.agent.monitor import GpuMonitor
from colocate.kubelet import MESSAGE_LIMIT, DevicePlugin
from colocate.kubelet.holders import InjectedEntry, held_in, injected_entries
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import list_pods
from colocate.model.device import Allocation, Device, from_one_group
from colocate.model.device_cost import DeviceCost
from colocate.model.figures import amount, count, some
from colocate.model.gpu import GpuInventory
from colocate.telemetry import Event

_LOOK = 10.0
"""Seconds between two looks at what is still held in a dialect that drains, and at GPUs that are withheld."""


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

    def ended(self, uids: AbstractSet[str]) -> AbstractSet[str] | None:
        """Those of these pods that have ended, by the API; None while it has not told."""

    def unhealthy(self, resource: str) -> AbstractSet[str]:
        """The devices to be marked Unhealthy, so that what the kubelet counts as free is what the book has free."""

    def take_inventory(self, inventory: GpuInventory) -> None:
        """The GPUs as they are from now on: new ones, sick ones, ones that are well again."""


class SliceBound(Protocol):
    """Whether the kubelet of a node can bear all devices of an agent, those of other resources as well."""

    warning: str
    """What is withheld, or what a newer kubelet would not bear; empty where there is nothing to fear."""

    @property
    def cost(self) -> DeviceCost:
        """Of all devices that are offered."""

    async def admit(self, inventory: GpuInventory) -> None:
        """Offer the slices of these GPUs in all dialects; UserError where the kubelet cannot bear them, Unavailable
        while its version is not known, and then they are not offered."""


class GpuPlugin(DevicePlugin):
    """Serves the GPU memory of this node under the name of one dialect."""

    def __init__(
        self,
        dialect: Dialect,
        monitor: GpuMonitor,
        allocation: GpuAllocation,
        paths: KubeletPaths | None = None,
        bound: SliceBound | None = None,
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
        self.withheld = ""
        """Why GPUs that have come are not offered; empty where all are."""
        self._asked = 0, 0.0
        """When that was asked last: at how many changes of the GPUs, and the time."""
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
            await self._bound.admit(inventory)
        if self._paths is not None:
            reason = await self._why_other_unit(self._paths, inventory) or await self._why_unserved(
                self._paths
            )
            if reason:
                raise UserError(reason)

    async def devices(self) -> AsyncIterator[list[Device]]:
        await self._monitor.ready()
        while True:
            gpus, book = self._monitor.changed.count, self._allocation.changed.count
            held = await self._held() if self.dialect.drains else None
            is_whole = await self._take_gpus()
            yield self._listed(held)
            reached("gpus.published")
            changes = (self._monitor.changed.beyond(gpus), self._allocation.changed.beyond(book))
            if self.dialect.drains or not is_whole:
                # Its pods end, and the kubelet's records say so a moment later; or the kubelet becomes another.
                await first(*changes, self._monitor.clock.sleep(_LOOK))
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
        """The slices that containers hold by the agent's answers or the kubelet's records; None: unknown."""
        held = self._allocation.held(self.resource)
        if self._paths is None:
            return held
        try:
            # Not by a List of podresources: it makes the kubelet forget the Allocate in flight (see known_pods).
            entries = await injected_entries(self._paths, {self.resource})
        except Unavailable:
            return None
        ended = self._allocation.ended({entry.uid for entry in entries}) or frozenset()
        return held | {id for entry in entries if entry.uid not in ended for id in entry.ids}

    def _listed(self, held: AbstractSet[str] | None = None) -> list[Device]:
        """Every slice; the very same objects where nothing has changed, which the SDK compares quickly.

        Of a dialect that drains, only those that are `held`: containers keep what they have, and nothing else can be
        allocated. Where it is unknown which are held, all are listed, and none can be allocated.
        """
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

    async def _take_gpus(self) -> bool:
        """List the slices of the GPUs as they are now; False where that is withheld, as it is more than the kubelet
        bears. Fewer are always taken."""
        inventory = self._monitor.inventory
        if inventory.shared == self._inventory.shared:
            self.withheld = ""
            return True
        if (
            self._bound is not None
            and not self.dialect.drains
            and not await self._admits(self._bound, inventory)
        ):
            inventory = _as_before(inventory, self._inventory)
        if inventory.shared != self._inventory.shared:
            self._take(inventory)
        return not self.withheld

    async def _admits(self, bound: SliceBound, inventory: GpuInventory) -> bool:
        now, seen = self._monitor.clock.monotonic(), self._monitor.changed.count
        if self.withheld and seen == self._asked[0] and now < self._asked[1] + _LOOK:
            return False
        self._asked = seen, now
        try:
            await bound.admit(inventory)
        except (UserError, Unavailable) as error:
            if self.withheld != str(error):
                self.withheld = str(error)
                telemetry.logger().error(
                    Event.PLUGIN_DEVICES_FAILED,
                    resource=self.resource,
                    reason=self.withheld,
                    effect="GPUs that have come are not offered",
                )
            return False
        self.withheld = ""
        return True

    async def _why_other_unit(self, paths: KubeletPaths, inventory: GpuInventory) -> str:
        """Which pods were given slices of another size; empty where none was, or it cannot be read."""
        dialect = self.dialect
        try:
            entries = await injected_entries(paths, {dialect.memory})
        except Unavailable:
            return ""
        others = [each for each in entries if other_unit(_holding(each), inventory, dialect)]
        pods = sorted({each.uid for each in await self._alive(paths, others)})
        if not pods:
            return ""
        return (
            f"{dialect.memory}: {count(len(pods), 'running pod')} got devices of another unit than "
            f"{amount(dialect.unit << 20)} ({some(pods)}); set the unit of gpus.dialects[{dialect.name}] back, or "
            "delete these pods first"
        )

    async def _why_unserved(self, paths: KubeletPaths) -> str:
        """Which pods hold GPU memory under names that this agent knows and does not serve; empty where none does."""
        mine = {dialect.memory for dialect in self._served}
        for dialect in DIALECTS.values():
            if dialect.memory in mine:
                continue
            try:
                entries = await injected_entries(paths, {dialect.memory})
            except Unavailable:
                return ""
            if pods := sorted({each.uid for each in await self._alive(paths, entries)}):
                return (
                    f"{count(len(pods), 'running pod')} of this node {'hold' if len(pods) > 1 else 'holds'} "
                    f"{dialect.memory} ({some(pods)}), which gpus.dialects does not name: it would be sold twice; "
                    f"add {{name: {dialect.name}, drain: true}} to gpus.dialects, with the unit that it had, until "
                    "they have ended"
                )
        return ""

    async def _alive(self, paths: KubeletPaths, entries: Sequence[InjectedEntry]) -> Sequence[InjectedEntry]:
        """Without those of pods that have ended: their entries linger in the checkpoint.

        By the API where it has told. A List of podresources is asked for only where it has not and an entry would
        stop the start: it makes the kubelet forget an Allocate in flight (see known_pods).
        """
        if not entries:
            return ()
        ended = self._allocation.ended({each.uid for each in entries})
        if ended is not None:
            return [each for each in entries if each.uid not in ended]
        try:
            listed = await list_pods(paths, self._monitor.clock)
        except Unavailable:
            return entries
        return [each for each in entries if each.ids & held_in(listed, each.resource)]

    def _take(self, inventory: GpuInventory) -> None:
        self._inventory = inventory
        self._slices = slices_of(inventory.shared, self.dialect.unit)
        near = {gpu.uuid: () if gpu.numa is None else (gpu.numa,) for gpu in inventory.shared}
        self._devices = [Device(id, numa=near[uuid]) for uuid, ids in self._slices.ids.items() for id in ids]
        self._places = {device.id: place for place, device in enumerate(self._devices)}
        self._unhealthy: dict[str, Device] = {}


def _as_before(inventory: GpuInventory, before: GpuInventory) -> GpuInventory:
    """The GPUs that were there, as they are now, and none of them larger."""
    known = {gpu.uuid: gpu.memory for gpu in before.shared}
    return GpuInventory(
        tuple(
            msgspec.structs.replace(gpu, memory=min(gpu.memory, known[gpu.uuid]))
            for gpu in inventory.gpus
            if gpu.uuid in known
        )
    )


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


def _holding(entry: InjectedEntry) -> GpuHolding:
    key = AnswerKey(entry.uid, entry.resource, entry.container)
    return GpuHolding(key=key, ids=entry.ids, injected=entry.injected)
