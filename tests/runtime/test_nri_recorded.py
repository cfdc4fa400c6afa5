"""Each recorded request of a real runtime gets a valid answer on its connection and stream."""

import asyncio
from pathlib import Path

from tests.runtime.nri_pairs import NriPair
from tests.support.nri_runtime import PluginConnection, recorded

from colocate.model.container import (
    ContainerPhase,
    CpuPin,
    RuntimeContainer,
    RuntimeResources,
    RuntimeSandbox,
)
from colocate.model.cpuset import CpuSet
from colocate.runtime import nri_messages as facts
from colocate.runtime.events import Placing
from colocate.runtime.nri_session import EVENT_MASK
from colocate.wire import nri_pb2 as nri
from colocate.wire import ttrpc_pb2 as ttrpc

SANDBOX = "16d4afb71a7de4f5dae6feab3de3da1b4af72da3c7cc589e08099bd49706f48f"
CONTAINER = "d8f5bebed9e2c9aa61a7489ec3b910581f8cdb352b857583ce6b2afe23d52403"
OTHER = CpuPin(container_id="other", cpus=CpuSet.parse("4-7"), mems=(1,))


async def replay(plugin: PluginConnection, folder: Path, name: str) -> dict[int, ttrpc.Response]:
    """Send every recorded request to the plugin, on its stream; the answers by stream."""
    stream, request = await plugin.called("RegisterPlugin")
    registration = nri.RegisterPluginRequest.FromString(request.payload)
    assert (registration.plugin_name, registration.plugin_idx) == ("colocate", "90")
    answers = {}
    for frame in recorded(folder, name):
        if frame.from_runtime and frame.conn == 2 and frame.stream == 1:
            plugin.answer(stream)
        elif frame.from_runtime and frame.conn == 1:
            answers[frame.stream] = await plugin.ask_on(frame.stream, frame.raw)
    return answers


async def test_the_life_of_a_container(pair: NriPair, recordings: Path) -> None:
    pair.events.placing = Placing(CpuPin(cpus=CpuSet.parse("0"), mems=(0,)), (OTHER,))
    plugin = await pair.runtime.connection()
    answers = await replay(plugin, recordings, "lifecycle")
    assert not any(answer.HasField("status") for answer in answers.values())

    assert nri.ConfigureResponse.FromString(answers[1].payload).events == EVENT_MASK
    assert answers[3].payload == b""

    ours = nri.CreateContainerResponse.FromString(answers[7].payload)
    theirs = next(
        ttrpc.Response.FromString(frame.body)
        for frame in recorded(recordings, "lifecycle")
        if frame.what == "CreateContainer response"
    )
    assert ours.adjust == nri.CreateContainerResponse.FromString(theirs.payload).adjust
    assert [(each.container_id, each.linux.resources.cpu.cpus) for each in ours.update] == [("other", "4-7")]
    # The other requests tell something, and are answered with nothing.
    assert {stream: answer.payload for stream, answer in answers.items() if stream > 7} == dict.fromkeys(
        range(9, 21, 2), b""
    )

    heard = {str(event[0]): event[1:] for event in pair.events.heard}
    assert heard["synchronize"] == (0, 0)
    assert heard["create"] == (
        RuntimeSandbox(
            id=SANDBOX,
            uid="dfba0600-706b-45f1-8fbf-35346d0e98f1",
            namespace="default",
            name="nri-a",
            cgroup_parent="/kubepods/poddfba0600-706b-45f1-8fbf-35346d0e98f1",
            annotations={"colocate.dev/cpus": "exclusive"},
        ),
        RuntimeContainer(
            id=CONTAINER,
            sandbox_id=SANDBOX,
            name="a",
            phase=ContainerPhase.CREATED,
            resources=RuntimeResources(
                cpu_shares=512, cpu_quota=50000, cpu_period=100000, memory_limit=67108864
            ),
            cgroup_path=f"/kubepods/poddfba0600-706b-45f1-8fbf-35346d0e98f1/{CONTAINER}",
        ),
    )
    assert [event for event in pair.events.heard if event[0] not in ("synchronize", "create")] == [
        ("started", CONTAINER),
        ("stopped", CONTAINER),
        ("sandbox_stopped", SANDBOX),
        ("removed", CONTAINER),
    ]


