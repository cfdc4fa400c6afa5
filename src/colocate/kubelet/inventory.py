"""Which ids the kubelet is told of: pure, from lists and holders.

An id that a plugin no longer lists is not dropped at once. It goes Unhealthy first, so that no Allocate in
flight loses it; it is dropped when it has lingered and no pod holds it; and while nobody can say who holds
what, nothing is dropped.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from colocate.model.device import Device


class Inventory(msgspec.Struct, frozen=True):
    """The ids of one resource: those wanted by the plugin, and those on their way out."""

    wanted: dict[str, Device] = {}
    leaving: dict[str, tuple[Device, float]] = {}
    """Unhealthy devices, each with the moment at which it was withdrawn."""

    @property
    def published(self) -> list[Device]:
        """The list for the kubelet."""
        return [*self.wanted.values(), *(device for device, _ in self.leaving.values())]

    def knows(self, ids: Iterable[str]) -> bool:
        return all(id in self.wanted or id in self.leaving for id in ids)


def replace(inventory: Inventory, devices: Sequence[Device], now: float) -> Inventory:
    """The plugin's new list. Raises ValueError where an id is listed twice."""
    wanted = {device.id: device for device in devices}
    if len(wanted) < len(devices):
        raise ValueError(f"the id {_first_repeated(devices)!r} is listed twice; ids must be unique")
    gone = inventory.wanted.keys() - wanted.keys()
    if not gone and not inventory.leaving:
        return Inventory(wanted)
    leaving = {id: entry for id, entry in inventory.leaving.items() if id not in wanted}
    leaving.update((id, (inventory.wanted[id].unhealthy(), now)) for id in sorted(gone))
    return Inventory(wanted, leaving)


def keep_held(inventory: Inventory, held: AbstractSet[str], now: float) -> Inventory:
    """Add ids that pods hold and the plugin does not list, as a plugin that was restarted may not."""
    unlisted = held - inventory.wanted.keys() - inventory.leaving.keys()
    if not unlisted:
        return inventory
    found = {id: (Device(id).unhealthy(), now) for id in sorted(unlisted)}
    return Inventory(inventory.wanted, inventory.leaving | found)


def drop_unheld(inventory: Inventory, held: AbstractSet[str] | None, now: float, linger: float) -> Inventory:
    """Without the ids that have lingered and that no pod holds; `held` is None where nobody knows."""
    if held is None:
        return inventory
    leaving = {
        id: (device, since)
        for id, (device, since) in inventory.leaving.items()
        if id in held or now - since < linger
    }
    return Inventory(inventory.wanted, leaving)


def _first_repeated(devices: Iterable[Device]) -> str:
    count = Counter(device.id for device in devices)
    return next(id for id, times in count.items() if times > 1)
