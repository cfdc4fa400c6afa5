"""Who answers the GPU plugins, when its surroundings fail: silent or contradicting records, a watch that lags."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from colocate.aio import Watched
from colocate.apps.gpus import allocator as module
from colocate.apps.gpus.allocator import PodAllocator
from colocate.apps.gpus.configuration import read_key
from colocate.apps.gpus.notices import GpuNotices
from colocate.apps.gpus.pods import NodePods, flag_patch
from colocate.apps.gpus.started import StartedContainers
from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.errors import Unavailable, UserError
from colocate.gpus import (
    DOSLAB,
    AnswerKey,
    AnswerState,
    GpuAnswer,
    GpuAnswers,
    GpuPod,
    GpuSettings,
    slices_of,
)
from colocate.kubelet import allocation, checkpoint
from colocate.kubelet.allocation import to_wire
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.plugin import Refused
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry
from colocate.model.device import Allocation
from colocate.model.gpu import GpuInventory
from colocate.model.records import ListedPod
from tests.gpus.node import TWO, gpu_pod

A, B = "GPU-aaaa", "GPU-bbbb"
IDS = slices_of(TWO.shared, 1).ids


class ToldPods(NodePods):
    """Pods as a test tells them."""

    def __init__(self) -> None:
        super().__init__(Client(Connection("http://127.0.0.1:9", "the test")), "here")
        self.told: dict[str, GpuPod] | None = {}
        self.heard = Watched()
        self.events: list[tuple[str, str]] = []
        self.deleted: list[str] = []

    @property
    def changed(self) -> Watched:
        return self.heard

    @property
    def pods(self) -> Mapping[str, GpuPod] | None:
        return self.told

    def add(self, *pods: GpuPod) -> None:
        assert self.told is not None
        self.told |= {pod.uid: pod for pod in pods}
        self.heard.changed()

    def tell(self, pod: GpuPod, reason: str, message: str, *, warning: bool = True) -> None:
        self.events.append((pod.uid, message))

    async def delete(self, pod: GpuPod) -> None:
        self.deleted.append(pod.uid)


class Lab:
    """An allocator, the pods that it hears of, and a kubelet's two records."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths = KubeletPaths(folder / "kubelet")
        self.paths.device_plugins.mkdir(parents=True)
        self.state = folder / "state"
        self.pods = ToldPods()
        self.listing: Iterable[ListedPod] | None = ()
        self.held: list[Entry] = []

        async def listed(*_: object) -> Iterable[ListedPod]:
            if self.listing is None:
                raise Unavailable("podresources is silent")
            return self.listing

        monkeypatch.setattr(module, "listed_pods", listed)
        for patience in ("_WATCH_TIME", "_FIRST_TIME"):
            monkeypatch.setattr(module, patience, 0.3)
        self.agent = self.new_agent()

    def new_agent(self) -> PodAllocator:
        agent = PodAllocator(
            GpuSettings(), self.pods, self.paths, StartedContainers(self.state), SystemClock()
        )
        agent.take_inventory(TWO)
        return agent

    def keep(self, uid: str, ids: Sequence[str], answer: Allocation) -> None:
        """The kubelet writes down what it was answered."""
        response = to_wire(answer).SerializeToString(deterministic=True)
        self.held.append(Entry(uid, "c0", DOSLAB.memory, {NO_TOPOLOGY: tuple(ids)}, response))
        self.paths.checkpoint.write_bytes(checkpoint.render(Checkpoint(tuple(self.held), {})))

    async def admit(self, uid: str, ids: Sequence[str]) -> None:
        self.keep(uid, ids, await self.agent.allocate(DOSLAB.memory, ids))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


async def test_a_pod_that_the_watch_has_not_told_of_is_waited_for(lab: Lab) -> None:
    asked = asyncio.ensure_future(lab.agent.allocate(DOSLAB.memory, IDS[A][:4]))
    await asyncio.sleep(0)
    lab.pods.add(gpu_pod("p", 4, gpus=B, time=1))
    assert (await asked).envs["NVIDIA_VISIBLE_DEVICES"] == B


async def test_one_that_never_comes_is_refused(lab: Lab) -> None:
    with pytest.raises(Refused, match=r"waits for 4 of doslab.io/gpu-memory"):
        await lab.agent.allocate(DOSLAB.memory, IDS[A][:4])


