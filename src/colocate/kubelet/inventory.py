"""Which ids the kubelet is told of: pure, from lists and holders.

An id that a plugin no longer lists is not dropped at once. It goes Unhealthy first, so that no Allocate in
flight loses it; it is dropped when the kubelet has known it so for a while and no pod holds it; and while
nobody can say who holds what, nothing is dropped.

Most lists differ from the one before in a few places. Those are found by comparing slices, which costs next to
nothing where the devices are the very same objects; only they are looked at.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import cast

import msgspec

from colocate.model.device import Device, Health

_SLICE = 128


class LeavingDevice(msgspec.Struct, frozen=True):
    """A device on its way out."""

    device: Device
    told_at: float | None = None
    """When the kubelet was told that it is Unhealthy; None before that."""


class DeviceInventory(msgspec.Struct, frozen=True):
    """The ids of one resource: those that the plugin lists, and those on their way out."""

    listed: list[Device] = []
    """In the plugin's order; never changed in place."""
    places: dict[str, int] = {}
    """By id, where in the list."""
    healthy: int = 0
    leaving: dict[str, LeavingDevice] = {}
    changed: Sequence[int] | None = None
    """Where the list differs from the version before, if that is all that does; None: anything may."""

    def knows(self, id: str) -> bool:
        return id in self.places or id in self.leaving


def replace(inventory: DeviceInventory, devices: Iterable[Device | str]) -> DeviceInventory:
    """The plugin's new list. ValueError where something in it is no device, or an id is there twice."""
    new = list(devices)
    places = _differing(inventory.listed, new)
    if places is not None and not _renamed(inventory.listed, new, places):
        listed = cast(list[Device], new)  # What was no Device differed, and was made one.
        gained = sum(listed[place].health is Health.HEALTHY for place in places)
        lost = sum(inventory.listed[place].health is Health.HEALTHY for place in places)
        return DeviceInventory(
            listed, inventory.places, inventory.healthy + gained - lost, inventory.leaving, places
        )
    return _replace_all(inventory, [as_device(one) for one in new])


def keep_held(inventory: DeviceInventory, held: AbstractSet[str]) -> DeviceInventory:
    """Add ids that pods hold and the plugin does not list, as a plugin that was restarted may not."""
    unlisted = held - inventory.places.keys() - inventory.leaving.keys()
    if not unlisted:
        return inventory
    found = {id: LeavingDevice(Device(id).unhealthy()) for id in sorted(unlisted)}
    return _with_leaving(inventory, inventory.leaving | found)


def told(inventory: DeviceInventory, now: float) -> DeviceInventory:
    """The kubelet has received the list as it is: whatever is leaving is known to be Unhealthy."""
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
    """Without the ids that have lingered and that no pod holds; `held` is None where nobody knows."""
    dropped = set() if held is None else due(inventory, now, linger) - held
    if not dropped:
        return inventory
    return _with_leaving(
        inventory, {id: entry for id, entry in inventory.leaving.items() if id not in dropped}
    )


def as_device(one: Device | str) -> Device:
    """A device, or an id as one; ValueError with a remedy where it is neither."""
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
    """Make devices of what differs, in place; whether an id differs."""
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
