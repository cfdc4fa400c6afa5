"""A device plugin for devices that do not exist, with faults on demand.

`devices` says which devices exist, `inject` what a container gets, `faults` what goes wrong; the plugin joins them.
"""

from collections.abc import AsyncIterator, Sequence

from colocate.aio import Watched
from colocate.clock import Clock
from colocate.config.words import suggest
from colocate.devices.mock import devices as mock_devices
from colocate.devices.mock import inject as mock_inject
from colocate.devices.mock.faults import Change, Faults, after
from colocate.devices.mock.section import MockResource
from colocate.errors import UserError
from colocate.kubelet.plugin import GatedPlugin, Refused
from colocate.model.device import Allocation, Device


class MockPlugin(GatedPlugin):
    """Serves one mock resource."""

    def __init__(self, config: MockResource, clock: Clock) -> None:
        self.resource = config.name
        self.faults = Faults()
        self._clock = clock
        self._changes = Watched()
        self._take(config)

    def configure(self, config: MockResource) -> None:
        """Use another configuration; faults stay with the devices that still exist."""
        self._take(config)
        self.faults = self.faults.only(self._devices)
        self._changes.changed()

    def change(self, change: Change) -> None:
        """Set a fault, or clear it."""
        for id in getattr(change, "ids", ()):
            if id not in self._devices:
                raise UserError(f"{self.resource} has no device {id!r}; {suggest(id, self._devices, 'ids')}")
        self.faults = after(self.faults, change)
        self._changes.changed()

    @property
    def all_devices(self) -> list[Device]:
        """Every device with its health now, including those that have vanished."""
        broken = self.faults.unhealthy
        return [device.unhealthy() if id in broken else device for id, device in self._devices.items()]

    async def devices(self) -> AsyncIterator[list[Device]]:
        while True:
            seen = self._changes.count
            yield [device for device in self.all_devices if device.id not in self.faults.vanished]
            await self._changes.beyond(seen)

    async def allocate(self, ids: Sequence[str]) -> Allocation:
        if self.faults.slow:
            await self._clock.sleep(self.faults.slow)
        if self.faults.fail is not None:
            message = self.faults.fail.message
            self.faults = self.faults.one_failure_less()
            raise Refused(message)
        gone = [id for id in ids if id in self.faults.vanished or id not in self._devices]
        if gone:
            raise Refused(f"{self.resource} no longer has the device {gone[0]!r}: it has vanished")
        return mock_inject.filled(self._config, ids)

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        return mock_devices.preferred(self._numa, available, must_include, size)

    async def gate(self) -> None:
        """Wait while the fault `hang` is set: the kubelet gets no list and no answer, and no deadline applies."""
        while self.faults.hang:
            await self._changes.beyond(self._changes.count)

    def _take(self, config: MockResource) -> None:
        self._config = config
        self._devices = {device.id: device for device in mock_devices.devices_of(config)}
        self._numa = {id: device.numa[0] for id, device in self._devices.items() if device.numa}
