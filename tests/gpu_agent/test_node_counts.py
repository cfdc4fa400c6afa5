"""How many GPUs and cores a node's status shows, and what becomes of them."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from colocate.clock import SystemClock
from colocate.cluster import connection
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Flags
from colocate.gpus import ANNOUNCED, DOSLAB, GPUSHARE, VOLCANO, HealthSettings, announced
from colocate.gpus.agent.monitor import GpuMonitor
from colocate.gpus.agent.node_counts import GpuNodeCounts, node_counts
from colocate.host.mock_gpus import MockGpu, MockGpus
from colocate.lab.api.resources import EVENTS, NODES
from colocate.lab.cluster import MACHINE, LabCluster
from colocate.model.gpu import Gpu, GpuInventory
from tests.support.waiting import until

GIB = 1 << 30
COUNT, CORES = DOSLAB.count, DOSLAB.cores
FIRST = MockGpu(uuid="GPU-1", model="Tesla T4", memory=16 * GIB)
SECOND = MockGpu(uuid="GPU-2", model="Tesla T4", memory=16 * GIB)


def test_every_dialect_counts_the_gpus_that_pods_may_get() -> None:
    gpus = GpuInventory(
        (
            Gpu(uuid="a", index=0, memory=1),
            Gpu(uuid="b", index=1, memory=1, healthy=False),
            Gpu(uuid="c", index=2, memory=1, mig=True),
            Gpu(uuid="d", index=3, memory=1),
        )
    )
    assert node_counts(gpus, [DOSLAB, GPUSHARE, VOLCANO]) == {
        "doslab.io/gpu-count": 2,
        "doslab.io/gpu-core": 200,
        "aliyun.com/gpu-count": 2,
        "volcano.sh/gpu-number": 2,
    }


class Counted:
    """A node of an embedded cluster, its mock GPUs, and who counts them."""

    def __init__(self, cluster: LabCluster, root: Path) -> None:
        self.cluster = cluster
        cluster.server.write_kubeconfig(root / "kubeconfig")
        found = connection.find(Flags(kubeconfig=root / "kubeconfig"))
        self.client = Client(found, SystemClock(), ClientSettings(attempts=1))
        self.source = MockGpus([FIRST, SECOND])
        self.monitor = GpuMonitor(self.source, SystemClock(), HealthSettings(recovery=0.1), refresh=0.1)
        self.counts = GpuNodeCounts(self.client, MACHINE, [DOSLAB], self.monitor)
        self._tasks = [asyncio.ensure_future(each) for each in (self.monitor.run(), self.counts.run())]

    async def stop(self) -> None:
        """Count no longer; what was counted stays."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def status(self, where: str = "capacity") -> dict[str, str]:
        node = self.cluster.registry.find(NODES, "", MACHINE)
        assert node is not None
        found: dict[str, str] = node.body["status"][where]
        return {name: found[name] for name in (COUNT, CORES) if name in found}

    def events(self) -> list[tuple[str, str]]:
        events = [stored.body for stored in self.cluster.store.items(EVENTS.storage)]
        mine = [each for each in events if each["involvedObject"]["name"] == MACHINE]
        return [(each["reason"], each["message"]) for each in mine if each["reason"].startswith("Gpu")]

    def annotations(self) -> dict[str, str]:
        node = self.cluster.registry.find(NODES, "", MACHINE)
        assert node is not None
        found: dict[str, str] = node.body["metadata"].get("annotations") or {}
        return found

    async def shows(self, gpus: int, where: str = "capacity") -> None:
        expected = {COUNT: str(gpus), CORES: str(100 * gpus)}
        await until(lambda: self.status(where) == expected, f"{gpus} GPUs in {where}", 20)


@asynccontextmanager
async def counted(**cluster: Any) -> AsyncIterator[Counted]:
    root = Path(tempfile.mkdtemp(prefix="colocate-"))
    lab = LabCluster(root, status_sync=0.05, **cluster)
    try:
        async with lab.running():
            made = Counted(lab, root)
            try:
                await made.shows(2)
                yield made
            finally:
                await made.stop()
                await made.client.close()
    finally:
        await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)


async def test_they_are_in_capacity_and_the_kubelet_makes_them_allocatable() -> None:
    async with counted() as node:
        await node.shows(2, "allocatable")
        assert node.counts.trouble == ""


async def test_schedulers_are_told_which_gpus_there_are() -> None:
    async with counted() as node:
        found = announced(node.annotations())
        assert found is not None
        assert found.inventory == node.monitor.inventory
        node.source.replace(FIRST, "GPU-3")
        node.monitor.look_again()
        await until(lambda: "GPU-3" in node.annotations()[ANNOUNCED], "the new GPU", 20)


async def test_a_sick_gpu_is_not_counted_until_it_is_well() -> None:
    async with counted() as node:
        node.source.silence("driver not loaded")
        node.monitor.look_again()
        await node.shows(0)
        node.source.silence()
        await node.shows(2)
        await until(lambda: len(node.events()) == 4, "events of the node", 20)
        assert sorted(node.events()) == [
            ("GpuHealthy", "GPU GPU-1 is healthy again"),
            ("GpuHealthy", "GPU GPU-2 is healthy again"),
            ("GpuUnhealthy", "GPU GPU-1 is given to no new pod: driver not loaded"),
            ("GpuUnhealthy", "GPU GPU-2 is given to no new pod: driver not loaded"),
        ]


async def test_they_come_back_when_somebody_or_a_kubelet_without_checkpoint_zeroes_them() -> None:
    async with counted() as node:
        node.cluster.kubelet.paths.checkpoint.unlink(missing_ok=True)
        await node.cluster.kubelet.restart()
        await node.shows(2)
        await node.shows(2, "allocatable")


async def test_they_are_taken_away_at_the_end() -> None:
    async with counted() as node:
        await node.shows(2, "allocatable")
        await node.stop()
        await node.counts.withdraw(10)
        await until(lambda: not node.status() and not node.status("allocatable"), "a node without GPUs", 20)
        assert ANNOUNCED not in node.annotations()


async def test_a_server_that_is_away_at_the_end_holds_up_nobody() -> None:
    async with counted() as node:
        await node.stop()
        await node.cluster.server.stop()
        await asyncio.wait_for(node.counts.withdraw(0.5), 10)


async def test_a_node_that_is_not_there_is_told() -> None:
    async with counted() as node:
        other = GpuNodeCounts(node.client, "elsewhere", [DOSLAB], node.monitor)
        running = asyncio.ensure_future(other.run())
        try:
            await until(lambda: "set gpus.node" in other.trouble, "the trouble", 20)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