async def test_a_kubelet_that_forgot_running_pods_has_ids_for_them_and_is_answered_the_same(lab: Lab) -> None:
    lab.paths.kubelet_socket.write_text("one")
    for uid, gpu, units in (("p", A, 16), ("q", B, 10), ("r", B, 6)):
        lab.pods.add(gpu_pod(uid, units, gpus=gpu, time=1))
        await lab.admit(uid, IDS[A] if uid == "p" else IDS[B][:10] if uid == "q" else IDS[B][10:])
        await lab.agent.prestart(DOSLAB.memory, sorted(lab.held[-1].ids))
    lab.held.clear()
    lab.paths.checkpoint.unlink()
    lab.paths.kubelet_socket.unlink()
    lab.paths.kubelet_socket.write_text("two")
    await lab.admit("r", IDS[A][:6])
    assert not lab.agent.unhealthy(DOSLAB.memory), (
        "all that runs can be asked for again, and nothing else is free"
    )
    assert "running pod" in lab.agent.notes[-1]
    await lab.admit("q", IDS[A][6:])
    await lab.admit("p", IDS[B])
    given = [allocation.read(entry.alloc_resp or b"") for entry in lab.held]
    assert [each and each.envs["NVIDIA_VISIBLE_DEVICES"] for each in given] == [B, B, A]
    for entry in lab.held:
        await lab.agent.prestart(DOSLAB.memory, sorted(entry.ids))
    assert not lab.agent.notes
    assert (lab.agent.book.free(A).memory, lab.agent.book.free(B).memory) == (0, 0)


async def test_a_pod_that_must_not_start_again_is_deleted_once_its_container_has_ended(lab: Lab) -> None:
    answer = GpuAnswer(
        key=AnswerKey("p", DOSLAB.memory, "c0"),
        pod="default/p",
        ids=frozenset(IDS[A][:4]),
        gpus=(A,),
        memory=4,
        state=AnswerState.CONDEMNED,
        reason="it holds another's",
    )
    notices = GpuNotices(lab.pods, SystemClock())
    lab.pods.add(gpu_pod("p", 4, owner="ReplicaSet", run=True))
    await notices.see_to_all(GpuAnswers().having(answer), TWO, GpuSettings())
    assert not lab.pods.deleted
    assert lab.pods.events == [("p", "it holds another's; it runs on until its container ends")]
    lab.pods.add(gpu_pod("p", 4, owner="ReplicaSet"))
    await notices.see_to_all(GpuAnswers().having(answer), TWO, GpuSettings())
    assert lab.pods.deleted == ["p"]


async def test_nothing_is_answered_while_the_api_has_told_nothing(lab: Lab) -> None:
    lab.pods.told = None
    with pytest.raises(Refused, match="has not told of the pods of this node"):
        await lab.agent.allocate(DOSLAB.memory, IDS[A][:4])


async def test_a_container_whose_pod_is_known_starts_while_the_api_is_away(lab: Lab) -> None:
    lab.pods.add(gpu_pod("p", 4, gpus=B, time=1))
    await lab.admit("p", IDS[A][:4])
    lab.listing = None
    await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    assert lab.agent.book.free(B).memory == 12


@pytest.mark.parametrize("blob", [b"", b"{", b'{"Data":[]}', b'{"Data":{"PodDeviceEntries":[{"PodUID":7}]}}'])
async def test_a_checkpoint_that_cannot_be_read_lets_nothing_start(lab: Lab, blob: bytes) -> None:
    lab.pods.add(gpu_pod("p", 4, gpus=B, time=1))
    await lab.agent.allocate(DOSLAB.memory, IDS[A][:4])
    lab.paths.checkpoint.write_bytes(blob)
    with pytest.raises(Refused, match=r"records cannot be read .* the kubelet tries again"):
        await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    assert any("records cannot be read" in note for note in lab.agent.notes)


async def test_a_podresources_that_names_another_pod_lets_nothing_start(lab: Lab) -> None:
    lab.pods.add(gpu_pod("p", 4, gpus=B, time=1))
    await lab.admit("p", IDS[A][:4])
    other = {"c0": {DOSLAB.memory: frozenset(IDS[A][:4])}}
    lab.listing = (ListedPod("default", "other", other),)
    with pytest.raises(Refused, match="podresources says that default/other holds"):
        await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    lab.listing = (ListedPod("default", "p", other),)
    await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])


async def test_an_agent_started_anew_lets_go_on_what_it_had_let_start(lab: Lab) -> None:
    lab.pods.add(gpu_pod("p", 4, gpus=B, time=1))
    await lab.admit("p", IDS[A][:4])
    await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    # Somebody changes the annotation, and the kubelet has not told yet that the container runs.
    lab.pods.add(gpu_pod("p", 4, gpus=A, time=1))
    lab.agent = lab.new_agent()
    await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    assert lab.agent.book.free(B).memory == 12


