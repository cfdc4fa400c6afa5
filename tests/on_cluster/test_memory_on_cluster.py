"""The quick start of colocation memory as kubectl sees it: a real agent on a node that is this machine."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.on_cluster.conftest import Cluster

pytestmark = pytest.mark.needs("kubectl")

RESOURCE = "test.com/colocation-memory"
THREE_BLOCKS = 1_610_612_736

CONFIG = """\
version: 1
kubelet: {{root: {root}, onStop: withdraw}}
control: {{socket: {root}/memory-agent.sock}}
memory:
  enabled: true
  resource: {resource}
  namespaces: [{namespace}]
  refresh: 1s
  stateFolder: {state}
  node: {node}
  kubeconfig: {kubeconfig}
"""

CANNOT_SEE = 3
# The first thing that the process does: say which limit its pod has, and which ids it was given. On v1 a container's
# own group tells the lowest limit above it; on v2 that is told by the pod's group alone.
SCRIPT = f"""
own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
if [ -n "$own" ]; then
  file=/sys/fs/cgroup/memory$own/memory.stat
  [ -e $file ] || file=/sys/fs/cgroup/memory/memory.stat
  limit=$(sed -n 's/^hierarchical_memory_limit //p' $file)
else
  own=$(sed -n 's/^0:://p' /proc/self/cgroup)
  [ "$own" = / ] && exit {CANNOT_SEE}
  limit=$(cat "/sys/fs/cgroup$(dirname "$own")/memory.max")
fi
ids=$(tr '\\0' '\\n' < /proc/$$/environ | sed -n 's|^{RESOURCE}=||p' | tr , '\\n' | wc -l)
test "$limit" = {THREE_BLOCKS} && test "$ids" = 3 && test "$COLOCATION_MEMORY_BYTES" = {THREE_BLOCKS}
"""


@pytest.fixture
async def node(cluster: Cluster, tmp_path: Path) -> AsyncIterator[str]:
    """The node that is this machine, with an agent of this test on it."""
    name = await cluster.own_node()
    config = tmp_path / "agent.yaml"
    config.write_text(
        CONFIG.format(
            root=cluster.kubelet_root,
            resource=RESOURCE,
            namespace=cluster.namespace,
            state=tmp_path / "state",
            node=name,
            kubeconfig=cluster.kubeconfig,
        )
    )
    log = tmp_path / "agent.log"
    with log.open("wb") as errors:
        agent = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "colocate.cli.main", "agent", "--config", str(config)],
            env={key: value for key, value in os.environ.items() if not key.startswith("COLOCATE_")},
            stderr=errors,
        )
    try:
        yield name
    finally:
        if agent.returncode is None:
            agent.terminate()
        assert await agent.wait() == 0, log.read_text()


async def test_the_node_shows_blocks_and_a_pod_with_three_is_held_from_its_start(
    cluster: Cluster, node: str
) -> None:
    for _ in range(600):
        shown = (await cluster.get("node", node))["status"]["allocatable"].get(RESOURCE, "0")
        if int(shown) >= 3:
            break
        await asyncio.sleep(0.1)
    else:
        pytest.skip(f"needs three idle blocks of 512 MiB; this machine has {shown}")
    described = await cluster.kubectl("describe", "node", node)
    assert f"{RESOURCE}:" in described
    limits = {"limits": {RESOURCE: "3"}, "requests": {RESOURCE: "3"}}
    pod = cluster.pod("test-pod", SCRIPT, resources=limits, nodeName=node, restartPolicy="Never")
    await cluster.apply(pod)
    # Its process ends well where it found what it should.
    status = await cluster.ended("test-pod")
    if status["containerStatuses"][0]["state"].get("terminated", {}).get("exitCode") == CANNOT_SEE:
        pytest.skip("needs nodes that let a container see its pod's control group")
    ended = status["containerStatuses"][0]["state"]
    assert status["phase"] == "Succeeded", f"{ended}\n{await cluster.kubectl('get', 'events')}"
