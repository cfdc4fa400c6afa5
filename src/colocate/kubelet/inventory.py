"""Decides which ids are published to the kubelet, from lists and holders. Pure.

An id that a plugin no longer lists becomes Unhealthy first, so that no Allocate in flight loses it. It is dropped
when the kubelet has seen it Unhealthy for a while and no pod holds it. While the holders are unknown, nothing is
dropped.

Most lists differ from the previous one in a few places. These are found by comparing slices, which is nearly free
where the devices are identical objects, and only they are processed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import cast

import msgspec

from colocate.model.device import Device, Health

_SLICE = 128


class LeavingDevice(msgspec.Struct, frozen=True):
    """A device that is leaving the list."""

    device: Device
    told_at: float | None = None
    """When the kubelet was sent it as Unhealthy; None before that."""


class DeviceInventory(msgspec.Struct, frozen=True):
    """The ids of one resource: those that the plugin lists, and those that are leaving."""

    listed: list[Device] = []
    """In the plugin's order; never changed in place."""
    places: dict[str, int] = {}
    """Index in `listed`, by id."""
    healthy: int = 0
    leaving: dict[str, LeavingDevice] = {}
    changed: Sequence[int] | None = None
    """Indexes where `listed` differs from the previous version, if nothing else differs; None where anything
    may."""

    def knows(self, id: str) -> bool:
        return id in self.places or id in self.leaving


def replace(inventory: DeviceInventory, devices: Iterable[Device | str]) -> DeviceInventory:
    """Take the plugin's new list. ValueError where an item is not a device, or an id occurs twice."""
    new = list(devices)
    places = _differing(inventory.listed, new)
    if places is not None and not _renamed(inventory.listed, new, places):
        listed = cast(list[Device], new)  # Items that were no Device differed, and are Devices now.
        gained = sum(listed[place].health is Health.HEALTHY for place in places)
        lost = sum(inventory.listed[place].health is Health.HEALTHY for place in places)
        return DeviceInventory(
            listed, inventory.places, inventory.healthy + gained - lost, inventory.leaving, places
        )
    return _replace_all(inventory, [as_device(one) for one in new])


def keep_held(inventory: DeviceInventory, held: AbstractSet[str]) -> DeviceInventory:
    """Add ids that pods hold and the plugin does not list, as can happen after its restart."""
    unlisted = held - inventory.places.keys() - inventory.leaving.keys()
    if not unlisted:
        return inventory
    found = {id: LeavingDevice(Device(id).unhealthy()) for id in sorted(unlisted)}
    return _with_leaving(inventory, inventory.leaving | found)


def told(inventory: DeviceInventory, now: float) -> DeviceInventory:
    """Note that the kubelet has received this list, and with it that leaving devices are Unhealthy."""
    if all(entry.told_at is not None for entry in inventory.leaving.values()):
        return inventory
    leaving = {
        id: LeavingDevice(entry.device, now if entry.told_at is None else entry.told_at)
        for id, entry in inventory.leaving.items()
    }
    return _with_leaving(inventory, leaving)


def due(inventory: DeviceInventory, now: float, linger: float) -> set[str]:
    """The ids that have lingered long enough, held or not."""
    return {
        id
        for id, entry in inventory.leaving.items()
        if entry.told_at is not None and now - entry.told_at >= linger
    }


def drop_unheld(
    inventory: DeviceInventory, held: AbstractSet[str] | None, now: float, linger: float
) -> DeviceInventory:
    """The inventory without ids that have lingered and that no pod holds; `held` is None where that is unknown."""
    dropped = set() if held is None else due(inventory, now, linger) - held
    if not dropped:
        return inventory
    return _with_leaving(
        inventory, {id: entry for id, entry in inventory.leaving.items() if id not in dropped}
    )


def as_device(one: Device | str) -> Device:
    """A device from a device or an id; ValueError with a remedy for anything else."""
    if isinstance(one, Device):
        return one
    if isinstance(one, str):
        return Device(one)
    raise ValueError(f"{one!r:.100} is not a device; list Device objects, or plain ids as text")


def _differing(old: list[Device], new: Sequence[Device | str]) -> list[int] | None:
    """Where two lists of equal length differ; None where their lengths do."""
    if len(old) != len(new):
        return None
    return [
        place
        for start in range(0, len(old), _SLICE)
        if old[start : start + _SLICE] != new[start : start + _SLICE]
        for place in range(start, min(start + _SLICE, len(old)))
        if old[place] != new[place]
    ]


def _renamed(old: list[Device], new: list[Device | str], places: list[int]) -> bool:
    """Make devices of the items that differ, in place; True where an id differs."""
    for place in places:
        device = new[place] = as_device(new[place])
        if device.id != old[place].id:
            return True
    return False


def _replace_all(inventory: DeviceInventory, listed: list[Device]) -> DeviceInventory:
    places = {device.id: place for place, device in enumerate(listed)}
    if len(places) < len(listed):
        raise ValueError(f"the id {_first_repeated(listed)!r} is listed twice; ids must be unique")
    leaving = {id: entry for id, entry in inventory.leaving.items() if id not in places}
    for id in sorted(inventory.places.keys() - places.keys()):
        leaving[id] = LeavingDevice(inventory.listed[inventory.places[id]].unhealthy())
    healthy = [device.health for device in listed].count(Health.HEALTHY)
    return DeviceInventory(listed, places, healthy, leaving)


def _with_leaving(inventory: DeviceInventory, leaving: dict[str, LeavingDevice]) -> DeviceInventory:
    return DeviceInventory(inventory.listed, inventory.places, inventory.healthy, leaving)


def _first_repeated(devices: Iterable[Device]) -> str:
    count = Counter(device.id for device in devices)
    return next(id for id, times in count.items() if times > 1)
