"""The embedded kubelet does what the recorded kubelet 1.34 did, given the same devices and pods."""

import base64
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colocate.kubelet import Allocation, Device, DevicePlugin, Health, allocation, checkpoint
from colocate.kubelet.holders import held_in
from colocate.kubelet.plugin import DeviceList
from colocate.model.checkpoint import Checkpoint
from colocate.model.pod import Phase, Pod
from colocate.testing import TestNode, embedded_kubelet
from colocate.wire import podresources_pb2 as pr

GPU = "mock.com/gpu"
BLOCKS = "test.com/colocation-memory"


class Recorded(DevicePlugin):
    """Has the recorded devices and answers as the recorded plugins did, down to the order of ids."""

    def __init__(self, resource: str, devices: Sequence[Device], recording: Checkpoint) -> None:
        self.resource = resource
        self._devices = devices
        entries = [entry for entry in recording.entries or () if entry.resource == resource]
        self._wishes = [entry.ids for entry in entries]
        self._answers = {entry.ids: allocation.read(entry.alloc_resp or b"") for entry in entries}

    async def devices(self) -> AsyncIterator[DeviceList]:
        yield self._devices

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        fitting = [
            wish
            for wish in self._wishes
            if len(wish) == size and wish <= set(available) and set(must_include) <= wish
        ]
        return sorted(fitting[0])

    def allocate(self, ids: Sequence[str]) -> Allocation:
        answer = self._answers[frozenset(ids)]
        assert answer is not None
        return answer


@pytest.fixture
def recording(recordings: Path) -> Checkpoint:
    return checkpoint.parse(
        (recordings / "kubelet/checkpoint-1.34-two-resources.json").read_bytes()
    ).checkpoint


@pytest.fixture
def pods(recordings: Path) -> list[Pod]:
    """The recorded pods, the one of the checkpoint that ran longest first."""
    items = json.loads((recordings / "api/pod-list.json").read_text())["items"]
    found = sorted(items, key=lambda item: item["metadata"]["creationTimestamp"])
    return [msgspec.convert(item, Pod) for item in found]


def gpus() -> list[Device]:
    ids = [f"GPU-709fac35-5f40-624b-90f7-b0a3db7a97a0-{n}" for n in range(7)]
    return [
        Device(id, Health.UNHEALTHY if n == 6 else Health.HEALTHY, numa=(n % 2,)) for n, id in enumerate(ids)
    ]


def blocks() -> list[Device]:
    return [Device(f"CM-{n:04}") for n in range(40)]


@pytest.fixture
async def recorded_node(recording: Checkpoint) -> AsyncIterator[TestNode]:
    async with embedded_kubelet() as node:
        await node.serve(Recorded(GPU, gpus(), recording), Recorded(BLOCKS, blocks(), recording))
        await node.devices(GPU, 6)
        await node.devices(BLOCKS, 40)
        yield node


async def run_recorded(node: TestNode, pods: list[Pod], recording: Checkpoint) -> None:
    wanted = {entry.pod_uid for entry in recording.entries or ()}
    with_devices = [pod for pod in pods if pod.uid in wanted]
    assert len(with_devices) == 2
    for pod in with_devices:
        record = node.kubelet.add_pod(pod)
        for container in pod.spec.init_containers:
            await _finish(node, pod, container.name)
        await node.until_phase(record, Phase.RUNNING)
    without = [pod for pod in pods if pod.metadata.name == "guaranteed"]
    burstable = {"name": "burstable"}, {"containers": [{"name": "main"}, {"name": "side"}]}
    without.append(msgspec.convert({"metadata": burstable[0], "spec": burstable[1]}, Pod))
    for pod in without:
        await node.until_phase(node.kubelet.add_pod(pod), Phase.RUNNING)


async def _finish(node: TestNode, pod: Pod, container: str) -> None:
    runtime: Any = node.kubelet.runtime
    await node.kubelet.until(lambda: runtime.running(pod, container) is not None, f"{container} to run")
    runtime.running(pod, container).finish(0)


def sorted_ids(file: bytes) -> dict[str, Any]:
    """A checkpoint with ids and entries in order: the kubelet's own order is that of Go maps."""
    data = json.loads(file)["Data"]
    for entry in data["PodDeviceEntries"]:
        entry["DeviceIDs"] = {node: sorted(ids) for node, ids in entry["DeviceIDs"].items()}
    return {
        "PodDeviceEntries": sorted(data["PodDeviceEntries"], key=json.dumps),
        "RegisteredDevices": {name: sorted(ids) for name, ids in data["RegisteredDevices"].items()},
    }


