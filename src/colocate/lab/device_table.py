"""A kubelet's devices and their holders, and the choice of devices for a container. No I/O, no waiting.

The rules are those of kubelet 1.34: healthy and not held; an init container's devices are reused for the next
container of its pod; aligned NUMA nodes first; the plugin's preference within that.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry
from colocate.model.device import Device, Health
from colocate.wire import deviceplugin_pb2 as dp

Pick = Callable[[Iterable[str]], list[str]]
"""The order in which equal devices are taken. The real kubelet's order is random, that of a Go map."""


class AdmissionError(Exception):
    """A container cannot get its devices; the message has the kubelet's wording."""


class Held(msgspec.Struct, frozen=True):
    """The devices of one resource that one container holds."""

    pod_uid: str
    container: str
    resource: str
    by_numa: dict[int, tuple[str, ...]]
    response: bytes
    """The container's part of the plugin's answer to Allocate, serialised."""

    @property
    def ids(self) -> set[str]:
        return {id for ids in self.by_numa.values() for id in ids}


class DeviceWish(msgspec.Struct, frozen=True):
    """The choice that is left for a container after its fixed devices."""

    taken: list[str]
    available: list[str]
    aligned: list[str]
    size: int

    @property
    def needed(self) -> int:
        return self.size - len(self.taken)

    @property
    def question(self) -> tuple[list[str], list[str]] | None:
        """The arguments of GetPreferredAllocation (available, must include); None where there is no choice."""
        if self.needed == 0 or self.needed == len(self.aligned):
            return None
        if self.needed < len(self.aligned):
            return [*self.taken, *self.aligned], self.taken
        return [*self.taken, *self.available], [*self.taken, *self.aligned]

    def choose(self, preferred: Sequence[str] = ()) -> list[str]:
        """Choose devices: fixed ones first, aligned ones before others, preferred ones within that."""
        if self.needed <= len(self.aligned):
            pools = [_only(preferred, self.aligned), self.aligned]
        else:
            pools = [self.aligned, _only(preferred, self.available), self.available]
        chosen = dict.fromkeys(self.taken)
        for pool in pools:
            for id in pool:
                if len(chosen) == self.size:
                    break
                chosen[id] = None
        return list(chosen)


def _only(ids: Sequence[str], allowed: Sequence[str]) -> list[str]:
    known = set(allowed)
    return [id for id in ids if id in known]


