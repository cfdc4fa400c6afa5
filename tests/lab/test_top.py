"""A real kubectl asks the embedded cluster how busy its nodes and pods are."""

import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.lab_api.kubectl import Kubectl
from tests.lab_api.samples import bare, pod
from tests.support import components
from tests.support.waiting import until

from colocate.clock import ManualClock
from colocate.lab.api.metrics import RESOLUTION
from colocate.lab.api.resources import PODS
from colocate.lab.cluster import MACHINE, LabCluster
from colocate.lab.nodes.shape import LabNodeShape
from colocate.lab.pod_runtime import ProcessRuntime

pytestmark = pytest.mark.needs("kubectl")
Rows = list[list[str]]


class Lab:
    """A cluster of this machine and two simulated nodes, whose clock the test moves."""

    def __init__(self, cluster: LabCluster, clock: ManualClock, kubectl: Kubectl) -> None:
        self.cluster = cluster
        self.clock = clock
        self.kubectl = kubectl

    async def run(self, name: str, node: str, namespace: str = "default") -> None:
        self.cluster.registry.create(PODS, namespace, bare(pod(name, nodeName=node)))

        def phase() -> object:
            return self.cluster.registry.get(PODS, namespace, name).body["status"].get("phase")

        await until(lambda: phase() == "Running", f"{name} to run")

    async def measured(self) -> None:
        """Twice, so that there is something to tell."""
        for _ in range(2):
            await self.clock.advance(RESOLUTION)
            await self.cluster.meter.measure()

    async def top(self, *words: str) -> Rows:
        return [line.split() for line in (await self.kubectl("top", *words)).splitlines()]


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    # Not below pytest's tmp_path, whose length may pass what a unix socket's path allows.
    root = Path(tempfile.mkdtemp(prefix="colocate-"))
    clock = ManualClock(time.time())
    runtime = ProcessRuntime(root / "pods", parent="none", mount=root / "no control groups")
    nodes = [
        LabNodeShape(name=name, cpu="4", memory="16Gi", labels={"disk": name}) for name in ("one", "two")
    ]
    cluster = LabCluster(root, runtime=runtime, nodes=nodes, clock=clock)
    try:
        async with cluster.running():
            cluster.server.write_kubeconfig(root / "kubeconfig")
            yield Lab(cluster, clock, Kubectl(components.find("kubectl") or "", root, cluster.server))
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def test_top_nodes_shows_what_a_node_is_told_to_use(lab: Lab) -> None:
    told = ("lab.colocate.dev/usage-cpu=1", "lab.colocate.dev/usage-memory=12Gi")
    await lab.kubectl("annotate", "node", "one", *told)
    header, *rows = await lab.top("nodes")
    assert (header[0], header[1], header[3]) == ("NAME", "CPU(cores)", "MEMORY(bytes)")
    assert [row[0] for row in rows] == ["one", MACHINE, "two"]
    assert rows[0] == ["one", "1000m", "25%", "12288Mi", "75%"]
    assert rows[2] == ["two", "0m", "0%", "0Mi", "0%"]
    assert (await lab.top("nodes", "--sort-by=memory"))[1][0] == "one"
    assert [row[0] for row in (await lab.top("nodes", "-l", "disk=two"))[1:]] == ["two"]
    assert (await lab.top("node", "one"))[1:] == rows[:1]

    await lab.kubectl(
        "annotate", "node", "one", "lab.colocate.dev/usage-cpu-", "lab.colocate.dev/usage-memory-"
    )
    assert (await lab.top("node", "one"))[1:] == [["one", "0m", "0%", "0Mi", "0%"]]


async def test_top_pods_shows_processes_and_leaves_out_what_has_none(lab: Lab) -> None:
    await lab.run("web", MACHINE)
    await lab.run("dns", MACHINE, "kube-system")
    await lab.run("simulated", "one")
    assert "metrics not available yet" in await lab.kubectl("top", "pods", ok=False)
    await lab.measured()

    header, *rows = await lab.top("pods", "-A")
    assert header == ["NAMESPACE", "NAME", "CPU(cores)", "MEMORY(bytes)"]
    assert [row[:2] for row in rows] == [["default", "web"], ["kube-system", "dns"]]
    assert all(row[2].endswith("m") and row[3].endswith("Mi") for row in rows)
    assert [row[0] for row in (await lab.top("pods"))[1:]] == ["web"]
    assert [row[:2] for row in (await lab.top("pods", "--containers"))[1:]] == [["web", "main"]]
    assert [row[1] for row in (await lab.top("pods", "-A", "-l", "app=dns"))[1:]] == ["dns"]
    assert [row[0] for row in (await lab.top("pod", "web"))[1:]] == ["web"]
    refused = await lab.kubectl("top", "pod", "simulated", ok=False)
    assert 'podmetrics.metrics.k8s.io "default/simulated" not found' in refused


async def test_get_nodes_and_pods_still_mean_those_of_the_core(lab: Lab) -> None:
    assert (await lab.kubectl("get", "nodes", "-o", "name")).split()[0] == "node/one"
    assert (await lab.kubectl("get", "node", "one", "-o", "name")).strip() == "node/one"
    assert "No resources found" in await lab.kubectl("get", "pods")
    shown = [line.split() for line in (await lab.kubectl("get", "nodes.metrics.k8s.io", "one")).splitlines()]
    assert shown == [["NAME", "CPU", "MEMORY", "WINDOW"], ["one", "0", "0", "15s"]]
