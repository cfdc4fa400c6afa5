"""A list of devices costs the embedded kubelet what it costs a real one: time, in which nothing else is done."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from colocate.clock import ManualClock
from colocate.gpus import slices_of
from colocate.lab.device_manager import DeviceManager
from colocate.lab.device_table import Held
from colocate.lab.faults import KubeletFaults
from colocate.model.device import Health
from colocate.model.gpu import Gpu
from colocate.model.pod import Pod
from colocate.wire import deviceplugin_pb2 as dp

RESOURCE = "colocate.dev/gpu-memory"
NODE = (15360, 15360, 40536, 40536)
"""The GPUs on which it was seen, in MiB."""
SHARE = 2000
"""MiB of each of 20 pods."""
PLAIN = msgspec.convert(
    {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "main"}]}}, Pod
)


def listed(unit: int, health: Health = Health.HEALTHY) -> list[dp.Device]:
    gpus = [Gpu(uuid=f"GPU-{place}aaa", index=place, memory=memory) for place, memory in enumerate(NODE)]
    slices = slices_of(gpus, unit)
    return [dp.Device(ID=id, health=health) for ids in slices.ids.values() for id in ids]


class RestartedKubelet:
    """A device manager that has read its checkpoint: pods hold devices, and no plugin has told of any yet."""

    def __init__(self, folder: Path, unit: int, version: tuple[int, int] = (1, 36), pods: int = 20) -> None:
        self.clock = ManualClock()
        self.manager = DeviceManager(folder / "checkpoint", self.clock, KubeletFaults(), version=version)
        self.devices = listed(unit)
        each = -(-SHARE // unit)
        for pod in range(pods):
            ids = tuple(device.ID for device in self.devices[pod * each : (pod + 1) * each])
            self.manager.table.held[f"pod-{pod}", "main", RESOURCE] = Held(
                f"pod-{pod}", "main", RESOURCE, {0: ids}, b""
            )

    async def seconds(self, devices: Sequence[dp.Device] | None = None) -> float:
        """For how long of its clock a list keeps it from admitting a pod without any device."""
        begun = self.clock.monotonic()
        work = asyncio.create_task(self.manager.take_list(RESOURCE, devices or self.devices))
        await asyncio.sleep(0)
        busy = self.manager.is_busy
        admission = asyncio.create_task(self.manager.admit(PLAIN))
        while not work.done():
            assert busy
            assert not admission.done()
            await self.clock.advance(10)
        await admission
        await work
        return self.clock.monotonic() - begun


async def test_a_restart_with_a_hundred_thousand_devices_holds_the_lock_for_minutes(tmp_path: Path) -> None:
    kubelet = RestartedKubelet(tmp_path, 1)
    assert len(kubelet.devices) == 111_792
    assert await kubelet.seconds() > 9 * 60


async def test_a_restart_with_the_default_unit_is_not_noticed(tmp_path: Path) -> None:
    kubelet = RestartedKubelet(tmp_path, 256)
    assert len(kubelet.devices) == 436
    assert await kubelet.seconds() == 0
    assert kubelet.manager.lookups == 436 * 160


async def test_a_list_costs_only_what_changed_in_it(tmp_path: Path) -> None:
    kubelet = RestartedKubelet(tmp_path, 256)
    await kubelet.seconds()
    before = kubelet.manager.lookups
    await kubelet.seconds()
    assert kubelet.manager.lookups == before
    kubelet.devices[-3:] = listed(256, Health.UNHEALTHY)[-3:]
    await kubelet.seconds()
    assert kubelet.manager.lookups == before + 3 * 160


@pytest.mark.parametrize(("version", "cost"), [((1, 35), 0), ((1, 36), 436 * 161), ((1, 37), 436 * 160)])
async def test_what_is_looked_up_depends_on_the_kubelet(
    tmp_path: Path, version: tuple[int, int], cost: int
) -> None:
    kubelet = RestartedKubelet(tmp_path, 256, version)
    kubelet.manager.table.held["other", "main", "x/y"] = Held("other", "main", "x/y", {0: ("a",)}, b"")
    await kubelet.seconds()
    assert kubelet.manager.lookups == cost
