"""Allocate of GPU memory by the agent, in a cluster of 5000 pods and in one without others.

The watch is limited to the agent's own node, and Allocate asks no server: what it costs is a matter of the node. The
API servers are the embedded ones; who holds what is read from a checkpoint file, as a kubelet writes it.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bench.measure import Sample, side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate import telemetry
from colocate.aio import deadline
from colocate.clock import SystemClock
from colocate.cluster import connection
from colocate.cluster.client import Client
from colocate.cluster.connection import Flags
from colocate.gpus import DOSLAB, VISIBLE, GpuSettings, slices_of
from colocate.gpus.agent.allocator import PodAllocator
from colocate.gpus.agent.pods import NodePods
from colocate.gpus.agent.started import StartedContainers
from colocate.kubelet import checkpoint
from colocate.kubelet.allocation import to_wire
from colocate.kubelet.paths import KubeletPaths
from colocate.lab.api.resources import PODS
from colocate.lab.api.server import ApiServer
from colocate.lab.api.store import ObjectStore
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry
from colocate.model.device import Allocation
from colocate.model.gpu import Gpu, GpuInventory

ELSEWHERE = 5000
HERE = 100
UNITS = 100
NODE = "gpu-node"
GPUS = GpuInventory(
    tuple(Gpu(uuid=f"GPU-{place:08}", index=place, memory=16_384, model="T4") for place in range(4))
)

CLUSTER = Ratio("Allocate of GPU memory, 5000 pods in the cluster", "with no pod on other nodes", 1.25)
RATIOS = (CLUSTER,)


def bench() -> list[Row]:
    telemetry.configure_logs("text", "critical")
    return uvloop.run(_bench())


async def _bench() -> list[Row]:
    async with _agent(ELSEWHERE) as large, _agent(0) as small:
        measured = await side_by_side(_allocate(large), _allocate(small))
    return [
        CLUSTER.row(
            measured.ratio,
            Figure("with others", measured.ours * 1000, "ms"),
            Figure("alone", measured.theirs * 1000, "ms"),
        )
    ]


def _allocate(allocator: PodAllocator) -> Sample:
    """One Allocate for the pod that waits; the kubelet never takes the answer, so that the next is the same.

    The checkpoint is read each time, as in a burst: whose the last answer was is not known yet.
    """
    ids = slices_of(GPUS.shared, DOSLAB.unit).ids[GPUS.gpus[3].uuid][-7:]

    async def sample() -> float:
        started = time.perf_counter()
        answer = await allocator.allocate(DOSLAB.memory, ids)
        taken = time.perf_counter() - started
        assert answer.envs[VISIBLE] == GPUS.gpus[3].uuid
        return taken

    return sample


@asynccontextmanager
async def _agent(elsewhere: int) -> AsyncIterator[PodAllocator]:
    """An agent's allocator on a node with a hundred pods that have GPUs, and one that waits."""
    server = ApiServer(ObjectStore(), SystemClock())
    for number in range(elsewhere):
        _create(server, f"other-{number}", f"node-{number % 100}", 8)
    holders = [_create(server, f"here-{number}", NODE, UNITS) for number in range(HERE)]
    wish = {"doslab.io/gpu-uuid": GPUS.gpus[3].uuid, "doslab.io/gpu-assume-time": "1"}
    _create(server, "waiting", NODE, 7, wish)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        paths = KubeletPaths(root / "kubelet")
        paths.device_plugins.mkdir(parents=True)
        paths.checkpoint.write_bytes(checkpoint.render(_checkpoint(holders)))
        await server.start()
        try:
            server.write_kubeconfig(root / "config")
            async with Client(connection.find(Flags(kubeconfig=root / "config")), SystemClock()) as client:
                pods = NodePods(client, NODE)
                allocator = PodAllocator(GpuSettings(), pods, paths, StartedContainers(None), SystemClock())
                allocator.take_inventory(GPUS)
                running = asyncio.ensure_future(allocator.run())
                try:
                    async with deadline(SystemClock(), 60):
                        while len(allocator.book.pods) < HERE:
                            await allocator.changed.beyond(allocator.changed.count)
                    yield allocator
                finally:
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
        finally:
            await server.stop()


def _create(
    server: ApiServer, name: str, node: str, units: int, annotations: dict[str, str] | None = None
) -> str:
    container = {"name": "main", "image": "x", "resources": {"limits": {DOSLAB.memory: str(units)}}}
    body = {
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"nodeName": node, "containers": [container]},
    }
    return str(server.registry.create(PODS, "default", body).body["metadata"]["uid"])


def _checkpoint(holders: list[str]) -> Checkpoint:
    slices = slices_of(GPUS.shared, DOSLAB.unit)
    entries = []
    for place, uid in enumerate(holders):
        gpu, number = GPUS.gpus[place % 3], place // 3
        ids = tuple(slices.ids[gpu.uuid][number * UNITS : (number + 1) * UNITS])
        envs = {
            VISIBLE: gpu.uuid,
            "DOSLAB_IO_GPU_UUID": gpu.uuid,
            "DOSLAB_IO_GPU_RESOURCE_USED_BY_POD": str(UNITS),
            "DOSLAB_IO_GPU_RESOURCE_USED_BY_CONTAINER": str(UNITS),
            "DOSLAB_IO_GPU_RESOURCE_TOTAL": "16384",
        }
        response = to_wire(Allocation(envs=envs)).SerializeToString(deterministic=True)
        entries.append(Entry(uid, "main", DOSLAB.memory, {NO_TOPOLOGY: ids}, response))
    listed = tuple(id for ids in slices.ids.values() for id in ids)
    return Checkpoint(tuple(entries), {DOSLAB.memory: listed})