async def test_a_restart_with_a_gpu_that_was_replaced_is_refused_by_its_name_until_it_is_back(
    lab: Lab,
) -> None:
    lab.pods.add(gpu_pod("p", 4, gpus=B, time=1))
    await lab.admit("p", IDS[A][:4])
    await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    lab.agent.take_inventory(GpuInventory(TWO.gpus[:1]))
    with pytest.raises(Refused, match=f"container c0 was started with GPU {B}, which is not on this node"):
        await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    assert "create it anew" in lab.pods.events[0][1]
    lab.agent.take_inventory(TWO)
    await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])


async def test_the_first_answer_of_an_agent_counts_what_pods_have_had_from_its_predecessor(lab: Lab) -> None:
    lab.pods.add(gpu_pod("p", 12, gpus=B, time=1))
    await lab.admit("p", IDS[A][:12])
    lab.pods.add(gpu_pod("q", 6, gpus=B, time=2))
    lab.agent = lab.new_agent()
    with pytest.raises(Refused, match="has 4 MiB of 16 MiB free"):
        await lab.agent.allocate(DOSLAB.memory, IDS[B][:6])


@pytest.mark.parametrize("blob", [b"", b"[", b'["x"]', b'[{"uid":1}]'])
async def test_what_is_on_disk_may_be_garbage(lab: Lab, blob: bytes) -> None:
    lab.state.mkdir()
    (lab.state / "gpus-started.json").write_bytes(blob)
    lab.agent = lab.new_agent()
    assert any("gpus-started.json cannot be read" in note for note in lab.agent.notes)
    lab.pods.add(gpu_pod("p", 4, gpus=B, time=1))
    await lab.admit("p", IDS[A][:4])
    await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    assert not lab.agent.notes
    assert StartedContainers(lab.state).load() == {AnswerKey("p", DOSLAB.memory, "c0")}


async def test_a_disk_that_takes_nothing_stops_nobody_and_is_told(lab: Lab) -> None:
    lab.state.write_text("a file in the place of the folder")
    lab.pods.add(gpu_pod("p", 4, gpus=B, time=1))
    await lab.admit("p", IDS[A][:4])
    await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    assert any("starts are not remembered" in note for note in lab.agent.notes)


async def test_marks_follow_the_gpu_and_not_the_ids(lab: Lab) -> None:
    lab.pods.add(gpu_pod("p", 4, gpus=f"{A},{B}", time=1, count=2))
    await lab.admit("p", IDS[A][:4])
    marked = lab.agent.unhealthy(DOSLAB.memory)
    assert len(marked) == 4, "the kubelet counts 4 as taken, and 8 are"
    assert not marked & set(IDS[A][:4])


async def test_a_resource_that_is_not_served_is_refused(lab: Lab) -> None:
    with pytest.raises(Refused, match=r"does not share GPUs as example.com/gpu"):
        await lab.agent.allocate("example.com/gpu", ["x"])


async def test_a_refusal_is_told_to_the_pod_that_it_is_about(lab: Lab) -> None:
    lab.pods.add(gpu_pod("p", 4, gpus="GPU-gone", time=1))
    with pytest.raises(Refused, match="GPU-gone"):
        await lab.agent.allocate(DOSLAB.memory, IDS[A][:4])
    assert lab.pods.events == [("p", lab.pods.events[0][1])]


def test_flags_are_set_on_the_very_pod_that_was_seen() -> None:
    patch = flag_patch(gpu_pod("p", 4), {"doslab.io/gpu-assigned": "true"})
    assert [type(each).__name__ for each in patch] == ["Test", "Test", "Add", "Add"]
    assert [each.path for each in patch][:2] == ["/metadata/uid", "/metadata/resourceVersion"]
    assert patch[-1].path == "/metadata/annotations/doslab.io~1gpu-assigned"


@pytest.mark.parametrize("key", [b"", b"short", b"k" * 5000])
def test_a_key_that_is_none_is_refused(tmp_path: Path, key: bytes) -> None:
    file = tmp_path / "key"
    with pytest.raises(UserError, match="cannot be read"):
        read_key(file, "gpus.keyFile")
    file.write_bytes(key)
    with pytest.raises(UserError, match="make one of 16 to 4096"):
        read_key(file, "gpus.keyFile")
    file.write_bytes(b"0123456789abcdef\n")
    assert read_key(file, "gpus.keyFile") == b"0123456789abcdef"
