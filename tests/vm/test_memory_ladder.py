"""The memory part on cgroup v2 with a far NUMA node: an online process grows, a colocated one goes down the ladder.

Control groups, processes, limits and pages are real. The node's figures are those of its pods alone, so that little
memory is enough; the API server is one that evicts by ending the pod, and who holds what is in a checkpoint file.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from colocate.apps.memory.cluster_view import ClusterView
from colocate.apps.memory.machine import Machine
from colocate.apps.memory.objects import ApiNode, ApiPod
from colocate.apps.memory.part import MemoryPart
from colocate.apps.memory.store import Store
from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.host import cgroups
from colocate.host.cgroups import Naming
from colocate.host.group_files import group_files
from colocate.host.kept_files import DescriptorBudget
from colocate.host.memory_group import oom_kills
from colocate.host.memory_limits import read_limits
from colocate.host.node_memory import read_numa
from colocate.host.numa_maps import Kind, bytes_by_node, mapped_pages
from colocate.kubelet import checkpoint
from colocate.kubelet.paths import KubeletPaths
from colocate.memory.actions import Evict, MovePages, ReturnPages, Throttle
from colocate.memory.decide import Decision
from colocate.memory.forecast import Instant
from colocate.memory.rung import Rung
from colocate.memory.settings import MemorySettings
from colocate.memory.state import State
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry
from colocate.model.memory import NodeMemory, PodUid
from colocate.model.pod import QosClass
from tests.support.real_pods import MIB, Eater, RealPods, real_pods

pytestmark = [pytest.mark.vm("mini", "epyc"), pytest.mark.timeout(300)]

BATCH, WEB = "5b1c0001-4f0e-9d6c-aaaa-000000000001", "5b1c0002-4f0e-9d6c-aaaa-000000000002"
BLOCK, BLOCKS = 16 * MIB, 8
NEAR, SYSTEM = 512 * MIB, 150 * MIB
SETTINGS = MemorySettings(block_size=BLOCK, forecast=Instant())


class EvictingClient(Client):
    """An API server and a kubelet in one: whoever is evicted has ended."""

    def __init__(self, pods: RealPods, clock: ManualClock) -> None:
        super().__init__(Connection("http://127.0.0.1:9", "the test"), clock)
        self._pods = pods
        self.evicted: list[str] = []

    async def evict(
        self, name: str, namespace: str = "", uid: str = "", grace: int | None = None, dry_run: bool = False
    ) -> None:
        self.evicted.append(uid)
        await cgroups.kill(self._pods.tree, self._pods.path(uid))
        self._pods.remove(uid)


class StillCluster(ClusterView):
    """A cluster that has said all it will ever say."""

    def __init__(self, client: Client, pods: list[ApiPod]) -> None:
        super().__init__(client, "here")
        self._still = pods

    is_synced = True
    answers = True

    @property
    def pods(self) -> list[ApiPod]:
        return self._still

    def pod(self, uid: PodUid) -> ApiPod | None:
        return next((pod for pod in self._still if pod.uid == uid), None)

    @property
    def node(self) -> ApiNode | None:
        return None


class Node:
    """A node whose near memory is 512 MiB, 150 of them the system's; its far NUMA node is real."""

    def __init__(self, pods: RealPods, folder: Path) -> None:
        self.pods = pods
        self.clock = ManualClock()
        self.client = EvictingClient(pods, self.clock)
        self.far_free: int | None = None
        """What the far node says is free, where it is not the truth."""
        self.hidden = False
        """Whether the far node is taken off."""
        paths = KubeletPaths(folder)
        paths.device_plugins.mkdir(parents=True)
        ids = tuple(f"CM-{n:04d}" for n in range(BLOCKS))
        entry = Entry(BATCH, "main", SETTINGS.resource, {NO_TOPOLOGY: ids}, b"")
        paths.checkpoint.write_bytes(checkpoint.render(Checkpoint((entry,), {SETTINGS.resource: ids})))
        self.part = MemoryPart(
            SETTINGS,
            store=Store(folder / "state"),
            machine=Machine(pods.parent, read_node=self.read),
            cluster=StillCluster(self.client, [_pod("batch", BATCH, BLOCKS), _pod("web", WEB, 0)]),
            paths=paths,
            clock=self.clock,
            rate=1 << 34,
        )

    def read(self) -> NodeMemory:
        numa = tuple(node for node in read_numa() if node.has_cpus or not self.hidden)
        if self.far_free is not None:
            numa = tuple(
                node if node.has_cpus else msgspec.structs.replace(node, free=min(node.free, self.far_free))
                for node in numa
            )
        far = [node for node in numa if not node.has_cpus]
        files = group_files(
            2, self.pods.tree.roots["memory"] / self.pods.parent, DescriptorBudget(None), by_node=True
        )
        try:
            used = files.pod("all", QosClass.GUARANTEED)
        finally:
            files.close()
        there = sum((used.numa or {}).get(node.id, 0) for node in far)
        free = NEAR - SYSTEM - (used.usage - there)
        return NodeMemory(
            total=NEAR + sum(node.total for node in far),
            free=free + sum(node.free for node in far),
            available=free + used.file + sum(node.free + node.file for node in far),
            inactive_file=used.inactive_file + sum(node.inactive_file for node in far),
            numa=numa,
        )

    async def turn(self) -> Decision:
        await self.clock.advance(10)
        decision = await self.part.turn()
        while self.part.executor.is_busy:
            await self.clock.advance(0.05)
            await asyncio.sleep(0.01)
        return decision

    async def turns(self, count: int) -> list[Decision]:
        return [await self.turn() for _ in range(count)]


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


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with real_pods(Naming.SYSTEMD) as pods:
        pods.create(BATCH)
        pods.create(WEB)
        made = Node(pods, tmp_path)
        yield made
        await made.part.executor.close()
        await made.client.close()


