"""An extended resource that will not go away, and the command that sees it off: the whole story on any cluster.

On a real one the kubelet keeps the devices of a killed plugin for five minutes, and so long it takes.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.on_cluster.conftest import Cluster

pytestmark = [pytest.mark.needs("kubectl"), pytest.mark.timeout(1200)]

COMMAND = [sys.executable, "-m", "colocate.cli.main"]
CONFIG = """\
version: 1
kubelet: {{root: {root}}}
control: {{socket: {root}/resource-test.sock}}
mock:
  resources: [{{name: {resource}, count: 3}}]
"""


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("COLOCATE_")} | more


@asynccontextmanager
async def agent(cluster: Cluster, resource: str, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """An agent that serves mock devices and is killed at the end, if not before."""
    config = folder / "agent.yaml"
    config.write_text(CONFIG.format(root=cluster.kubelet_root, resource=resource))
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "agent", "--config", str(config), env=environment(), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def resource_command(cluster: Cluster, *words: str) -> tuple[int, str]:
    """The exit code and all that `colocate resource` prints."""
    # This machine may have a kubelet of its own, which is none of the embedded cluster's.
    elsewhere = {"COLOCATE_KUBELET_ROOT": f"{cluster.kubelet_root}/none"} if cluster.is_lab else {}
    process = await asyncio.create_subprocess_exec(
        *[*COMMAND, "resource", *words],
        env=environment(KUBECONFIG=cluster.kubeconfig, **elsewhere),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 900)
    assert process.returncode is not None
    return process.returncode, out.decode()


async def listed(cluster: Cluster, resource: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The resource as `resource list` shows it, once that is as it should be."""
    for _ in range(60):
        code, out = await resource_command(cluster, "list", "-o", "json")
        assert code == 0, out
        found: list[dict[str, Any]] = [one for one in json.loads(out) if one["name"] == resource]
        if found and holds(found[0]):
            return found[0]
        await asyncio.sleep(0.5)
    pytest.fail(f"{resource} is {found}")


async def test_the_resource_of_a_killed_plugin_is_stale_comes_back_too_early_and_goes_for_good(
    cluster: Cluster, tmp_path: Path
) -> None:
    if not cluster.kubelet_root:
        pytest.skip("needs a node that is this machine: name its kubelet's folder in COLOCATE_KUBELET_ROOT")
    resource = f"colocate.test/{cluster.namespace}"
    async with agent(cluster, resource, tmp_path) as process:
        alive = await listed(cluster, resource, lambda one: one["allocatable"] == 3)
        assert alive["state"] == "alive"
        node = alive["node"]
        code, out = await resource_command(cluster, "remove", node, resource, "--yes")
        assert (code, "a running plugin" in out) == (1, True), out
        process.kill()
    stale = await listed(cluster, resource, lambda one: one["allocatable"] == 0)
    assert (stale["state"], stale["capacity"]) == ("stale", 3)
    assert 0 < stale["remaining"] <= 300
    code, out = await resource_command(cluster, "remove", node, resource, "--now", "--yes")
    assert code == 1, out
    assert "will put it back" in out
    assert "it is back, with capacity 3" in out
    later = await listed(cluster, resource, lambda one: True)
    assert later["state"] == "stale"
    code, out = await resource_command(cluster, "remove", node, resource, "--yes")
    assert code == 0, out
    assert "until the kubelet forgets" in out
    assert "is gone from node" in out
    status = (await cluster.get("node", node))["status"]
    assert resource not in status["capacity"]
    assert resource not in status["allocatable"]


async def test_a_resource_advertised_by_hand_can_be_held_and_is_removed_once_nobody_does(
    cluster: Cluster,
) -> None:
    node = await cluster.usable_node()
    resource = f"colocate.test/hand-{cluster.namespace}"
    code, out = await resource_command(cluster, "advertise", node, f"{resource}=2", "--yes")
    assert code == 0, out
    by_hand = await listed(cluster, resource, lambda one: one["allocatable"] == 2)
    assert by_hand["state"] == "hand-patched"
    # Where the node is this machine, its checkpoint says more than the API does.
    assert "colocate wrote" in by_hand["reason"] or "checkpoint does not know it" in by_hand["reason"], (
        by_hand
    )
    await cluster.apply(cluster.pod("holder", "sleep 1000", resources={"limits": {resource: "2"}}))
    await cluster.wait("pod/holder", "condition=Ready")
    code, out = await resource_command(cluster, "remove", node, resource, "--yes")
    assert (code, f"held by {cluster.namespace}/holder (2)" in out) == (1, True), out
    await cluster.kubectl("delete", "pod", "holder")
    code, out = await resource_command(cluster, "remove", node, resource, "--yes")
    assert code == 0, out
    assert resource not in (await cluster.get("node", node))["status"]["capacity"]
