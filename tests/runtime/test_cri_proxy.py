"""The proxy tells what happens to containers, writes what is decided, and lets calls pass when that fails."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import grpc.aio
import pytest
from tests.support import cri_runtime
from tests.support.cri_proxies import proxying
from tests.support.cri_runtime import READERS, MiniRuntime, call_unary
from tests.support.noted_events import NotedEvents
from tests.support.waiting import until

from colocate import telemetry
from colocate.agent.configuration import build
from colocate.agent.cri_proxy import ProxySockets, run_cri_proxy
from colocate.aio import without_signals
from colocate.clock import ManualClock
from colocate.cpus.placer.part import PlacementPart
from colocate.model.container import ContainerPhase, CpuPin, RuntimeResources
from colocate.model.cpuset import CpuSet
from colocate.runtime import cri_proxy
from colocate.runtime.events import PlacementRefused, Placing
from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri
from colocate.wire import rpc

INFO = """{
    "pid": 77,
    "config": {
        "linux": {"cgroup_parent": "/kubepods/burstable/podu"},
        "devices": [{"host_path": "/dev/gpu0"}],
        "CDI_devices": [{"name": "vendor.com/nic=1"}]
    },
    "runtimeSpec": {"linux": {
        "cgroupsPath": "/kubepods/x",
        "resources": {
            "memory": {"limit": 64},
            "cpu": {"shares": 1024, "quota": 5, "period": 9, "cpus": "0-3", "mems": "1"}
        }
    }}
}"""


class Node:
    """The runtime, the proxy's events, and a kubelet's channel to the proxy."""

    def __init__(self, folder: Path) -> None:
        self.runtime = MiniRuntime()
        self.events = NotedEvents()
        self.clock = ManualClock()
        self.behind = folder / "runtime.sock"
        self.before = folder / "proxy.sock"
        self.kubelet = cri_runtime.client(self.before)

    async def create(self, name: str = "main") -> cri.CreateContainerResponse:
        return await rpc.call(self.kubelet, methods.CREATE_CONTAINER, creation(name), timeout=30)

    async def synchronized(self, times: int = 1) -> None:
        await until(lambda: self.events.said("synchronize") == times, "a reconciliation")


def creation(name: str = "main") -> cri.CreateContainerRequest:
    return cri.CreateContainerRequest(
        pod_sandbox_id="s",
        sandbox_config=cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name="p", uid="u", namespace="n"),
            annotations={"a": "b", "colocate.dev/cpus": "strict"},
            linux=cri.LinuxPodSandboxConfig(cgroup_parent="/kubepods/podu"),
        ),
        config=cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name, attempt=0),
            devices=[cri.Device(host_path="/dev/gpu0")],
            linux=cri.LinuxContainerConfig(
                resources=cri.LinuxContainerResources(cpu_shares=2048, memory_limit_in_bytes=7)
            ),
        ),
    )


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    with TemporaryDirectory(prefix="cri") as folder:
        node = Node(Path(folder))
        async with (
            node.kubelet,
            cri_runtime.serving(node.behind, node.runtime.serve),
            proxying(node.behind, node.before, node.events, node.clock),
        ):
            await node.synchronized()
            yield node


def pin(cpus: str, container_id: str = "", mems: tuple[int, ...] = ()) -> CpuPin:
    return CpuPin(container_id=container_id, cpus=CpuSet.parse(cpus), mems=mems)


async def test_a_container_is_told_with_all_that_decides_its_place(node: Node) -> None:
    await node.create()
    ((sandbox, container),) = node.events.of("create")
    assert (sandbox.id, sandbox.uid, sandbox.namespace, sandbox.name) == ("s", "u", "n", "p")
    assert (sandbox.cgroup_parent, sandbox.annotations) == (
        "/kubepods/podu",
        {"colocate.dev/cpus": "strict"},
    )
    assert (container.sandbox_id, container.name, container.attempt) == ("s", "main", 0)
    assert container.resources == RuntimeResources(cpu_shares=2048, memory_limit=7)
    assert container.devices == ("/dev/gpu0",)
    assert node.events.told[1:] == [("create", "main"), ("created", "main", "id-main")]


async def test_others_give_up_their_cpus_before_the_container_is_created(node: Node) -> None:
    node.events.placing = Placing(own=pin("4-7"), others=(pin("0-1", "x"), pin("2-3", "y")))
    await node.create()
    pinned = node.runtime.pinned()
    assert sorted(pinned[:2]) == [("x", "0-1"), ("y", "2-3")]
    assert pinned[2:] == [("", "4-7")]


async def test_a_resize_goes_through_with_the_cpuset_merged_in(node: Node) -> None:
    node.events.placing = Placing(own=pin("8-9", mems=(0, 1)))
    said = cri.LinuxContainerResources(cpu_shares=512, cpu_quota=50_000, cpu_period=100_000)
    request = cri.UpdateContainerResourcesRequest(container_id="x", linux=said)
    await rpc.call(node.kubelet, methods.UPDATE_RESOURCES, request, timeout=30)
    (sent,) = node.runtime.asked
    assert (sent.linux.cpuset_cpus, sent.linux.cpuset_mems) == ("8-9", "0,1")
    assert (sent.linux.cpu_shares, sent.linux.cpu_quota) == (512, 50_000)
    assert node.events.of("update")[0][1].cpu_quota == 50_000


async def test_a_strict_wish_that_cannot_be_had_ends_the_call_with_the_reason(node: Node) -> None:
    node.events.placing = PlacementRefused("no CCX has 8 free CPUs; wait, or drop colocate.io/cpus")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.create()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "no CCX has 8 free CPUs; wait, or drop colocate.io/cpus"
    assert node.runtime.asked == []


async def test_a_decision_that_fails_lets_the_container_start_as_it_would_have(node: Node) -> None:
    node.events.placing = ZeroDivisionError("a bug")
    await node.create()
    assert node.runtime.asked == [creation()]
    assert node.events.said("created") == 1


async def test_garbage_is_passed_on_as_it_came(node: Node) -> None:
    node.runtime.garbage = True
    garbage = b"\xff\xfe\x00 garbage"
    paths = sorted(READERS)
    for path in paths:
        assert (await call_unary(node.kubelet, path, garbage)).answers == (b"\xff\xff\xff",)
    assert node.runtime.asked == [garbage] * len(paths)
    assert node.events.told == [("synchronize",)]


async def test_a_container_that_the_runtime_could_not_make_is_told(node: Node) -> None:
    node.runtime.failures["CreateContainer"] = [grpc.StatusCode.UNKNOWN]
    with pytest.raises(grpc.aio.AioRpcError):
        await node.create()
    assert node.events.told[-1] == ("not_created", "main")


async def test_a_creation_that_was_cut_off_is_looked_for_at_the_runtime(node: Node) -> None:
    node.runtime.failures["CreateContainer"] = [grpc.StatusCode.UNAVAILABLE]
    with pytest.raises(grpc.aio.AioRpcError):
        await node.create("lost")
    await until(lambda: node.events.said("not_created", "lost") == 1, "the look at the runtime")
    node.runtime.hold = asyncio.Event()
    creating = asyncio.ensure_future(node.create("made"))
    await until(lambda: bool(node.runtime.containers), "the container at the runtime")
    creating.cancel()
    await until(lambda: node.events.said("created", "made", "id-made") == 1, "the look at the runtime")


async def test_the_end_of_a_container_is_read_from_what_the_kubelet_is_told(node: Node) -> None:
    for name in ("listed", "asked", "streamed"):
        await node.create(name)
    node.runtime.containers["id-listed"].state = cri.CONTAINER_EXITED
    for _ in range(2):
        await rpc.call(node.kubelet, methods.LIST_CONTAINERS, cri.ListContainersRequest(), timeout=30)
    assert [told for told in node.events.told if told[0] == "stopped"] == [("stopped", "id-listed")]
    node.runtime.containers["id-asked"].state = cri.CONTAINER_EXITED
    question = cri.ContainerStatusRequest(container_id="id-asked")
    await rpc.call(node.kubelet, methods.CONTAINER_STATUS, question, timeout=30)
    assert node.events.told[-1] == ("stopped", "id-asked")
    stream = node.kubelet.unary_stream(methods.CONTAINER_EVENTS)(b"")
    assert len([event async for event in stream]) == 3
    assert node.events.told[-1] == ("stopped", "id-streamed")
    assert node.events.said("stopped") == 3


async def test_what_the_runtime_has_is_told_when_it_is_met() -> None:
    with TemporaryDirectory(prefix="cri") as folder:
        node = Node(Path(folder))
        node.runtime.add("runs", state=cri.CONTAINER_RUNNING)
        node.runtime.add("ended", state=cri.CONTAINER_EXITED)
        node.runtime.info = INFO
        node.events.corrections = [pin("0-1", "id-runs")]
        async with (
            node.kubelet,
            cri_runtime.serving(node.behind, node.runtime.serve),
            proxying(node.behind, node.before, node.events, node.clock),
        ):
            await node.synchronized()
            await until(lambda: node.runtime.pinned() == [("id-runs", "0-1")], "the correction")
    (sandbox,), (runs, ended) = node.events.sandboxes, node.events.containers
    assert (sandbox.id, sandbox.uid, sandbox.cgroup_parent) == ("s", "u", "/kubepods/burstable/podu")
    assert (runs.phase, ended.phase) == (ContainerPhase.RUNNING, ContainerPhase.EXITED)
    assert (runs.pid, runs.cgroup_path) == (77, "/kubepods/x")
    assert runs.devices == ("/dev/gpu0", "vendor.com/nic=1")
    assert runs.resources == RuntimeResources(
        cpu_shares=1024, cpu_quota=5, cpu_period=9, memory_limit=64, cpuset_cpus="0-3", cpuset_mems="1"
    )


@pytest.mark.parametrize("info", ["", "null", "[", '{"config": 3}', "[" * 100_000, '{"pid": -1}'])
async def test_a_status_that_says_other_things_is_no_trouble(info: str) -> None:
    with TemporaryDirectory(prefix="cri") as folder:
        node = Node(Path(folder))
        node.runtime.info = info
        node.runtime.add("runs", state=cri.CONTAINER_RUNNING)
        async with (
            node.kubelet,
            cri_runtime.serving(node.behind, node.runtime.serve),
            proxying(node.behind, node.before, node.events, node.clock),
        ):
            await node.synchronized()
    (runs,) = node.events.containers
    assert (runs.id, runs.resources, runs.pid) == ("id-runs", RuntimeResources(), 0)


async def test_a_container_without_a_status_delays_no_other() -> None:
    with TemporaryDirectory(prefix="cri") as folder:
        node = Node(Path(folder))
        node.runtime.add("broken", state=cri.CONTAINER_RUNNING)
        node.runtime.add("gone", state=cri.CONTAINER_RUNNING)
        node.runtime.failures["ContainerStatus"] = [grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND]
        node.runtime.failures["PodSandboxStatus"] = [grpc.StatusCode.DEADLINE_EXCEEDED]
        async with (
            node.kubelet,
            cri_runtime.serving(node.behind, node.runtime.serve),
            proxying(node.behind, node.before, node.events, node.clock),
        ):
            await node.synchronized()
    sandboxes, containers = node.events.sandboxes, node.events.containers
    assert [sandbox.id for sandbox in sandboxes] == ["s"]
    assert [(each.phase, each.resources) for each in containers] == [
        (ContainerPhase.RUNNING, RuntimeResources())
    ]


async def test_a_runtime_that_comes_back_is_reconciled_again() -> None:
    with TemporaryDirectory(prefix="cri") as folder:
        node = Node(Path(folder))
        async with node.kubelet, proxying(node.behind, node.before, node.events):
            for times in (1, 2):
                async with cri_runtime.serving(node.behind, node.runtime.serve):
                    await node.synchronized(times)
                await until(lambda: node.events.said("detached") == times, "the loss")  # noqa: B023


async def test_a_container_is_not_kept_waiting_for_a_reconciliation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cri_proxy, "PATIENCE", 0.01)
    with TemporaryDirectory(prefix="cri") as folder:
        node = Node(Path(folder))
        node.runtime.failures["ListPodSandbox"] = [grpc.StatusCode.UNKNOWN] * 2
        async with (
            node.kubelet,
            cri_runtime.serving(node.behind, node.runtime.serve),
            proxying(node.behind, node.before, node.events, node.clock),
        ):
            await node.create()
            assert node.runtime.asked == [creation()]
            assert not node.events.told
            for _ in range(2):
                await node.clock.until_someone_sleeps()
                await node.clock.advance(1)
            await node.synchronized()


@pytest.mark.parametrize("younger", [True, False], ids=["younger than the list", "in the list"])
async def test_a_container_that_is_made_before_a_reconciliation_is_placed_after_it(
    monkeypatch: pytest.MonkeyPatch, younger: bool
) -> None:
    monkeypatch.setattr(cri_proxy, "PATIENCE", 0.01)
    with TemporaryDirectory(prefix="cri") as folder:
        node = Node(Path(folder))
        node.events.placing = Placing(pin("4-7"))
        node.runtime.failures["ListPodSandbox"] = [grpc.StatusCode.UNKNOWN]
        async with (
            node.kubelet,
            cri_runtime.serving(node.behind, node.runtime.serve),
            proxying(node.behind, node.before, node.events, node.clock),
        ):
            for name in ("main", "gone"):
                await node.create(name)
            gone = cri.RemoveContainerRequest(container_id="id-gone")
            await rpc.call(node.kubelet, methods.REMOVE_CONTAINER, gone, timeout=30)
            said = cri.LinuxContainerResources(cpu_shares=512)
            resize = cri.UpdateContainerResourcesRequest(container_id="id-main", linux=said)
            await rpc.call(node.kubelet, methods.UPDATE_RESOURCES, resize, timeout=30)
            assert node.runtime.asked[-1] == resize, "passed on as it came"
            node.runtime.containers.clear()
            if not younger:
                node.runtime.add("main", state=cri.CONTAINER_RUNNING)
            await node.clock.until_someone_sleeps()
            await node.clock.advance(1)
            await until(lambda: node.events.told[-1] == ("update", "id-main"), "decisions")
            assert node.events.told[-2] == ("found", "main", "id-main")
            assert node.events.containers == []
            assert node.events.of("found")[0][1].devices == ("/dev/gpu0",), "no list tells them"
            assert node.events.of("update") == [("id-main", RuntimeResources(cpu_shares=512))]
            pinned = cri.UpdateContainerResourcesRequest(
                container_id="id-main", linux=cri.LinuxContainerResources(cpuset_cpus="4-7")
            )
            await until(lambda: node.runtime.asked[-1] == pinned, "its CPUs")
            assert not node.events.said("create")
            assert not node.events.said("found", "gone")


async def test_a_runtime_that_talks_garbage_is_passed_on_and_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cri_proxy, "PATIENCE", 0.01)
    with TemporaryDirectory(prefix="cri") as folder:
        node = Node(Path(folder))
        node.runtime.garbage = True
        async with (
            node.kubelet,
            cri_runtime.serving(node.behind, node.runtime.serve),
            proxying(node.behind, node.before, node.events, node.clock),
        ):
            await node.clock.until_someone_sleeps()
            sent = creation().SerializeToString()
            ended = await call_unary(node.kubelet, methods.CREATE_CONTAINER.path, sent)
            assert ended.answers == (b"\xff\xff\xff",)
            assert node.events.told == []
            node.runtime.garbage = False
            await node.clock.advance(1)
            await node.synchronized()
            assert node.events.writer
            node.runtime.garbage = True
            assert await node.events.writer.write([pin("0-1", "x")]) == ["x"]


async def test_a_change_that_fails_is_tried_again_unless_another_takes_its_place(node: Node) -> None:
    node.runtime.failures["UpdateContainerResources"] = [grpc.StatusCode.UNKNOWN] * 3
    writer = node.events.writer
    assert writer
    assert await writer.write([pin("0-1", "x")]) == ["x"]
    await node.clock.advance(1)
    await until(lambda: len(node.runtime.asked) == 2, "the second attempt")
    assert await writer.write([pin("2-3", "x")]) == ["x"]
    await node.clock.until_someone_sleeps()
    await node.clock.advance(2)
    await until(lambda: len(node.runtime.asked) == 4, "the last attempt")
    assert node.runtime.pinned() == [("x", "0-1"), ("x", "0-1"), ("x", "2-3"), ("x", "2-3")]


async def test_a_change_to_a_container_that_is_gone_is_no_failure(node: Node) -> None:
    node.runtime.failures["UpdateContainerResources"] = [grpc.StatusCode.NOT_FOUND]
    assert node.events.writer
    assert await node.events.writer.write([pin("0-1", "x")]) == []


async def test_of_two_changes_to_one_container_the_later_one_stays(node: Node) -> None:
    assert node.events.writer
    pins = [[pin(f"{number}", "x")] for number in range(20)]
    await asyncio.gather(*(node.events.writer.write(pin) for pin in pins))
    assert node.runtime.pinned()[-1] == ("x", "19")


async def test_a_placer_that_cannot_go_on_leaves_the_kubelet_its_runtime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(_: PlacementPart) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(PlacementPart, "run", fail)
    monkeypatch.setattr(telemetry, "configure_logs", lambda *_: None)
    passed = telemetry.CRI_PASSED.labels(method="CreateContainer", reason="ended")
    before = passed._value.get()
    with TemporaryDirectory(prefix="cri") as folder:
        node = Node(Path(folder))
        config = build(f"version: 1\ncpus: {{stateFolder: {folder}/state}}".encode(), "test").config
        async with node.kubelet, cri_runtime.serving(node.behind, node.runtime.serve):
            running = asyncio.create_task(
                run_cri_proxy(lambda: config, ProxySockets(node.behind, node.before))
            )
            try:
                await until(node.before.exists, "the proxy's socket")
                await node.create()
                request = cri.UpdateContainerResourcesRequest(container_id="id-main")
                await rpc.call(node.kubelet, methods.UPDATE_RESOURCES, request, timeout=30)
            finally:
                without_signals()
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    assert node.runtime.asked == [creation(), request]
    assert passed._value.get() == before + 1
