"""The doctor on GPUs: the message to the kubelet before it is too long, health, and records that do not agree."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.cluster.serving import connect
from tests.doctor.examining import found, only, patient
from tests.support.fake_nvml import GIB, FakeGpu, NvmlLibrary, installed

from colocate.clock import SystemClock
from colocate.doctor.report import CheckVerdict
from colocate.gpus import (
    ANNOUNCED,
    ContainerBooking,
    GpuBook,
    GpuHealth,
    HealthSettings,
    PodBooking,
    announcement_of,
    dialect,
)
from colocate.gpus.agent.control import GPU_REPORT, AskGpuReport
from colocate.gpus.agent.monitor import KnownGpu
from colocate.gpus.agent.report import GpuReport, gpu_report
from colocate.host.gpu_source import GpuReading
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.api.server import ApiServer
from colocate.model.gpu import Gpu, GpuInventory
from colocate.wire import control_socket as control
from colocate.wire import rpc


def known(number: int, trouble: str = "", *, gib: int = 80, mig: bool = False) -> KnownGpu:
    reading = GpuReading(uuid=f"GPU-{number}abc", index=number, memory=gib * GIB, numa=1, mig=mig)
    return KnownGpu(reading, GpuHealth(trouble, 0.0) if trouble else GpuHealth())


def reported(*gpus: KnownGpu, unit: int = 5, pods: tuple[PodBooking, ...] = ()) -> GpuReport:
    book = GpuBook.of_gpus(GpuInventory(tuple(gpu.fact for gpu in gpus)), pods)
    return gpu_report(
        "worker",
        0.0,
        {gpu.uuid: gpu for gpu in gpus},
        book,
        [dialect("doslab", unit)],
        health=HealthSettings(),
        now=1.0,
        used={},
        mock=True,
    )


@asynccontextmanager
async def agent(root: Path, said: GpuReport) -> AsyncIterator[None]:
    """An agent that says this of its GPUs."""

    def answer(_: AskGpuReport) -> GpuReport:
        return said

    async with control.serving(root / "agent.sock", rpc.Service({GPU_REPORT: control.answering(answer)})):
        yield


async def test_a_message_that_is_nearly_full_is_a_warning_before_it_is_too_long(tmp_path: Path) -> None:
    async with agent(tmp_path, reported(*(known(number) for number in range(8)))):
        first, dear, *others = (await found(patient(tmp_path), "gpus"))["gpus"]
    assert first.verdict is CheckVerdict.WARN
    assert first.reason == (
        "doslab.io/gpu-memory: 131072 devices of 5 MiB take 90% of the largest message that a kubelet accepts"
    )
    assert "unit above 5Mi" in first.remedy
    assert dear.verdict is CheckVerdict.WARN
    assert "looks 131072 devices up among up to 131072 ids: for up to 2233 s no pod starts" in dear.reason
    assert {result.verdict for result in others} == {CheckVerdict.GOOD}


async def test_gpus_that_are_not_well_are_named(tmp_path: Path) -> None:
    gone = PodBooking(
        uid="u", key="team/train", containers=(ContainerBooking(container="c", gpus=("GPU-old",), memory=1),)
    )
    said = reported(known(0), known(1, "XID 79"), known(2, mig=True), pods=(gone,), unit=1024)
    async with agent(tmp_path, said):
        results = (await found(patient(tmp_path), "gpus"))["gpus"]
    assert "from 1.36 on looks 160 devices up among up to 160 ids: not to be noticed" in results[1].reason
    assert [(result.verdict, result.reason) for result in results[2:]] == [
        (CheckVerdict.GOOD, "GPU GPU-0abc is healthy"),
        (CheckVerdict.WARN, "GPU GPU-1abc is unhealthy: XID 79"),
        (CheckVerdict.ABSENT, "GPU GPU-2abc is in MIG mode and not shared"),
        (CheckVerdict.WARN, "GPU GPU-old is gone, and team/train still has it"),
    ]


async def test_without_agent_and_driver_there_is_nothing_to_say(tmp_path: Path) -> None:
    result = await only(patient(tmp_path), "gpus")
    assert result.verdict is CheckVerdict.ABSENT


@pytest.mark.parametrize(("gpus", "unit"), [(1, None), (40, 512)])
async def test_without_an_agent_the_driver_is_asked_which_unit_fits(
    tmp_path: Path, gpus: int, unit: int | None
) -> None:
    """An agent that refuses to start for it says nothing any more."""
    library = NvmlLibrary(*(FakeGpu(number * 0x1111111, 80 * GIB) for number in range(1, gpus + 1)))
    with installed(library):
        results = (await found(patient(tmp_path), "gpus"))["gpus"]
    warnings = [result.remedy for result in results if result.verdict is CheckVerdict.WARN]
    assert warnings == (
        []
        if unit is None
        else [f"set the unit of gpus.dialects to {unit}Mi or more, on every node of the cluster"]
    )
    assert library.initialised == 0


def node(server: ApiServer, name: str, gpus: int, unit: int) -> None:
    """A node whose agent announces so many GPUs of 80 GiB and serves them in this unit."""
    inventory = GpuInventory(
        tuple(Gpu(uuid=f"GPU-{number}abc", index=number, memory=81920, numa=1) for number in range(gpus))
    )
    server.registry.create(
        NODES,
        "",
        {
            "metadata": {"name": name, "annotations": {ANNOUNCED: announcement_of(inventory)}},
            "status": {"capacity": {"doslab.io/gpu-memory": str(gpus * (81920 // unit))}},
        },
    )


async def test_every_node_is_warned_of_before_its_message_is_too_long(
    server: ApiServer, tmp_path: Path
) -> None:
    node(server, "small", 1, 5)
    node(server, "large", 8, 5)
    async with connect(server.url, SystemClock()) as client:
        results = (await found(patient(tmp_path, client), "gpu units"))["gpu units"]
    [first] = [result for result in results if "largest message" in result.reason]
    last = results[-1]
    assert first.verdict is CheckVerdict.WARN
    assert first.reason.startswith("node large: doslab.io/gpu-memory in units of 5 MiB takes 90%")
    assert last.reason == "2 nodes with GPUs, one unit for each resource"


async def test_several_units_in_a_cluster_are_a_warning(server: ApiServer, tmp_path: Path) -> None:
    node(server, "one", 1, 512)
    node(server, "two", 1, 1024)
    async with connect(server.url, SystemClock()) as client:
        result = await only(patient(tmp_path, client), "gpu units")
    assert result.reason == (
        "doslab.io/gpu-memory has several units in this cluster: 512 MiB on one; 1 GiB on two"
    )


async def test_an_announcement_that_is_nonsense_harms_nobody(server: ApiServer, tmp_path: Path) -> None:
    server.registry.create(NODES, "", {"metadata": {"name": "odd", "annotations": {ANNOUNCED: "{"}}})
    async with connect(server.url, SystemClock()) as client:
        first, last = (await found(patient(tmp_path, client), "gpu units"))["gpu units"]
    assert first.verdict is CheckVerdict.WARN
    assert last.verdict is CheckVerdict.ABSENT


async def test_a_pod_that_helps_itself_to_gpus_is_a_warning(server: ApiServer, tmp_path: Path) -> None:
    node(server, "worker", 1, 1)
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod = {
        "metadata": {"name": "thief"},
        "spec": {"nodeName": "worker", "containers": [{"name": "main", "image": "x", "env": env}]},
    }
    server.registry.create(PODS, "default", pod)
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    (folder / "kubelet_internal_checkpoint").write_text(
        '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":0}'
    )
    async with connect(server.url, SystemClock()) as client:
        result = await only(patient(tmp_path, client), "gpu records")
    assert result.verdict is CheckVerdict.WARN
    assert "default/thief: the env of container main sets NVIDIA_VISIBLE_DEVICES" in result.reason
    assert "[gpu-overridden]" in result.reason


async def test_a_unit_that_a_kubelet_cannot_bear_is_a_warning(server: ApiServer, tmp_path: Path) -> None:
    node(server, "worker", 8, 16)
    async with connect(server.url, SystemClock()) as client:
        first, _ = (await found(patient(tmp_path, client), "gpu units"))["gpu units"]
    assert first.verdict is CheckVerdict.WARN
    assert first.reason == (
        "node worker: 40960 devices of GPU memory keep its kubelet busy for up to 218 s at every restart, while no "
        "pod starts"
    )


async def test_pods_that_wait_are_told_what_to_write(server: ApiServer, tmp_path: Path) -> None:
    def waiting(name: str, **limits: str) -> None:
        container = {"name": "main", "image": "x", "resources": {"limits": limits}}
        body = {"metadata": {"name": name}, "spec": {"containers": [container]}}
        server.registry.create(PODS, "default", body)

    waiting("bytes", **{"doslab.io/gpu-memory": "4Gi"})
    waiting("counted", **{"doslab.io/gpu-memory": "40", "doslab.io/gpu-count": "2"})
    waiting("fine", **{"colocate.dev/gpu-memory": "4"})
    waiting("other", cpu="1")
    async with connect(server.url, SystemClock()) as client:
        first, second = (await found(patient(tmp_path, client), "gpu requests"))["gpu requests"]
    assert "default/bytes waits: container main asks for 4Gi of doslab.io/gpu-memory" in first.reason
    assert "4Gi is 4294967296 units of 1 MiB; write 4096" in first.reason
    assert "default/counted waits: it asks for 2 of doslab.io/gpu-count in its limits" in second.reason


async def test_records_are_compared_for_the_node_that_the_agent_is_on(
    server: ApiServer, tmp_path: Path
) -> None:
    """Without NODE_NAME, the machine's own name is not that of the node: nothing would be found there."""
    node(server, "worker", 1, 1)
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    container = {"name": "main", "image": "x", "env": env}
    pod = {"metadata": {"name": "thief"}, "spec": {"nodeName": "worker", "containers": [container]}}
    server.registry.create(PODS, "default", pod)
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    (folder / "kubelet_internal_checkpoint").write_text(
        '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":0}'
    )
    async with connect(server.url, SystemClock()) as client, agent(tmp_path, reported(known(0))):
        someone = msgspec.structs.replace(patient(tmp_path, client), node="some-host")
        result = await only(someone, "gpu records")
    assert "default/thief" in result.reason


