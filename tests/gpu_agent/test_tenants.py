"""What a tenant with rights in its own namespace cannot do to others who share GPUs: stall, confuse, override."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from colocate.clock import ManualClock, SystemClock
from colocate.cluster import connection
from colocate.cluster.client import Client
from colocate.cluster.connection import Flags
from colocate.cluster.transport import Request
from colocate.gpus import (
    COUNT_WISH,
    DOSLAB,
    GpuAnnouncement,
    GpuAnswers,
    GpuPod,
    GpuRoom,
    GpuSettings,
    HealthSettings,
    announced,
)
from colocate.gpus.agent import pod_search
from colocate.gpus.agent.allocator import PodAllocator
from colocate.gpus.agent.monitor import GpuMonitor
from colocate.gpus.agent.node_counts import GpuNodeCounts
from colocate.gpus.agent.notices import GpuNotices
from colocate.gpus.agent.part import GpuPart
from colocate.gpus.agent.pods import NodePods
from colocate.gpus.agent.standing import NodeStanding
from colocate.gpus.agent.started import StartedContainers
from colocate.host.mock_gpus import MockGpu, MockGpus
from colocate.kubelet import Plugins, Settings
from colocate.lab.api.resources import NODES
from colocate.lab.cluster import MACHINE
from colocate.model.pod import Phase
from tests.gpu_agent.lab import A100, MEMORY, MOCKS, T4, GpuLab, gpu_lab
from tests.gpus.node import KEY, TWO, gpu_pod
from tests.support.waiting import until

SMALL = ({**MOCKS[0], "memory": "160Mi"}, {**MOCKS[1], "memory": "400Mi"})
MIRROR = "kubernetes.io/config.mirror"


class LateClient(Client):
    """A client whose watches and lists come as late as a test says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.watching, self.listing = asyncio.Event(), asyncio.Event()
        self.watching.set()
        self.listing.set()
        self.lists = 0

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        async with super().stream(request) as pieces:
            yield self._late(pieces)

    async def _late(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            await self.watching.wait()
            yield piece

    async def ask_once(self, request: Request) -> bytes:
        if request.doing.verb == "list":
            self.lists += 1
            await self.listing.wait()
        return await super().ask_once(request)


class InnerAgent:
    """The GPU part of an agent in this process, on a clock that a test moves: it answers the lab's kubelet."""

    def __init__(self, lab: GpuLab) -> None:
        self.lab = lab
        self.clock = ManualClock()
        found = connection.find(Flags(kubeconfig=lab.root / "kubeconfig"))
        self.client = LateClient(found, self.clock)
        paths = lab.cluster.kubelet.paths
        gpus = [MockGpu(uuid=uuid, model="Tesla T4", memory=100 << 20) for uuid in (T4, A100)]
        monitor = GpuMonitor(MockGpus(gpus), SystemClock(), HealthSettings(recovery=0.1), refresh=0.1)
        self.pods = NodePods(self.client, MACHINE)
        standing = NodeStanding()
        self.allocator = PodAllocator(
            GpuSettings(dialects=(DOSLAB,)),
            self.pods,
            paths,
            StartedContainers(None),
            self.clock,
            standing=standing,
        )
        counts = GpuNodeCounts(Client(found), MACHINE, [DOSLAB], monitor, standing=standing)
        self.part = GpuPart(MACHINE, monitor, self.allocator, counts, SystemClock(), paths)
        self.plugins = Plugins(*self.part.plugins, settings=Settings(paths=paths))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["InnerAgent"]:
        tasks = [asyncio.ensure_future(each) for each in (self.part.run(), self.plugins.run())]
        try:
            await self.lab.shows(200, 2)
            await self.pods.synced()
            yield self
        finally:
            self.plugins.stop()
            await tasks[1]
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.client.close()

    @property
    def held_up(self) -> float:
        """Seconds of this clock for which the kubelet was kept waiting, by all agents of this process."""
        return REGISTRY.get_sample_value("colocate_gpu_held_up_seconds_total", {"resource": MEMORY}) or 0.0

    async def attack(self, pods: int, units: int = 4, victims: Iterable[tuple[str, int]] = ()) -> None:
        """Pods that are gone when the kubelet comes to them, which is told of victims after them."""
        kubelet = self.lab.cluster.kubelet
        async with kubelet.devices._admission:
            for number in range(pods):
                name = f"gone-{number}"
                uid = self.lab.create_pod(name, units)
                await until(lambda uid=uid: uid in kubelet.records, "the kubelet to hear of it")  # type: ignore[misc]
                self.lab.delete_pod(name)
            for name, size in victims:
                uid = self.lab.create_pod(name, size)
                await until(lambda uid=uid: uid in kubelet.records, "the kubelet to hear of it")  # type: ignore[misc]
            if self.client.watching.is_set() and victims:
                await until(lambda: uid in (self.pods.pods or {}), "the agent to hear of it")


@pytest.fixture
async def agent() -> AsyncIterator[InnerAgent]:
    async with gpu_lab() as lab, InnerAgent(lab).running() as made:
        yield made


VICTIMS = [("plain", 0), ("other", 7), ("same", 4), ("plain-too", 0)]


async def test_pods_that_are_deleted_at_once_hold_up_nobody(agent: InnerAgent) -> None:
    before = agent.held_up
    await agent.attack(20, victims=VICTIMS)
    for name, _ in VICTIMS:
        await agent.lab.until_phase(name)
    assert agent.clock.monotonic() == 0, "no time passed, and none was needed"
    assert agent.held_up == before
    assert agent.client.lists <= 25


async def test_a_pod_of_the_same_size_starts_though_the_watch_has_not_told_of_it(agent: InnerAgent) -> None:
    agent.client.watching.clear()
    await agent.attack(5, victims=[("victim", 4), ("second", 4)])
    for name in ("victim", "second"):
        await agent.lab.until_phase(name)
    assert agent.clock.monotonic() == 0
    assert agent.allocator.book.free(T4).memory + agent.allocator.book.free(A100).memory == 192
    agent.client.watching.set()
    await until(lambda: not agent.pods._ahead and len(agent.pods.pods or {}) == 2, "the watch to be heard")


async def test_a_pod_that_was_read_stays_known_however_long_the_watch_is_away(agent: InnerAgent) -> None:
    agent.client.watching.clear()
    uid = agent.lab.create_pod("victim", 4)
    await agent.lab.until_phase("victim")
    agent.client.listing.clear()
    for _ in range(10):
        await agent.clock.advance(60)
    assert uid in (agent.pods.pods or {})
    assert agent.allocator.book.free(T4).memory + agent.allocator.book.free(A100).memory == 196
    # A later read of all pods says that it is gone.
    agent.client.listing.set()
    agent.lab.delete_pod("victim")
    await agent.pods.read_ahead()
    assert uid not in (agent.pods.pods or {})


async def test_a_read_that_comes_after_the_watch_brings_no_deleted_pod_back(
    agent: InnerAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = agent.lab.create_pod("victim", 4)
    await until(lambda: uid in (agent.pods.pods or {}), "the agent to hear of it")
    last = (agent.pods.pods or {})[uid]
    agent.lab.delete_pod("victim")
    await until(lambda: uid not in (agent.pods.pods or {}), "the agent to hear of its end")

    async def old(*_: object, **__: object) -> list[GpuPod]:
        return [last]

    monkeypatch.setattr(agent.client, "list_now", old)
    await agent.pods.read_ahead()
    assert uid not in (agent.pods.pods or {})


async def test_a_server_that_does_not_answer_holds_up_admission_no_longer_than_the_budget(
    agent: InnerAgent,
) -> None:
    agent.client.watching.clear()
    agent.client.listing.clear()
    before, pods = agent.held_up, 30
    await agent.attack(pods, victims=[("plain", 0)])
    ticking = asyncio.ensure_future(_tick(agent.clock))
    try:
        await agent.lab.until_phase("plain")
    finally:
        ticking.cancel()
    held = agent.held_up - before
    most = (
        pod_search.CAPACITY + pod_search.SHARE * agent.clock.monotonic() + pods * (pod_search.LEAST + _STEP)
    )
    assert held <= most < pods * pod_search.LONGEST / 4
    # The budget is spent: a pod that nobody has told of is still read.
    agent.client.listing.set()
    agent.lab.create_pod("victim", 4)
    await agent.lab.until_phase("victim")


async def test_a_server_that_is_slow_is_waited_for(agent: InnerAgent) -> None:
    agent.client.watching.clear()
    agent.client.listing.clear()
    agent.lab.create_pod("victim", 4)
    await until(lambda: agent.client.lists > 1, "the agent to read")
    await agent.clock.advance(pod_search.LONGEST / 2)
    agent.client.listing.set()
    await agent.lab.until_phase("victim")


async def test_more_questions_than_reads_are_answered_by_the_watch(agent: InnerAgent) -> None:
    """Beyond the reads that are allowed, the watch alone is waited for, a moment for each."""
    while agent.allocator._search.patience.may_read():
        pass
    lists = agent.client.lists
    ticking = asyncio.ensure_future(_tick(agent.clock))
    try:
        await agent.attack(3, victims=[("plain", 0)])
        await agent.lab.until_phase("plain")
    finally:
        ticking.cancel()
    assert agent.client.lists - lists <= pod_search.READS_A_SECOND * agent.clock.monotonic()


_STEP = 0.05


async def _tick(clock: ManualClock) -> None:
    while True:
        await clock.advance(_STEP)
        await asyncio.sleep(0.002)


# --- pods that never run ---------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [False, True], ids=["kubelet tells", "kubelet is silent"])
@pytest.mark.parametrize("ghost", ["mirror", "never run", "gone again"])
async def test_no_pod_of_a_replica_set_is_deleted_for_one_that_never_runs(ghost: str, silent: bool) -> None:
    async with gpu_lab() as lab:
        lab.configure(SMALL)
        await lab.start_agent()
        await lab.shows(560, 2)
        lab.cluster.kubelet.faults.podresources_refusal = "not today" if silent else ""
        lab.hold_back("ghost")
        wish = {"doslab.io/gpu-uuid": T4, "doslab.io/gpu-assume-time": "1"}
        lab.create_pod("ghost", 10, annotations={**wish, **({MIRROR: "x"} if ghost == "mirror" else {})})
        await lab.until_explained("ghost")
        uids = {}
        for number in range(5):
            container = {"name": "main", "image": "busybox", "resources": {"limits": {MEMORY: "10"}}}
            booked = {**wish, "doslab.io/gpu-uuid": A100, "doslab.io/gpu-assume-time": str(4 * 10**18)}
            body = {"name": f"web-{number}", "annotations": booked, "ownerReferences": [lab.owner()]}
            uids[f"web-{number}"] = lab.create({"metadata": body, "spec": {"containers": [container]}})
            if ghost == "gone again" and number == 2:
                lab.delete_pod("ghost")
        for name, uid in uids.items():
            pod = await lab.until_phase(name)
            assert pod["metadata"]["uid"] == uid
            told = lab.env(name)["NVIDIA_VISIBLE_DEVICES"]
            assert told == A100 or silent
            await lab.until_annotated(name, "doslab.io/gpu-uuid", told)
        assert "gpu.pod_deleted" not in lab.log()
        assert "condemned" not in lab.log()


async def test_a_pod_that_this_kubelet_does_not_run_is_known_as_such(agent: InnerAgent) -> None:
    ghost = agent.lab.create_pod("ghost", 4, annotations={MIRROR: "x"})
    agent.lab.hold_back("late")
    late = agent.lab.create_pod("late", 4)
    agent.lab.create_pod("runs", 4)
    await agent.lab.until_phase("runs")
    await until(lambda: late in (agent.pods.pods or {}), "the agent to hear of it")

    async def looked(expected: set[str], what: str) -> None:
        ticking = asyncio.ensure_future(_tick(agent.clock))
        try:
            await until(lambda: agent.allocator.not_run == expected, what)
        finally:
            ticking.cancel()

    await looked({ghost}, "a mirror to be known at once")
    await looked({ghost, late}, "what does not come to be known")
    agent.lab.cluster.kubelet.faults.podresources_refusal = "not today"
    await looked({ghost}, "a silent kubelet to be believed nothing")


async def test_what_is_booked_is_announced_though_the_kubelet_is_slow_and_mirrors_are_not_called_absent(
    agent: InnerAgent,
) -> None:
    agent.allocator.settings = msgspec.structs.replace(agent.allocator.settings, keys=(KEY,))
    agent.lab.hold_back("slow", "late")
    ghost = agent.lab.create_pod("ghost", 4, annotations={MIRROR: "x"})
    slow, late = agent.lab.create_pod("slow", 5), agent.lab.create_pod("late", 6)
    agent.lab.book("slow", A100)

    def told() -> GpuAnnouncement:
        node = agent.lab.cluster.registry.find(NODES, "", MACHINE)
        assert node is not None
        return announced(node.body["metadata"].get("annotations", {})) or GpuAnnouncement()

    ticking = asyncio.ensure_future(_tick(agent.clock))
    try:
        await until(lambda: agent.allocator.not_run == {ghost, slow, late}, "the kubelet to be found slow")
        await until(lambda: late in told().absent, "what does not come to be announced")
    finally:
        ticking.cancel()
    assert told().absent == {late}
    assert {uid: pod.rooms for uid, pod in (told().pods or {}).items()} == {slow: {A100: GpuRoom(5, 0)}}


# --- a pod's own env -------------------------------------------------------------------------------


async def test_a_pod_whose_env_goes_before_what_it_was_given_does_not_start() -> None:
    async with gpu_lab() as lab:
        lab.configure(SMALL)
        await lab.start_agent()
        await lab.shows(560, 2)
        field = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        cases: dict[str, dict[str, Any]] = {
            "all": {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            "figures": {"name": "DOSLAB_IO_GPU_RESOURCE_USED_BY_POD", "value": "1000"},
            "field": {"name": "DOSLAB_IO_GPU_UUID", **field},
        }
        for name, variable in cases.items():
            container = {"name": "main", "image": "busybox", "resources": {"limits": {MEMORY: "10"}}}
            lab.create(
                {
                    "metadata": {"name": name, "ownerReferences": [lab.owner()]},
                    "spec": {"containers": [{**container, "env": [variable]}]},
                }
            )
        for name, variable in cases.items():
            sets = f"the env of container main sets {variable['name']}, which the agent sets for its GPU"
            await lab.until_told(name, sets)
            assert lab.pod(name)["status"]["phase"] == Phase.PENDING
        lab.create_pod("fine", 10)
        await lab.until_phase("fine")
        assert "gpu.pod_deleted" not in lab.log(), "only its owner can mend it"


async def test_an_owner_who_changes_annotations_without_end_is_not_told_without_end() -> None:
    told: list[str] = []

    class Pods(NodePods):
        def __init__(self) -> None:
            self.shown = gpu_pod("p", 4)

        @property
        def pods(self) -> Mapping[str, GpuPod]:
            return {"p": self.shown}

        def tell(self, pod: GpuPod, reason: str, message: str, *, warning: bool = True) -> None:
            told.append(message)

    pods = Pods()
    notices = GpuNotices(pods, ManualClock())
    for number in range(200):
        pods.shown = gpu_pod("p", 4, annotations={COUNT_WISH: f"nonsense {number}"})
        await notices.see_to_all(GpuAnswers(), TWO, GpuSettings())
    assert len(told) == 32
