"""The GPU part of an agent, joined: GPUs to who answers Allocate, figures to Prometheus, counts to the node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import REGISTRY

from colocate.aio import in_thread
from colocate.clock import SystemClock
from colocate.cluster import connection
from colocate.cluster.client import Client
from colocate.cluster.connection import Flags
from colocate.gpus import (
    DOSLAB,
    ContainerBooking,
    GpuPod,
    GpuRecords,
    GpuSettings,
    HealthSettings,
    PodBooking,
)
from colocate.gpus.agent import metrics
from colocate.gpus.agent.key_file import KeyFile
from colocate.gpus.agent.monitor import GpuMonitor
from colocate.gpus.agent.node_counts import GpuNodeCounts
from colocate.gpus.agent.part import GpuPart
from colocate.gpus.agent.report import GpuReport
from colocate.host.mock_gpus import MockGpu, MockGpus
from colocate.kubelet import Plugins, Settings
from colocate.lab.cluster import MACHINE
from tests.gpu_agent.lab import COUNT, MEMORY, GpuLab, gpu_lab
from tests.gpu_agent.test_plugin import Counting
from tests.support.waiting import until

MIB, GIB = 1 << 20, 1 << 30
GPU = MockGpu(uuid="GPU-aaaa0000", model="Tesla T4", memory=GIB)


class Booking(Counting):
    """Answers as `Counting` does, and has a book that a test writes."""

    settings = GpuSettings()
    notes = ("a note of who answers",)
    records = GpuRecords()
    keys = KeyFile(None)

    async def run(self) -> None:
        await asyncio.Event().wait()

    def take_settings(self, settings: GpuSettings) -> None:
        self.settings = settings

    def explain(self, pod: str, waiting: GpuPod | None = None) -> tuple[str, ...]:
        return (f"about {pod}",)

    def record(self, uid: str, memory: int) -> None:
        booking = ContainerBooking(container="main", gpus=(GPU.uuid,), memory=memory, cores=20)
        self.book = self.book.record(PodBooking(uid=uid, key=f"team/{uid}", containers=(booking,)))
        self.changed.changed()


@asynccontextmanager
async def part(lab: GpuLab) -> AsyncIterator[tuple[GpuPart, Booking]]:
    """A part that runs and serves its plugins."""
    client = Client(connection.find(Flags(kubeconfig=lab.root / "kubeconfig")), SystemClock())
    monitor = GpuMonitor(MockGpus([GPU]), SystemClock(), HealthSettings(recovery=0.1), refresh=0.1)
    allocator = Booking(DOSLAB)
    counts = GpuNodeCounts(client, MACHINE, [DOSLAB], monitor)
    made = GpuPart(MACHINE, monitor, allocator, counts, SystemClock(), lab.cluster.kubelet.paths)
    plugins = Plugins(*made.plugins, settings=Settings(paths=lab.cluster.kubelet.paths))
    tasks = [asyncio.ensure_future(each) for each in (made.run(), plugins.run())]
    try:
        yield made, allocator
    finally:
        plugins.stop()
        await tasks[1]
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def test_a_burst_of_answers_is_told_to_prometheus_once_and_not_answer_by_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[GpuReport] = []
    monkeypatch.setattr(metrics, "tell", told.append)
    async with gpu_lab() as lab, part(lab) as (_, allocator):
        await until(lambda: bool(told), "the first report", 20)
        before = len(told)
        for number in range(100):
            allocator.record(f"p{number}", 1)
            await in_thread(lambda: None)
        assert len(told) - before < 10
        await until(lambda: len(told[-1].gpus[0].shares) == 100, "all of them in the end", 20)


async def test_all_of_it_reaches_who_should_know() -> None:
    async with gpu_lab() as lab:
        async with part(lab) as (made, allocator):
            await lab.shows(1024, 1)
            assert allocator.book.inventory == made.monitor.inventory
            allocator.record("train", 1000)
            table = lab.cluster.kubelet.devices.table
            await until(lambda: len(table.healthy(MEMORY)) == 24, "marks that follow the book", 20)
            labels = {"gpu": GPU.uuid, "namespace": "team", "pod": "train", "state": "booked"}
            await until(
                lambda: REGISTRY.get_sample_value("colocate_gpu_pod_memory_bytes", labels) == 1000 * MIB,
                "the metric of the pod",
                20,
            )
            report = made.report()
            assert report.mock
            assert [share.pod for share in report.gpus[0].shares] == ["team/train"]
            assert "a note of who answers" in report.notes
            assert await made.explain("team/train") == ("about team/train",)
            assert made.mocks is not None
            made.mocks.lose(GPU)
            made.monitor.look_again()
            await until(lambda: not allocator.book.inventory.gpus[0].healthy, "a sick GPU in the book", 20)
            await until(lambda: not table.healthy(MEMORY), "no healthy slice", 20)
        await until(lambda: COUNT not in lab.node("capacity"), "the counts to go with the part", 20)