async def test_the_checkpoint_equals_the_recorded_one(
    recorded_node: TestNode, pods: list[Pod], recording: Checkpoint, recordings: Path
) -> None:
    await run_recorded(recorded_node, pods, recording)
    recorded = (recordings / "kubelet/checkpoint-1.34-two-resources.json").read_bytes()
    written = recorded_node.paths.checkpoint.read_bytes()
    assert sorted_ids(written) == sorted_ids(recorded)
    assert checkpoint.parse(written).sound


async def test_podresources_answers_as_recorded(
    recorded_node: TestNode, pods: list[Pod], recording: Checkpoint, recordings: Path
) -> None:
    await run_recorded(recorded_node, pods, recording)
    documents = json.loads((recordings / "kubelet/podresources-1.34.json").read_text())
    listed = pr.ListPodResourcesResponse.FromString(base64.b64decode(documents["List"]["bytes"]))
    allocatable = pr.AllocatableResourcesResponse.FromString(
        base64.b64decode(documents["GetAllocatableResources"]["bytes"])
    )
    server = recorded_node.kubelet._podresources
    assert sorted(facts(server.listing())) == sorted(facts(listed))
    assert sorted(map(str, server.allocatable().devices)) == sorted(map(str, allocatable.devices))


def facts(listing: pr.ListPodResourcesResponse) -> Iterator[tuple[str, str, str, str]]:
    for pod in listing.pod_resources:
        for container in pod.containers:
            yield pod.namespace, pod.name, container.name, ""
            for devices in container.devices:
                assert len(devices.device_ids) == 1
                yield pod.namespace, pod.name, container.name, str(devices)


def test_recorded_podresources_say_who_holds_what(recordings: Path) -> None:
    documents = json.loads((recordings / "kubelet/podresources-1.34.json").read_text())
    listed = pr.ListPodResourcesResponse.FromString(base64.b64decode(documents["List"]["bytes"]))
    assert held_in(listed, BLOCKS) == {f"CM-{n:04}" for n in range(8)}
    assert len(held_in(listed, GPU)) == 5


async def test_a_pod_that_asks_for_too_much_is_rejected_in_the_recorded_words(
    recorded_node: TestNode, pods: list[Pod], recording: Checkpoint, recordings: Path
) -> None:
    await run_recorded(recorded_node, pods, recording)
    recorded = json.loads((recordings / "api/pod-admission-error.json").read_text())
    record = recorded_node.kubelet.add_pod(msgspec.convert(recorded, Pod))
    await recorded_node.until_phase(record, Phase.FAILED)
    assert record.status.reason == recorded["status"]["reason"]
    assert record.status.message == recorded["status"]["message"]
    event = json.loads((recordings / "api/events-admission-error.json").read_text())["items"][0]
    told = recorded_node.kubelet.events[-1]
    assert (told.type, told.reason, told.message) == (event["type"], event["reason"], event["message"])


async def test_a_killed_plugin_follows_the_recorded_timeline(recording: Checkpoint, recordings: Path) -> None:
    """Allocatable is 0 with the next sync; after five minutes capacity is, and the ids leave the checkpoint.

    The recorded kubelet needed up to one sync more than the five minutes, so the seconds between 300 and
    311 prove nothing.
    """
    lines = (recordings / "kubelet/unregister-timeline-1.34.txt").read_text().splitlines()
    async with embedded_kubelet() as node:
        group = await node.serve(Recorded(GPU, gpus(), recording))
        await node.devices(GPU, 6)
        node.kubelet.sync_status()
        now = 0
        for line in lines:
            second, *rest = line.split()
            expected = dict(pair.split("=") for pair in rest)
            await node.clock.advance(int(second) - now)
            now = int(second)
            if 300 <= now < 311:
                continue
            status = node.kubelet.status
            registered = json.loads(node.paths.checkpoint.read_text())["Data"]["RegisteredDevices"]
            assert (
                str(status.capacity[GPU]),
                str(status.allocatable[GPU]),
                str(len(registered.get(GPU, []))),
            ) == (expected["cap"], expected["alloc"], expected["reg"]), line
            if now == 0:
                await node.kill(group)
                await node.devices(GPU, 0)
                node.kubelet.sync_status()


async def test_a_restart_deletes_sockets_and_replaces_kubelet_sock_and_a_stop_does_nothing(
    node: TestNode, recording: Checkpoint
) -> None:
    group = await node.serve(Recorded(GPU, gpus(), recording))
    await node.devices(GPU, 6)
    before = {path: path.stat().st_ino for path in node.paths.device_plugins.iterdir()}
    await node.kubelet.stop()
    await node.kill(group)
    assert node.paths.kubelet_socket.stat().st_ino == before[node.paths.kubelet_socket]
    left_by_others = node.paths.device_plugins / "cm.sock"
    left_by_others.hardlink_to(node.paths.kubelet_socket)
    await node.kubelet.start()
    assert not left_by_others.exists()
    status = node.kubelet.sync_status()
    assert (status.capacity, status.allocatable) == ({GPU: 0}, {GPU: 0})