class DeviceTable:
    """Registered devices and their holders."""

    def __init__(self, pick: Pick = sorted) -> None:
        self.devices: dict[str, dict[str, Device]] = {}
        self.held: dict[tuple[str, str, str], Held] = {}
        self.in_flight: dict[str, set[str]] = {}
        """Ids chosen for an Allocate that has not been answered yet."""
        self._reusable: dict[str, dict[str, list[str]]] = {}
        self._pick = pick

    # --- what plugins say ------------------------------------------------------------------------

    def replace(self, resource: str, devices: Iterable[dp.Device]) -> None:
        """Replace a plugin's list."""
        self.devices[resource] = {
            device.ID: Device(
                device.ID,
                Health.HEALTHY if device.health == Health.HEALTHY else Health.UNHEALTHY,
                tuple(node.ID for node in device.topology.nodes),
            )
            for device in devices
        }

    def lookups(self, resource: str, devices: Iterable[dp.Device], *, all_resources: bool) -> int:
        """The cost of a list in kubelets that report device health in the status of pods (from 1.36).

        They look up every new device, and every device with changed health, among the ids that containers hold: of
        all resources in 1.36, of the same resource later.
        """
        known = self.devices.get(resource, {})
        changed = sum(
            device.ID not in known or known[device.ID].health != device.health for device in devices
        )
        holding = (held for held in self.held.values() if all_resources or held.resource == resource)
        return changed * sum(len(held.ids) for held in holding)

    def mark_unhealthy(self, resource: str) -> None:
        """Mark all devices of a disconnected plugin Unhealthy."""
        known = self.devices.get(resource, {})
        self.devices[resource] = {id: device.unhealthy() for id, device in known.items()}

    def healthy(self, resource: str) -> list[str]:
        known = self.devices.get(resource, {})
        return [id for id, device in known.items() if device.health is Health.HEALTHY]

    # --- who holds what --------------------------------------------------------------------------

    def used(self, resource: str) -> set[str]:
        held = (entry.ids for entry in self.held.values() if entry.resource == resource)
        return set().union(*held, self.in_flight.get(resource, set()))

    def of_container(self, pod_uid: str, container: str) -> list[Held]:
        return [e for e in self.held.values() if (e.pod_uid, e.container) == (pod_uid, container)]

    def forget_all_but(self, active: Iterable[str]) -> None:
        """Free the devices of pods that are no longer active."""
        keep = set(active)
        self.held = {key: entry for key, entry in self.held.items() if entry.pod_uid in keep}

    # --- what a container would get --------------------------------------------------------------

    def wish(
        self, pod_uid: str, container: str, resource: str, size: int, numa: frozenset[int] | None
    ) -> DeviceWish | None:
        """The choice for a container; None where it already has its devices."""
        entry = self.held.get((pod_uid, container, resource))
        before = entry.ids if entry else set()
        if entry and len(before) != size:
            raise AdmissionError(
                f'pod "{pod_uid}" container "{container}" changed request for resource "{resource}" '
                f"from {len(before)} to {size}"
            )
        if resource not in self.devices:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        healthy = set(self.healthy(resource))
        if not healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not before <= healthy:
            raise AdmissionError(
                f"previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {resource}"
            )
        if entry:
            return None
        taken = self._pick(self._reusable.get(pod_uid, {}).get(resource, []))[:size]
        needed = size - len(taken)
        available = healthy - self.used(resource) if needed else set()
        if len(available) < needed:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        aligned = [id for id in available if numa and numa & set(self.devices[resource][id].numa)]
        return DeviceWish(taken, self._pick(available), self._pick(aligned), size)

    def grant(self, pod_uid: str, container: str, resource: str, ids: Sequence[str], response: bytes) -> None:
        """Record that a container holds devices. KeyError for an id that has left the list."""
        by_numa: dict[int, tuple[str, ...]] = {}
        for id in ids:
            for node in self.devices[resource][id].numa or (NO_TOPOLOGY,):
                by_numa[node] = (*by_numa.get(node, ()), id)
        self.held[pod_uid, container, resource] = Held(pod_uid, container, resource, by_numa, response)

    def hand_on(self, pod_uid: str, container: str, *, reusable: bool) -> None:
        """After a container was admitted: make an init container's devices reusable for the next one."""
        for uid in [uid for uid in self._reusable if uid != pod_uid]:
            del self._reusable[uid]
        pool = self._reusable.setdefault(pod_uid, {})
        for entry in self.of_container(pod_uid, container):
            ids = pool.setdefault(entry.resource, [])
            if reusable:
                ids += [id for id in entry.ids if id not in ids]
            else:
                pool[entry.resource] = [id for id in ids if id not in entry.ids]

    # --- the checkpoint --------------------------------------------------------------------------

    def to_checkpoint(self) -> Checkpoint:
        entries = tuple(
            Entry(e.pod_uid, e.container, e.resource, dict(e.by_numa), e.response) for e in self.held.values()
        )
        registered: dict[str, tuple[str, ...] | None] = {
            resource: tuple(self.healthy(resource)) for resource in self.devices
        }
        return Checkpoint(entries or None, registered)

    def load(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint: the holders, and resources without devices."""
        for entry in checkpoint.entries or ():
            response = entry.alloc_resp or b""
            held = Held(entry.pod_uid, entry.container, entry.resource, entry.by_node, response)
            self.held[held.pod_uid, held.container, held.resource] = held
        self.devices = {resource: {} for resource in checkpoint.registered or {}}
