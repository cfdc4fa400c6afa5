"""A node for the memory part in a VM: control groups, processes, limits and pages are real.

Its figures are those of its pods alone, so that little memory is enough; the API server is one that evicts by ending
the pod, and who holds what is in a checkpoint file.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.host import cgroups
from colocate.host.cgroups import Naming
from colocate.host.group_files import group_files
from colocate.host.kept_files import DescriptorBudget
from colocate.host.memory_limits import read_limits
from colocate.host.node_memory import read_numa
from colocate.host.numa_maps import MappingKind, mapped_pages
from colocate.kubelet import checkpoint
from colocate.kubelet.paths import KubeletPaths
from colocate.memory.agent.cluster_view import ClusterView
from colocate.memory.agent.machine import Machine
from colocate.memory.agent.objects import ApiNode, ApiPod
from colocate.memory.agent.part import MemoryPart
from colocate.memory.agent.store import MemoryStore
from colocate.memory.decision import MemoryDecision
from colocate.memory.forecast import Instant
from colocate.memory.settings import MemorySettings
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry
from colocate.model.memory import Bytes, NodeMemory, NumaMemory
from colocate.model.pod import QosClass
from colocate.model.values import Size
from tests.support.memory_probe import bytes_by_node
from tests.support.real_pods import MIB, Eater, RealPods, real_pods

BATCH, WEB = "5b1c0001-4f0e-9d6c-aaaa-000000000001", "5b1c0002-4f0e-9d6c-aaaa-000000000002"
BLOCK, BLOCKS = 16 * MIB, 8
IDS = tuple(f"CM-{n:04d}" for n in range(BLOCKS))
"""The blocks that the colocated pod holds."""
NEAR, SYSTEM = 512 * MIB, 150 * MIB
SETTINGS = MemorySettings(block_size=Size(BLOCK), forecast=Instant())


class EvictingClient(Client):
    """An API server and a kubelet in one: an evicted pod has ended."""

    def __init__(self, pods: RealPods, clock: ManualClock) -> None:
        super().__init__(Connection("http://127.0.0.1:9", "the test"), clock)
        self._pods = pods
        self.evicted: list[str] = []
        self.told: list[str] = []

    async def evict(
        self, name: str, namespace: str = "", uid: str = "", grace: int | None = None, dry_run: bool = False
    ) -> None:
        self.evicted.append(uid)
        self.told.append("evicted")
        await cgroups.kill(self._pods.tree, self._pods.path(uid))
        self._pods.remove(uid)


class StillCluster(ClusterView):
    """A cluster that has said all it will ever say, but for pods that were evicted."""

    def __init__(self, client: EvictingClient, pods: list[ApiPod]) -> None:
        super().__init__(client, "here")
        self._still = pods
        self._evicted = client.evicted

    is_synced = True
    answers = True

    @property
    def pods(self) -> list[ApiPod]:
        return [pod for pod in self._still if pod.uid not in self._evicted]

    @property
    def node(self) -> ApiNode | None:
        return msgspec.convert({"metadata": {"name": "here"}}, ApiNode)


class Node:
    """A node whose near memory is 512 MiB, 150 of them the system's by default; its far NUMA node is real."""

    def __init__(
        self, pods: RealPods, folder: Path, settings: MemorySettings = SETTINGS, system: Bytes = SYSTEM
    ) -> None:
        self.pods = pods
        self.folder = folder
        self.system = system
        self.clock = ManualClock()
        self.client = EvictingClient(pods, self.clock)
        self.far_was: tuple[NumaMemory, ...] | None = None
        """Far nodes as they were at an earlier look, where they have been filled since."""
        paths = KubeletPaths(folder)
        paths.device_plugins.mkdir(parents=True, exist_ok=True)
        entry = Entry(BATCH, "main", SETTINGS.resource, {NO_TOPOLOGY: IDS}, b"")
        paths.checkpoint.write_bytes(checkpoint.render(Checkpoint((entry,), {SETTINGS.resource: IDS})))
        self.part = MemoryPart(
            settings,
            store=state_store(folder),
            machine=Machine(pods.parent, read_node=self.read),
            cluster=StillCluster(self.client, [_pod("batch", BATCH, BLOCKS), _pod("web", WEB, 0)]),
            paths=paths,
            clock=self.clock,
            rate=1 << 34,
        )

    def read(self) -> NodeMemory:
        numa = read_numa()
        if self.far_was is not None:
            numa = (*(node for node in numa if node.has_cpus), *self.far_was)
        far = [node for node in numa if not node.has_cpus]
        files = group_files(
            2, self.pods.tree.roots["memory"] / self.pods.parent, DescriptorBudget(None), by_node=True
        )
        try:
            used = files.pod("all", QosClass.GUARANTEED)
        finally:
            files.close()
        there = sum((used.numa or {}).get(node.id, 0) for node in far)
        free = NEAR - self.system - (used.usage - there)
        return NodeMemory(
            total=NEAR + sum(node.total for node in far),
            free=free + sum(node.free for node in far),
            available=free + used.file + sum(node.free + node.file for node in far),
            inactive_file=used.inactive_file + sum(node.inactive_file for node in far),
            numa=numa,
        )

    async def turn(self, seconds: float = 10) -> MemoryDecision:
        await self.clock.advance(seconds)
        decision = await self.part.turn()
        while self.part.executor.is_busy:
            await self.clock.advance(0.05)
            await asyncio.sleep(0.01)
        return decision

    async def turns(self, count: int, seconds: float = 10) -> list[MemoryDecision]:
        return [await self.turn(seconds) for _ in range(count)]

    async def side_by_side(self, anon: int, cache: Path | None = None) -> tuple[Eater, Eater]:
        """A colocated process with so much memory, and an online one that has none yet."""
        batch, web = await self.pods.run(BATCH), await self.pods.run(WEB)
        await self.turn()
        assert read_limits(self.pods.create(BATCH)).memory == BLOCKS * BLOCK
        await batch.anon(anon)
        if cache is not None:
            await batch.read(cache)
        calm = await self.turn()
        assert not calm.balance.due
        return batch, web


@asynccontextmanager
async def running_node(folder: Path, settings: MemorySettings = SETTINGS) -> AsyncIterator[Node]:
    """With a colocated and an online pod, which have no process yet."""
    async with real_pods(Naming.SYSTEMD) as pods:
        pods.create(BATCH)
        pods.create(WEB)
        made = Node(pods, folder, settings)
        yield made
        await made.part.executor.close()
        await made.client.close()


def state_store(folder: Path) -> MemoryStore:
    """Where a node's agent keeps its state."""
    return MemoryStore(folder / "state")


def _pod(name: str, uid: str, blocks: int) -> ApiPod:
    limits = {SETTINGS.resource: str(blocks)} if blocks else {}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Running"},
        },
        ApiPod,
    )


def far_node() -> NumaMemory:
    return next(node for node in read_numa() if not node.has_cpus)


def far_bytes(process: Eater) -> int:
    """Private memory that numa_maps sees on NUMA nodes without CPUs."""
    away = {each.id for each in read_numa() if not each.has_cpus}
    mappings = [each for each in mapped_pages(process.pid) if each.kind is MappingKind.PRIVATE]
    return sum(size for id, size in bytes_by_node(mappings).items() if id in away)
