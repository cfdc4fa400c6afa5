"""Pods on the CPUs that `colocate cpus explain` says, through whichever way the runtime of this machine has.

Where a placer runs on the node already it is the one that is asked; else `colocate nri` is started here. A proxy
cannot be: it needs a kubelet that is told of it.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from colocate.model.cpuset import CpuSet
from colocate.wire.rpc import is_served
from tests.on_cluster.conftest import Cluster
from tests.support.waiting import until

pytestmark = pytest.mark.needs("kubectl")

PLACER = Path(os.environ.get("COLOCATE_TEST_CPUS_SOCKET", "/run/colocate/cpus.sock"))
NRI = Path(os.environ.get("COLOCATE_TEST_NRI_SOCKET", "/var/run/nri/nri.sock"))
COMMAND = [sys.executable, "-m", "colocate.cli.main"]
RESIZE = '{"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "200m"}}}]}}'


class PlacedNode:
    """A node that is this machine, and whoever places its containers."""

    def __init__(self, cluster: Cluster, name: str, socket: Path) -> None:
        self._cluster = cluster
        self._name = name
        self._socket = socket

    async def run(self, pod: str, cpu: str, *, alone: bool = False, wish: str = "") -> None:
        """A pod of one container; a guaranteed one where it is to be alone."""
        requests = {"cpu": cpu, "memory": "16Mi"}
        resources = {"requests": requests, **({"limits": requests} if alone else {})}
        made = self._cluster.pod(pod, "sleep 3600", resources=resources, nodeName=self._name)
        made["metadata"]["annotations"] = {"colocate.dev/cpus": wish} if wish else {}
        await self._cluster.apply(made)
        await self._cluster.wait(f"pod/{pod}", "condition=Ready")

    async def said(self, pod: str) -> dict[str, Any]:
        """What `explain` says of a pod's container."""
        status = (await self._cluster.get("pod", pod))["status"]["containerStatuses"][0]
        own = status["containerID"].rpartition("/")[2]
        words = ["cpus", "explain", own, "--socket", str(self._socket), "-o", "json"]
        process = await asyncio.create_subprocess_exec(*COMMAND, *words, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0
        container: dict[str, Any] = json.loads(out)["container"]
        return container

    async def cpus(self, pod: str) -> CpuSet:
        """The CPUs that a pod really has, once they are what `explain` says."""
        for _ in range(240):
            said = CpuSet.parse((await self.said(pod))["cpus"])
            status = await self._cluster.kubectl("exec", pod, "--", "cat", "/proc/self/status")
            listed = next(line for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
            actual = CpuSet.parse(listed.split()[1])
            if actual == said:
                return actual
            await asyncio.sleep(0.25)
        raise AssertionError(f"{pod} has {actual}, and explain says {said}")


@pytest.fixture
async def node(cluster: Cluster, tmp_path: Path) -> AsyncIterator[PlacedNode]:
    if cluster.is_lab:
        pytest.skip("needs a real kubelet and its container runtime: name a cluster in COLOCATE_KUBECONFIG")
    name = await cluster.own_node()
    if is_served(PLACER):
        yield PlacedNode(cluster, name, PLACER)
        return
    if not is_served(NRI):
        pytest.skip(f"needs a placer on {PLACER}, or a runtime whose NRI socket is {NRI}")
    socket = tmp_path / "cpus.sock"
    config = tmp_path / "colocate.yaml"
    config.write_text(
        f"version: 1\ncpus:\n  stateFolder: {tmp_path}/state\n  socket: {socket}\n"
        f"  wishNamespaces: [{cluster.namespace}]\n  nri: {{socket: {NRI}}}\n"
    )
    log = tmp_path / "nri.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "nri", "--config", str(config), stderr=errors
        )
    try:
        await until(lambda: "nri.synchronized" in log.read_text(), f"the runtime: {log.read_text()}")
        yield PlacedNode(cluster, name, socket)
        off = await asyncio.create_subprocess_exec(*COMMAND, "cpus", "off", "--socket", str(socket))
        assert await off.wait() == 0, "every container has its CPUs back"
    finally:
        if process.returncode is None:
            process.terminate()
        assert await process.wait() == 0, log.read_text()


async def test_pods_run_on_the_cpus_that_explain_says_and_a_resize_keeps_working(
    cluster: Cluster, node: PlacedNode
) -> None:
    await node.run("shared", "100m")
    shared = await node.cpus("shared")
    assert shared
    await node.run("alone", "1", alone=True)
    alone = await node.cpus("alone")
    assert len(alone) == 1
    assert alone.isdisjoint(await node.cpus("shared"))
    await node.run("strict", "1", alone=True, wish="strict")
    strict = await node.cpus("strict")
    assert (len(strict), strict.isdisjoint(alone)) == (1, True)

    if "resize" not in await cluster.kubectl("get", "--raw", "/api/v1"):
        pytest.skip("needs a Kubernetes that resizes pods in place, 1.33 or newer")
    await cluster.kubectl("patch", "pod", "shared", "--subresource", "resize", "--patch", RESIZE)
    async with asyncio.timeout(120):
        while (await node.said("shared"))["cpu"] != 200:  # noqa: ASYNC110 -- the kubelet does it when it likes
            await asyncio.sleep(0.25)
    assert (await node.cpus("shared")).isdisjoint(alone | strict)
