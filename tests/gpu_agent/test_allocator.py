"""Who answers the GPU plugins, when its surroundings fail: silent or contradicting records, a watch that lags."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from colocate.aio import Watched
from colocate.clock import ManualClock, SystemClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.cluster.errors import Unreachable
from colocate.errors import UserError
from colocate.gpus import (
    COUNT_WISH,
    DOSLAB,
    AnswerKey,
    AnswerState,
    GpuAnswer,
    GpuAnswers,
    GpuPod,
    GpuSettings,
    pods,
    slices_of,
)
from colocate.gpus.agent import allocator as module
from colocate.gpus.agent import claimants, pod_search
from colocate.gpus.agent.allocator import PodAllocator
from colocate.gpus.agent.key_file import KeyFile, read_keys
from colocate.gpus.agent.notices import GpuNotices
from colocate.gpus.agent.pods import NodePods, flag_patch
from colocate.gpus.agent.standing import NodeStanding
from colocate.gpus.agent.started import StartedContainers
from colocate.gpus.pods import GpuAsk
from colocate.kubelet import allocation, checkpoint
from colocate.kubelet.allocation import to_wire
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.plugin import Refused
from colocate.kubelet.podresources import KubeletPods
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry
from colocate.model.device import Allocation
from colocate.model.gpu import GpuInventory
from colocate.model.records import ListedPod
from tests.gpus.node import TWO, gpu_pod
from tests.support.waiting import until

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
        self.unheard: list[GpuPod] | None = None
        """What a read of the API server finds beside those that are told; None: it does not answer."""

    async def read_ahead(self) -> None:
        if self.unheard is None:
            raise Unreachable("the API server is away")
        assert self.told is not None
        self.told |= {pod.uid: pod for pod in self.unheard}

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
        self.away: set[str] = set()
        """Pods, as namespace/name, that the kubelet has not got."""
        self.held: list[Entry] = []

        async def known(_: object, __: object, keys: Collection[str], **___: object) -> KubeletPods:
            if self.listing is None:
                return KubeletPods(silent="podresources is silent")
            listed = {pod.key: pod for pod in self.listing}
            found = {key: listed.get(key) or _at_kubelet(key) for key in keys if key not in self.away}
            return KubeletPods(found, frozenset(keys) - found.keys())

        for place in (module, claimants):
            monkeypatch.setattr(place, "known_pods", known)
        for seconds in ("LONGEST", "UNHEARD"):
            monkeypatch.setattr(pod_search, seconds, 0.3)
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


def _at_kubelet(key: str) -> ListedPod:
    namespace, _, name = key.partition("/")
    return ListedPod(namespace, name, {})


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
    answer = condemned("p")
    notices = GpuNotices(lab.pods, SystemClock())
    lab.pods.add(gpu_pod("p", 4, owner="ReplicaSet", run=True))
    await notices.see_to_all(GpuAnswers().having(answer), TWO, GpuSettings())
    assert not lab.pods.deleted
    assert lab.pods.events == [("p", "it holds another's; it runs on until its container ends")]
    lab.pods.add(gpu_pod("p", 4, owner="ReplicaSet"))
    await notices.see_to_all(GpuAnswers().having(answer), TWO, GpuSettings())
    assert lab.pods.deleted == ["p"]


def condemned(uid: str, *, spared: bool = False) -> GpuAnswer:
    return GpuAnswer(
        key=AnswerKey(uid, DOSLAB.memory, "c0"),
        pod=f"default/{uid}",
        ids=frozenset({uid}),
        gpus=(A,),
        memory=4,
        state=AnswerState.CONDEMNED,
        reason="it holds another's",
        spared=spared,
    )


async def test_few_pods_of_a_controller_are_deleted_in_an_hour_and_the_others_are_told(lab: Lab) -> None:
    clock = ManualClock()
    notices = GpuNotices(lab.pods, clock)
    pods = [gpu_pod(f"p{number}", 4, owner="ReplicaSet") for number in range(5)]
    lab.pods.add(*pods, gpu_pod("other", 4, owner="Job"))
    answers = GpuAnswers().having(*(condemned(pod.uid) for pod in (*pods, gpu_pod("other", 4))))
    for _ in range(3):
        await notices.see_to_all(answers, TWO, GpuSettings())
    assert set(lab.pods.deleted) == {"p0", "p1", "p2", "other"}
    withheld = [message for uid, message in lab.pods.events if uid in ("p3", "p4")]
    assert len(withheld) == 2
    assert "it is not deleted, because 3 pods of its ReplicaSet were within the hour" in withheld[0]
    assert lab.pods.told is not None
    for uid in set(lab.pods.deleted):
        del lab.pods.told[uid]
    await clock.advance(3600)
    await notices.see_to_all(answers, TWO, GpuSettings())
    assert {"p3", "p4"} <= set(lab.pods.deleted)


async def test_few_pods_of_a_node_are_deleted_in_an_hour_whatever_owners_they_name(lab: Lab) -> None:
    notices = GpuNotices(lab.pods, ManualClock())
    pods = [gpu_pod(f"p{number}", 4, owner=f"Owner{number}") for number in range(25)]
    lab.pods.add(*pods)
    await notices.see_to_all(GpuAnswers().having(*(condemned(pod.uid) for pod in pods)), TWO, GpuSettings())
    assert len(set(lab.pods.deleted)) == 20
    assert sum("because 20 pods of this node were" in message for _, message in lab.pods.events) == 5


async def test_no_pod_is_deleted_for_one_that_no_scheduler_has_booked(lab: Lab) -> None:
    lab.pods.add(gpu_pod("p", 4, owner="ReplicaSet"))
    notices = GpuNotices(lab.pods, ManualClock())
    await notices.see_to_all(GpuAnswers().having(condemned("p", spared=True)), TWO, GpuSettings())
    assert not lab.pods.deleted
    assert "delete it, and its ReplicaSet makes a new one" in lab.pods.events[0][1]


async def test_however_many_pods_never_arrive_each_is_looked_at_and_known_as_not_run(lab: Lab) -> None:
    clock = ManualClock()
    seen = claimants.Claimants(lab.paths, clock)
    names = [f"gone-{number}" for number in range(45)]
    lab.away |= {f"default/{name}" for name in (*names, "late")}
    pods = {name: gpu_pod(name, 4) for name in (*names, "late", "here")}
    for number in range(30):
        # New ones come all the time, and keep no older one from its turn.
        lab.away.add(f"default/new-{number}")
        pods[f"new-{number}"] = gpu_pod(f"new-{number}", 4, created=number)
        await seen.look(pods, GpuAnswers(), GpuSettings())
        if number == 4:
            lab.away.remove("default/late")
        assert not seen.not_run & {"late", "here"}
        await clock.advance(2)
    assert seen.not_run >= set(names)
    del pods["gone-0"]
    await seen.look(pods, GpuAnswers(), GpuSettings())
    assert "gone-0" not in seen.not_run
    assert seen.not_run >= set(names[1:])


async def test_a_server_that_is_slow_to_take_annotations_holds_up_no_announcement(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def at_once() -> None:
        pass

    async def never(*_: object) -> None:
        asked.append("")
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "_LEAST_GAP", 0.01)
    monkeypatch.setattr(lab.pods, "synced", at_once)
    monkeypatch.setattr(lab.pods, "run", asyncio.Event().wait)
    monkeypatch.setattr(lab.pods, "set_flags", never)
    standing = NodeStanding()
    standing.recall(None)
    lab.agent = PodAllocator(
        GpuSettings(), lab.pods, lab.paths, StartedContainers(None), SystemClock(), standing=standing
    )
    lab.agent.take_inventory(TWO)
    running = asyncio.ensure_future(lab.agent.run())
    try:
        for uid, ids in (("p", IDS[A][:4]), ("q", IDS[A][4:9])):
            lab.pods.add(gpu_pod(uid, len(ids), gpus=A, time=1))
            await lab.admit(uid, ids)
            await until(lambda uid=uid: uid in (standing.pods or {}), "it to be announced")  # type: ignore[misc]
            await until(lambda: bool(asked), "its annotations to be written")
    finally:
        running.cancel()


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


async def test_a_podresources_that_names_other_devices_lets_nothing_start(lab: Lab) -> None:
    lab.pods.add(gpu_pod("p", 4, gpus=B, time=1))
    await lab.admit("p", IDS[A][:4])
    lab.listing = (ListedPod("default", "p", {"c0": {DOSLAB.memory: frozenset(IDS[A][4:8])}}),)
    with pytest.raises(Refused, match="podresources says that default/p holds other devices"):
        await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    lab.listing = (ListedPod("default", "p", {"c0": {DOSLAB.memory: frozenset(IDS[A][:4])}}),)
    await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])


async def test_an_agent_started_anew_lets_go_on_what_it_had_let_start(lab: Lab) -> None:
    lab.pods.add(gpu_pod("p", 4, gpus=B, time=1))
    await lab.admit("p", IDS[A][:4])
    await lab.agent.prestart(DOSLAB.memory, IDS[A][:4])
    # The annotation changes, and the kubelet has not told yet that the container runs.
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
    assert "create it again" in lab.pods.events[0][1]
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
    assert StartedContainers(lab.state).load()[0] == {AnswerKey("p", DOSLAB.memory, "c0")}


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


async def test_a_pod_of_thousands_of_containers_costs_no_more_than_one_of_few(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    real = pods._ask

    def ask(container: pods.GpuContainer, *facts: Any, **more: Any) -> GpuAsk | None:
        nonlocal looked
        looked += 1
        return real(container, *facts, **more)

    monkeypatch.setattr(pods, "_ask", ask)
    costs: dict[int, list[int]] = {}
    for number in (pods.MOST_ASKING, 2000):
        lab.pods.told = {}
        lab.pods.add(gpu_pod("many", 1, init=[1] * number, annotations={COUNT_WISH: "2"}))
        for _ in range(3):
            looked = 0
            with pytest.raises(Refused, match=r"pod default/many: more than 16 of its containers ask"):
                await lab.agent.allocate(DOSLAB.memory, IDS[A][:1])
            costs.setdefault(number, []).append(looked)
        assert not lab.agent.answers.by_key
        # Others are served beside it, and pay nothing for it.
        lab.pods.add(gpu_pod("plain", 4, gpus=B, time=1))
        looked = 0
        assert (await lab.agent.allocate(DOSLAB.memory, IDS[A][:4])).envs["NVIDIA_VISIBLE_DEVICES"] == B
        costs[number].append(looked)
        lab.agent = lab.new_agent()
    assert costs[2000] == costs[pods.MOST_ASKING]


def test_flags_are_set_on_the_very_pod_that_was_seen() -> None:
    patch = flag_patch(gpu_pod("p", 4), {"doslab.io/gpu-assigned": "true"})
    assert [type(each).__name__ for each in patch] == ["Test", "Test", "Add", "Add"]
    assert [each.path for each in patch][:2] == ["/metadata/uid", "/metadata/resourceVersion"]
    assert patch[-1].path == "/metadata/annotations/doslab.io~1gpu-assigned"


async def test_a_tenant_who_undoes_annotations_again_and_again_does_not_drive_the_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    pods = NodePods(Client(Connection("http://127.0.0.1:9", "the test"), clock), "here")
    written: list[str] = []

    async def patch(resource: object, name: str, *_: object) -> None:
        written.append(name)

    monkeypatch.setattr(pods.client, "patch", patch)
    for _ in range(3600):  # An hour, in each second of which he has undone it.
        await pods.set_flags(gpu_pod("his", 4), {"doslab.io/gpu-assigned": "true"})
        await clock.advance(1.0)
    assert len(written) <= 25
    written.clear()
    for number in range(1000):
        await pods.set_flags(gpu_pod(f"p{number}", 4), {"doslab.io/gpu-assigned": "true"})
    assert len(written) == 50
    await clock.advance(1.0)
    for number in range(1000):
        await pods.set_flags(gpu_pod(f"q{number}", 4), {"doslab.io/gpu-assigned": "true"})
    assert len(written) == 60


def test_a_key_file_that_comes_later_or_changes_is_read_and_a_broken_one_keeps_the_old_keys(
    tmp_path: Path,
) -> None:
    file = KeyFile(tmp_path / "keys")
    assert file.read() == ()
    assert "there is no" in file.trouble
    (tmp_path / "keys").write_bytes(b"the first key of all\n")
    assert file.read() == (b"the first key of all",)
    assert file.trouble == ""
    (tmp_path / "keys").write_bytes(b"a second key of ours\nthe first key of all\n")
    assert file.read() == (b"a second key of ours", b"the first key of all")
    (tmp_path / "keys").write_bytes(b"short\n")
    assert file.read() == (b"a second key of ours", b"the first key of all")
    assert "make it 16 or longer" in file.trouble
    assert "short" not in file.trouble.replace("or longer", "")


@pytest.mark.parametrize("key", [b"", b"short", b"k" * 5000])
def test_a_key_that_is_none_is_refused(tmp_path: Path, key: bytes) -> None:
    file = tmp_path / "key"
    with pytest.raises(UserError, match="cannot be read"):
        read_keys(file, "gpus.keyFile")
    file.write_bytes(key)
    with pytest.raises(UserError, match="head -c 32 /dev/urandom"):
        read_keys(file, "gpus.keyFile")
    file.write_bytes(b"0123456789abcdef\r\n")
    assert read_keys(file, "gpus.keyFile") == (b"0123456789abcdef",)
    file.write_bytes(b"a-new-key-a-new-key\n0123456789abcdef\n")
    assert read_keys(file, "gpus.keyFile") == (b"a-new-key-a-new-key", b"0123456789abcdef")


async def test_a_pod_that_was_called_absent_is_passed_over_and_not_refused_while_a_kubelet_is_silent(
    tmp_path: Path,
) -> None:
    seen = claimants.Claimants(KubeletPaths(tmp_path), ManualClock())
    seen.not_run = frozenset({"late"})
    late, other = gpu_pod("late", 4), gpu_pod("other", 4)
    assert await seen.among([late, other]) == frozenset({"other"})
    assert await seen.among([late]) == frozenset({"late"})
