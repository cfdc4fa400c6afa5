"""GPU memory as a kubelet meets it: slices, their health, and where Allocate leads."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from colocate.aio import Watched
from colocate.clock import ManualClock
from colocate.errors import UserError
from colocate.gpus import (
    DOSLAB,
    GPUSHARE,
    Dialect,
    GpuBook,
    HealthSettings,
    dialect,
    slices_of,
    unhealthy_slices,
)
from colocate.gpus.agent import plugin
from colocate.gpus.agent.monitor import GpuMonitor
from colocate.gpus.agent.plugin import GpuPlugin
from colocate.host.mock_gpus import MockGpu, MockGpus
from colocate.kubelet import Allocation, Refused, checkpoint
from colocate.kubelet.paths import KubeletPaths
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry
from colocate.model.gpu import GpuInventory
from colocate.model.pod import Phase
from colocate.testing import TestNode
from tests.support.waiting import until

MEMORY = DOSLAB.memory
MIB, GIB = 1 << 20, 1 << 30
SMALL = MockGpu(uuid="GPU-aaaa0000-1", model="Tesla T4", memory=30 * MIB, numa=0)
LARGE = MockGpu(uuid="GPU-bbbb0000-2", model="NVIDIA A100", memory=100 * MIB, numa=1)


class Counting:
    """Answers every Allocate with its number of devices; the book is empty unless a test writes it."""

    def __init__(self, *dialects: Dialect) -> None:
        self.changed = Watched()
        self.book = GpuBook()
        self.units = {each.memory: each.unit for each in dialects}
        self.prestarted: list[tuple[str, ...]] = []
        self.gone: set[str] = set()

    async def allocate(self, resource: str, ids: Sequence[str]) -> Allocation:
        if len(ids) == 13:
            raise Refused("thirteen are refused")
        return Allocation(envs={"COUNT": str(len(ids))})

    async def prestart(self, resource: str, ids: Sequence[str]) -> None:
        self.prestarted.append(tuple(sorted(ids)))

    def held(self, resource: str) -> AbstractSet[str]:
        return frozenset()

    def ended(self, uids: AbstractSet[str]) -> AbstractSet[str]:
        return uids & self.gone

    def unhealthy(self, resource: str) -> AbstractSet[str]:
        slices = slices_of(self.book.inventory.shared, self.units[resource])
        return unhealthy_slices(slices, self.book, {})

    def take_inventory(self, inventory: GpuInventory) -> None:
        self.book = self.book.with_gpus(inventory)
        self.changed.changed()


class Served:
    """Plugins over mock GPUs, whose health is handed to the book."""

    def __init__(self, node: TestNode, gpus: Sequence[MockGpu], dialects: Sequence[Dialect]) -> None:
        self.source = MockGpus(gpus)
        self.monitor = GpuMonitor(self.source, node.clock, HealthSettings())
        self.answers = Counting(*dialects)
        self.plugins = [GpuPlugin(each, self.monitor, self.answers) for each in dialects]

    async def hand_on(self) -> None:
        seen = -1
        while True:
            seen = await self.monitor.changed.beyond(seen)
            self.answers.take_inventory(self.monitor.inventory)


@asynccontextmanager
async def served(
    node: TestNode, *gpus: MockGpu, dialects: Sequence[Dialect] = (DOSLAB,)
) -> AsyncIterator[Served]:
    made = Served(node, gpus, dialects)
    tasks = [asyncio.ensure_future(work) for work in (made.monitor.run(), made.hand_on())]
    try:
        await node.serve(*made.plugins)
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_node_has_as_much_gpu_memory_as_its_gpus_of_any_size(node: TestNode) -> None:
    async with served(node, SMALL, LARGE):
        await node.devices(MEMORY, 130)


async def test_a_pod_gets_slices_of_one_gpu(node: TestNode) -> None:
    async with served(node, SMALL, LARGE) as gpus:
        await node.devices(MEMORY, 130)
        pod = await node.run_pod({MEMORY: 20})
        assert {id.partition("-")[0] for id in node.held(pod)} == {"aaaa"}
        assert node.env(pod) == {"COUNT": "20"}
        assert gpus.answers.prestarted == [tuple(sorted(node.held(pod)))]
        # Ten are left of the small one.
        second = await node.run_pod({MEMORY: 11})
        assert {id.partition("-")[0] for id in node.held(second)} == {"bbbb"}
        third = await node.run_pod({MEMORY: 10})
        assert {id.partition("-")[0] for id in node.held(third)} == {"aaaa"}


async def test_what_no_gpu_has_alone_is_taken_from_several(node: TestNode) -> None:
    async with served(node, SMALL, LARGE):
        await node.devices(MEMORY, 130)
        pod = await node.run_pod({MEMORY: 120})
        assert len(node.held(pod)) == 120


async def test_a_refusal_reaches_the_pod(node: TestNode) -> None:
    async with served(node, SMALL):
        await node.devices(MEMORY, 30)
        refused = await node.run_pod({MEMORY: 13}, phase=Phase.FAILED)
        assert "thirteen are refused" in str(refused.status)


async def test_a_sick_gpu_is_taken_out_and_comes_back_after_five_minutes(node: TestNode) -> None:
    async with served(node, SMALL, LARGE) as gpus:
        await node.devices(MEMORY, 130)
        gpus.source.xid(SMALL, 48)
        await node.devices(MEMORY, 100)
        await node.clock.advance(300)
        await node.devices(MEMORY, 130)


async def test_a_gpu_that_falls_off_the_bus_is_unhealthy_and_not_forgotten(node: TestNode) -> None:
    async with served(node, SMALL, LARGE) as gpus:
        await node.devices(MEMORY, 130)
        gpus.source.lose(LARGE)
        await node.devices(MEMORY, 30)
        assert len(node.kubelet.devices.table.devices[MEMORY]) == 130


async def test_a_replaced_gpu_brings_slices_of_its_own(node: TestNode) -> None:
    async with served(node, SMALL) as gpus:
        await node.devices(MEMORY, 30)
        gpus.source.replace(SMALL, "GPU-cccc0000-3")
        gpus.monitor.look_again()
        await until(
            lambda: "cccc-0" in node.kubelet.devices.table.healthy(MEMORY), "slices of the new GPU", 10
        )
        await node.devices(MEMORY, 30)


async def test_a_gpu_in_mig_mode_is_left_out(node: TestNode) -> None:
    split = MockGpu(uuid="GPU-dddd0000-4", model="NVIDIA A100", memory=GIB, mig=True)
    async with served(node, SMALL, split):
        await node.devices(MEMORY, 30)


async def test_a_kubelet_that_restarts_gets_them_again(node: TestNode) -> None:
    async with served(node, SMALL, LARGE):
        await node.devices(MEMORY, 130)
        await node.kubelet.restart()
        await node.devices(MEMORY, 130)


async def test_several_dialects_are_served_over_the_same_gpus(node: TestNode) -> None:
    big = MockGpu(uuid="GPU-eeee0000-5", model="NVIDIA A100", memory=2 * GIB)
    async with served(node, big, dialects=(DOSLAB, GPUSHARE)):
        await node.devices(DOSLAB.memory, 2048)
        await node.devices(GPUSHARE.memory, 2)


async def test_health_of_every_slice_follows_its_numa_node(node: TestNode) -> None:
    async with served(node, SMALL, LARGE):
        await node.devices(MEMORY, 130)
        devices = node.kubelet.devices.table.devices[MEMORY]
        assert devices["aaaa-0"].numa == (0,)
        assert devices["bbbb-0"].numa == (1,)


@pytest.mark.parametrize(("unit", "fits"), [(1, False), (4, False), (5, True), (1024, True)])
async def test_eight_gpus_of_80_gib_are_refused_with_the_unit_to_use(unit: int, fits: bool) -> None:
    uuids = [f"GPU-{number * 0x1234567:08x}-1111-2222-3333-444444444444" for number in range(8)]
    gpus = [MockGpu(uuid=uuid, model="NVIDIA A100", memory=80 * GIB, numa=0) for uuid in uuids]
    chosen = dialect("doslab", unit)
    monitor = GpuMonitor(MockGpus(gpus), ManualClock(), HealthSettings())
    await monitor.survey()
    plugin = GpuPlugin(chosen, monitor, Counting(chosen))
    if fits:
        await plugin.open()
        assert len(await anext(plugin.devices())) == 8 * (81920 // unit)
        return
    with pytest.raises(UserError, match=r"8 GPUs with 640 GiB .* to 5Mi or more"):
        await plugin.open()


async def test_eight_gpus_of_80_gib_reach_the_kubelet_at_that_unit(node: TestNode) -> None:
    gpus = [
        MockGpu(uuid=f"GPU-{n:x}bcd0000", model="NVIDIA A100", memory=80 * GIB, numa=n // 4) for n in range(8)
    ]
    async with served(node, *gpus, dialects=[dialect("doslab", 5)]):
        await node.devices(MEMORY, 8 * 16384, timeout=60)
        pod = await node.run_pod({MEMORY: 16384}, timeout=60)
        assert len({id.partition("-")[0] for id in node.held(pod)}) == 1


async def test_what_a_dialect_that_drains_still_holds_is_found_without_a_list_of_podresources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A List makes kubelets from 1.34 on forget the Allocate in flight, and give its devices out twice."""

    async def listed(*_: object) -> NoReturn:
        raise AssertionError("podresources was asked for a List")

    monkeypatch.setattr(plugin, "list_pods", listed)
    paths = KubeletPaths(tmp_path)
    paths.device_plugins.mkdir(parents=True)
    entries = tuple(
        Entry(uid, "c0", MEMORY, {NO_TOPOLOGY: (f"{uid}-0", f"{uid}-1")}, b"") for uid in ("runs", "gone")
    )
    paths.checkpoint.write_bytes(checkpoint.render(Checkpoint(entries, {})))
    answers = Counting(DOSLAB)
    monitor = GpuMonitor(MockGpus([SMALL]), ManualClock(), HealthSettings())
    drains = GpuPlugin(msgspec.structs.replace(DOSLAB, drains=True), monitor, answers, paths)
    answers.gone = {"gone", "other"}
    assert await drains._held() == {"runs-0", "runs-1"}


@pytest.mark.parametrize("entries", [(), (("gone", MEMORY), ("gone", GPUSHARE.memory))])
async def test_a_start_asks_podresources_for_no_list_where_the_api_has_told_or_nothing_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: Sequence[tuple[str, str]]
) -> None:
    async def listed(*_: object) -> NoReturn:
        raise AssertionError("podresources was asked for a List")

    monkeypatch.setattr(plugin, "list_pods", listed)
    paths = KubeletPaths(tmp_path)
    paths.device_plugins.mkdir(parents=True)
    held = tuple(Entry(uid, "c0", resource, {NO_TOPOLOGY: ("x",)}, b"") for uid, resource in entries)
    paths.checkpoint.write_bytes(checkpoint.render(Checkpoint(held, {})))
    answers = Counting(DOSLAB)
    answers.gone = {"gone"}
    monitor = GpuMonitor(MockGpus([SMALL]), ManualClock(), HealthSettings())
    await monitor.survey()
    await GpuPlugin(DOSLAB, monitor, answers, paths).open()
