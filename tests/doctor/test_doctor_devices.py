"""The doctor on devices: the kubelet's checkpoint, what others record, and stale resources."""

from pathlib import Path

from tests.cluster.serving import connect
from tests.doctor.examining import NOWHERE, found, only, patient
from tests.support.plugins import FAN, Fans

from colocate.clock import ManualClock, SystemClock
from colocate.doctor.report import CheckVerdict
from colocate.kubelet import KubeletPaths
from colocate.kubelet.checkpoint import render
from colocate.lab.api.resources import NODES
from colocate.lab.api.server import ApiServer
from colocate.model.checkpoint import Checkpoint, Entry
from colocate.testing import TestNode


async def test_a_sound_checkpoint_that_all_agree_on_is_well(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    await node.run_pod({FAN: 1})
    results = await found(patient(node.paths.root), "checkpoint", "records")
    assert results["checkpoint"][0].reason.startswith("it is sound: 1 container with devices, checksum ")
    assert results["records"][0].verdict is CheckVerdict.GOOD
    assert NOWHERE in results["records"][0].reason


async def test_an_edited_checkpoint_is_bad_with_the_code_of_the_finding(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    await node.run_pod({FAN: 1})
    await node.kubelet.stop()
    blob = node.paths.checkpoint.read_bytes()
    node.paths.checkpoint.write_bytes(blob.replace(b"fan-0", b"fan-1"))
    results = (await found(patient(node.paths.root), "checkpoint"))["checkpoint"]
    assert max(result.verdict for result in results) is CheckVerdict.BAD
    assert any(result.reason.endswith("[checksum]") and result.remedy for result in results)
    await node.kubelet.start()


async def test_a_checkpoint_that_cannot_be_read_is_bad_and_none_at_all_is_not(tmp_path: Path) -> None:
    paths = KubeletPaths(tmp_path)
    paths.device_plugins.mkdir()
    assert (await only(patient(tmp_path), "checkpoint")).verdict is CheckVerdict.GOOD
    paths.checkpoint.write_bytes(b'{"Data":')
    assert (await only(patient(tmp_path), "checkpoint")).verdict is CheckVerdict.BAD


async def test_a_stale_resource_is_named_with_the_command_that_removes_it(
    server: ApiServer, tmp_path: Path
) -> None:
    counts = {"capacity": {FAN: "2", "cpu": "4"}, "allocatable": {FAN: "0", "cpu": "4"}}
    heartbeat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    status = {**counts, "conditions": [heartbeat]}
    server.registry.create(NODES, "", {"metadata": {"name": "worker"}, "status": status})
    clock = ManualClock()
    async with connect(server.url, SystemClock()) as client:
        result = await only(patient(tmp_path, client, clock), "extended resources")
    assert result.verdict is CheckVerdict.WARN
    assert result.remedy.endswith(f"colocate resource remove worker {FAN}")


async def test_of_many_findings_the_gravest_few_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    paths = KubeletPaths(tmp_path)
    paths.device_plugins.mkdir()
    entries = [Entry(f"pod-{n}", "main", FAN, {-1: (f"fan-{n}",)}, b"") for n in range(40)]
    twice = [*entries, Entry("other", "main", FAN, {-1: ("fan-0",)}, b"")]
    paths.checkpoint.write_bytes(render(Checkpoint(tuple(twice), {})))
    results = (await found(patient(tmp_path), "checkpoint"))["checkpoint"]
    assert len(results) <= 7
    assert "[held-twice]" in results[0].reason
    assert results[0].verdict is CheckVerdict.BAD


async def test_what_is_only_worth_knowing_is_no_complaint(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    pod = await node.run_pod({FAN: 1}, command=["true"], restartPolicy="Never")
    assert pod is not None
    checkpoint = node.paths.checkpoint.read_bytes()
    await node.delete_pod(pod)
    node.paths.checkpoint.write_bytes(checkpoint)  # Entries of dead pods linger.
    [result] = (await found(patient(node.paths.root), "records"))["records"]
    assert result.verdict is CheckVerdict.GOOD
    assert "worth knowing" in result.reason