async def side_by_side(node: Node) -> tuple[Eater, Eater]:
    batch, web = await node.pods.run(BATCH), await node.pods.run(WEB)
    await node.turn()
    assert read_limits(node.pods.create(BATCH)).memory == BLOCKS * BLOCK
    await batch.anon(100 * MIB)
    calm = await node.turn()
    assert not calm.balance.due
    return batch, web


def far_bytes(process: Eater) -> int:
    """Private memory that numa_maps sees on NUMA nodes without CPUs."""
    away = {each.id for each in read_numa() if not each.has_cpus}
    mappings = [each for each in mapped_pages(process.pid) if each.kind is Kind.PRIVATE]
    return sum(size for id, size in bytes_by_node(mappings).items() if id in away)


async def test_rungs_in_order_pages_on_the_far_node_and_everything_back_when_online_work_goes(
    node: Node,
) -> None:
    batch, web = await side_by_side(node)
    await web.anon(150 * MIB)
    pressed = await node.turns(5)
    stood = [rung for decision in pressed for rung in decision.plan.stood_on]
    assert stood == sorted(stood, key=list(Rung).index), "only upwards"
    assert Rung.THROTTLE in stood
    assert Rung.FAR in stood
    assert Rung.EVICT not in stood
    kinds = [type(action) for decision in pressed for action in decision.plan.actions]
    assert kinds.index(Throttle) < kinds.index(MovePages)
    assert far_bytes(batch) >= 16 * MIB, "seen in numa_maps"
    assert oom_kills(node.pods.create(WEB)) == 0
    assert read_limits(node.pods.create(BATCH)).high is not None

    await web.free()
    calm = await node.turns(26)
    kinds = [type(action) for decision in calm for action in decision.plan.actions]
    assert ReturnPages in kinds
    assert far_bytes(batch) < 2 * MIB
    assert read_limits(node.pods.create(BATCH)).high is None
    assert read_limits(node.pods.create(BATCH)).memory == BLOCKS * BLOCK
    assert calm[-1].state.ladder.rung is None
    assert calm[-1].offered > 0
    await batch.anon(MIB)


@pytest.mark.parametrize("case", ["full", "detached"])
async def test_with_the_far_node_full_or_detached_under_load_the_next_rung_comes(
    node: Node, case: str
) -> None:
    _, web = await side_by_side(node)
    if case == "full":
        node.far_free = 0
    await web.anon(150 * MIB)
    if case == "detached":
        while not any(isinstance(action, MovePages) for action in (await node.turn()).plan.actions):
            pass
        node.hidden = True
        await web.anon(60 * MIB)
    decisions = await node.turns(8)
    assert any(isinstance(action, Evict) for decision in decisions for action in decision.plan.actions)
    assert node.client.evicted == [BATCH]
    assert oom_kills(node.pods.create(WEB)) == 0


async def test_a_throttle_that_the_state_has_forgotten_is_found_on_the_pod_and_taken_away_by_off(
    node: Node,
) -> None:
    _, web = await side_by_side(node)
    await web.anon(150 * MIB)
    while not any(isinstance(action, Throttle) for action in (await node.turn()).plan.actions):
        pass
    assert read_limits(node.pods.create(BATCH)).high is not None
    node.part._state = State()
    node.part.switch(True)
    await node.turns(3)
    after = read_limits(node.pods.create(BATCH))
    assert (after.high, after.memory) == (None, None)
    assert node.part.report.restored