async def test_what_runs_already_and_a_resize(pair: NriPair, recordings: Path) -> None:
    pair.events.corrections = [OTHER]
    pair.events.placing = Placing(CpuPin(cpus=CpuSet.parse("0-1")), (OTHER,))
    plugin = await pair.runtime.connection()
    answers = await replay(plugin, recordings, "synchronize-and-resize")

    synchronized = nri.SynchronizeResponse.FromString(answers[3].payload)
    assert [each.container_id for each in synchronized.update] == ["other"]
    assert not synchronized.more
    ready = {sandbox.id[:6]: sandbox.ready for sandbox in pair.events.sandboxes}
    assert ready == {"0b9b5d": True, "16d4af": False}, "the sandbox that has ended has no process"
    [running] = pair.events.containers
    assert (running.name, running.phase, running.pid) == ("a", ContainerPhase.RUNNING, 20730)

    resized = nri.UpdateContainerResponse.FromString(answers[7].payload)
    pins = [(each.container_id, each.linux.resources.cpu.cpus) for each in resized.update]
    assert pins == [("other", "4-7"), (running.id, "0-1")]
    update = next(event for event in pair.events.heard if event[0] == "update")
    assert update[1:] == (
        running.id,
        RuntimeResources(cpu_shares=819, cpu_quota=80000, cpu_period=100000, memory_limit=67108864),
    )


async def test_updates_of_the_plugin_are_as_the_recorded_ones(pair: NriPair, recordings: Path) -> None:
    plugin = await pair.runtime.connection()
    await plugin.introduce()
    await plugin.ask("Synchronize", nri.SynchronizeRequest())
    frame = next(one for one in recorded(recordings, "lifecycle") if one.what == "UpdateContainers request")
    theirs = nri.UpdateContainersRequest.FromString(frame.request.payload)
    assert pair.events.writer is not None
    cpu = theirs.update[0].linux.resources.cpu
    pin = CpuPin(
        container_id=theirs.update[0].container_id,
        cpus=CpuSet.parse(cpu.cpus),
        mems=tuple(CpuSet.parse(cpu.mems)),
    )
    writing = asyncio.create_task(pair.events.writer.write([pin]))
    stream, request = await plugin.called("UpdateContainers")
    assert nri.UpdateContainersRequest.FromString(request.payload) == theirs
    plugin.answer(stream)
    assert await writing == []


def test_only_what_is_needed_is_subscribed_to() -> None:
    """Each event costs the runtime a round trip for every container of the node."""
    assert {number for number in range(1, 32) if EVENT_MASK >> number - 1 & 1} == {
        nri.STOP_POD_SANDBOX,
        nri.REMOVE_POD_SANDBOX,
        nri.CREATE_CONTAINER,
        nri.POST_START_CONTAINER,
        nri.UPDATE_CONTAINER,
        nri.STOP_CONTAINER,
        nri.REMOVE_CONTAINER,
    }


def test_what_a_pod_writes_of_itself_is_not_even_read() -> None:
    """Environment, arguments and labels of a container, labels and foreign annotations of its pod."""
    container = nri.Container(id="c", pod_sandbox_id="s", name="main")
    said = b"cpuset=0-7"
    forged = b"".join(bytes([number << 3 | 2, len(said)]) + said for number in (7, 8))
    label = b"\x0a\x03cpu\x12\x030-7"
    forged += bytes([5 << 3 | 2, len(label)]) + label
    whole = nri.Container.FromString(container.SerializeToString() + forged)
    assert facts.container(whole) == facts.container(container)
    pod = nri.PodSandbox(id="s", uid="u")
    liar = nri.PodSandbox.FromString(pod.SerializeToString() + bytes([5 << 3 | 2, len(label)]) + label)
    liar.annotations["cpuset"] = "0-7"
    liar.annotations["colocate.dev.example.com/cpus"] = "exclusive"
    assert facts.sandbox(liar) == facts.sandbox(pod)
    for number in range(1000):
        liar.annotations[f"colocate.dev/cpus.{number}"] = "x" * 10_000
    kept = facts.sandbox(liar).annotations
    assert (len(kept), max(map(len, kept.values()))) == (256, 1024)
