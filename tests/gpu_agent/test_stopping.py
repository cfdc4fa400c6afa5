"""An agent that is told to stop stops, whatever its API server does."""

import asyncio

import pytest

from colocate.clock import ManualClock, SystemClock
from colocate.cluster import connection
from colocate.cluster.client import Client
from colocate.cluster.connection import Flags
from colocate.gpus import DOSLAB, HealthSettings
from colocate.gpus.agent.monitor import GpuMonitor
from colocate.gpus.agent.node_counts import GpuNodeCounts
from colocate.gpus.agent.part import GpuPart
from colocate.host.mock_gpus import MockGpus
from colocate.kubelet.paths import KubeletPaths
from colocate.lab.cluster import MACHINE
from tests.gpu_agent.lab import MEMORY, MOCKS, gpu_lab
from tests.gpu_agent.test_part import GPU, Booking
from tests.support.hostile_api import HOSTILE, hostile_api
from tests.support.waiting import until

SMALL = ({**MOCKS[0], "memory": "160Mi"},)
_LONGEST = 4
"""Seconds from the signal to the end of the process."""


@pytest.mark.parametrize("name", HOSTILE)
async def test_an_agent_stops_though_its_api_server_is_hostile(name: str) -> None:
    async with gpu_lab() as lab, hostile_api(HOSTILE[name], lab.root / "hostile") as met:
        lab.configure(SMALL, kubeconfig=str(lab.root / "hostile"))
        await lab.start_agent()

        def serves() -> bool:
            return bool(lab.cluster.kubelet.devices.table.healthy(MEMORY))

        await until(serves, "the agent to serve its devices", 60)
        await met.wait()
        async with asyncio.timeout(_LONGEST):
            assert await lab.stop_agent() == 0
        assert "agent.stopped" in lab.log()


async def test_last_words_to_a_server_that_is_silent_take_a_second_or_two() -> None:
    async with gpu_lab() as lab, hostile_api(HOSTILE["silent"], lab.root / "hostile"):
        clock = ManualClock()
        client = Client(connection.find(Flags(kubeconfig=lab.root / "hostile")), clock)
        monitor = GpuMonitor(MockGpus([GPU]), SystemClock(), HealthSettings(), refresh=0.1)
        counts = GpuNodeCounts(client, MACHINE, [DOSLAB], monitor)
        part = GpuPart(MACHINE, monitor, Booking(DOSLAB), counts, clock, KubeletPaths(lab.root / "kubelet"))
        running = asyncio.ensure_future(part.run())
        await monitor.ready()
        await clock.until_someone_sleeps()
        running.cancel()
        for _ in range(20):
            await clock.advance(0.1)
            await asyncio.sleep(0.01)
        await asyncio.wait([running], timeout=30)
        assert running.done(), "two seconds were not enough"
        await client.close()