BY_ENV = "accept-nvidia-visible-devices-envvar-when-unprivileged"
BY_MOUNT = "accept-nvidia-visible-devices-as-volume-mounts"


@pytest.mark.parametrize(
    "text",
    ["", f"{BY_ENV} = true\n", f'{BY_ENV} = "false"\n', f"[nvidia-container-cli]\n{BY_ENV} = false\n"],
)
async def test_a_runtime_that_obeys_the_environment_of_any_container_is_told(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "nvidia.toml").write_text(text)
    result = await only(patient(tmp_path), "gpu runtime")
    assert result.verdict is CheckVerdict.WARN
    assert f"does not set {BY_ENV} = false" in result.reason
    assert "own-env-policy.yaml" in result.remedy


async def test_one_that_is_closed_is_good_and_what_mounts_open_is_said(tmp_path: Path) -> None:
    file = tmp_path / "nvidia.toml"
    file.write_text(f"{BY_ENV} = false\n")
    assert (await only(patient(tmp_path), "gpu runtime")).verdict is CheckVerdict.GOOD
    file.write_text(f"{BY_ENV} = false\n{BY_MOUNT} = true\n")
    results = (await found(patient(tmp_path), "gpu runtime"))["gpu runtime"]
    assert [each.verdict for each in results] == [CheckVerdict.GOOD] * 2
    assert "forbid hostPath for tenants" in results[1].reason


async def test_a_runtime_that_is_not_there_is_absent_and_one_that_cannot_be_read_is_told(
    tmp_path: Path,
) -> None:
    assert (await only(patient(tmp_path), "gpu runtime")).verdict is CheckVerdict.ABSENT
    (tmp_path / "nvidia.toml").write_bytes(b"\xff = [")
    assert "cannot be read" in (await only(patient(tmp_path), "gpu runtime")).reason
