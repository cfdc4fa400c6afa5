"""Mock devices as kubectl sees them: a real agent on a node that is this machine."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.on_cluster.conftest import Cluster

pytestmark = pytest.mark.needs("kubectl")

CONFIG = """\
version: 1
kubelet: {{root: {root}, onStop: withdraw}}
control: {{socket: {folder}/agent.sock}}
mock:
  resources: [{{name: {resource}, count: 4}}]
"""


@pytest.fixture
async def resource(cluster: Cluster, tmp_path: Path) -> AsyncIterator[str]:
    """The name of a mock resource that an agent of this test serves."""
    if not cluster.kubelet_root:
        pytest.skip("needs a node that is this machine: name its kubelet's folder in COLOCATE_KUBELET_ROOT")
    name = f"colocate.test/{cluster.namespace}"
    config = tmp_path / "agent.yaml"
    config.write_text(CONFIG.format(root=cluster.kubelet_root, folder=cluster.kubelet_root, resource=name))
    agent = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "colocate.cli.main", "agent", "--config", str(config)],
        env={name: value for name, value in os.environ.items() if not name.startswith("COLOCATE_")},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield name
    finally:
        agent.terminate()
        assert await agent.wait() == 0


async def test_a_node_shows_mock_devices_and_a_pod_gets_them(cluster: Cluster, resource: str) -> None:
    for _ in range(600):
        shown = [node for node in await cluster.nodes() if node["status"]["allocatable"].get(resource) == "4"]
        if shown:
            break
        await asyncio.sleep(0.1)
    name = shown[0]["metadata"]["name"]
    limits = {"limits": {resource: "2"}}
    variable = resource.upper().replace(".", "_").replace("/", "_").replace("-", "_")
    script = f'test "$(echo ${variable} | tr , \\\\n | wc -l)" = 2 && sleep 1000'
    await cluster.apply(cluster.pod("holder", script, resources=limits))
    await cluster.wait("pod/holder", "condition=Ready")
    assert (await cluster.get("pod", "holder"))["spec"]["nodeName"] == name
    described = await cluster.kubectl("describe", "node", name)
    lines = [line.split() for line in described.splitlines() if line.split()[:1] == [f"{resource}:"]]
    assert lines == [[f"{resource}:", "4"], [f"{resource}:", "4"]], "Capacity and Allocatable"
    assert [line.split() for line in described.splitlines() if line.split()[:1] == [resource]] == [
        [resource, "2", "2"]
    ], "Allocated"
    await cluster.apply(cluster.pod("greedy", "true", resources={"limits": {resource: "3"}}))
    for _ in range(300):
        events = [
            one["message"]
            for one in (await cluster.get("events"))["items"]
            if one["reason"] == "FailedScheduling"
        ]
        if events:
            break
        await asyncio.sleep(0.1)
    assert f"Insufficient {resource}" in events[0]
    assert (await cluster.get("pod", "greedy"))["status"]["phase"] == "Pending"
    await cluster.kubectl("delete", "pod", "holder")
    await cluster.wait("pod/greedy", "condition=PodScheduled")
