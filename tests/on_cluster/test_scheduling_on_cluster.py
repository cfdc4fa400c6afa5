"""Scheduling by load on any cluster: `colocate scheduler serve` beside it, by taints and, where given, by extender.

Loads are pretended, of one node that it is full. A real kube-scheduler is started where COLOCATE_KUBE_SCHEDULER names
its program; taints need none but the cluster's own.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from colocate.apps.scheduler import kube_config
from colocate.apps.scheduler.kube_config import Profile, Wanted
from tests.scheduler.pretending import pretending
from tests.support.prometheus import free_port

from .conftest import IMAGE, Cluster

pytestmark = pytest.mark.needs("kubectl")
NAME = "colocate-test-scheduler"
REPLICAS = 12
PATIENCE = 120


async def usable(cluster: Cluster) -> list[str]:
    """Nodes that take ordinary pods."""
    found = []
    for node in await cluster.nodes():
        ready = any(
            one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"]
        )
        if ready and not node["spec"].get("taints") and not node["spec"].get("unschedulable"):
            found.append(str(node["metadata"]["name"]))
    if len(found) < 2:
        pytest.skip("needs two nodes that are Ready and have no taints")
    return found


@asynccontextmanager
async def started(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), PATIENCE)


@asynccontextmanager
async def scheduling(
    cluster: Cluster, folder: Path, hot: str, nodes: list[str], act: str
) -> AsyncIterator[int]:
    """The scheduler's process, ready; its port."""
    uses = {name: (10.0, 95.0 if name == hot else 20.0) for name in nodes}
    port = free_port("127.0.0.1")
    async with pretending(uses) as prometheus:
        settings = {
            "version": 1,
            "log": {"format": "json"},
            "act": [act],
            "server": {"address": f"127.0.0.1:{port}"},
            "usage": {"prometheus": {"url": prometheus.url}, "interval": "1s"},
            "taints": {"period": "500ms", "lease": {"namespace": cluster.namespace}},
        }
        (folder / "scheduler.yaml").write_text(yaml.safe_dump(settings))
        words = ["scheduler", "serve", "--config", str(folder / "scheduler.yaml")]
        command = [sys.executable, "-m", "colocate.cli.main", *words, "--kubeconfig", cluster.kubeconfig]
        async with started(*command) as process:
            assert process.stderr is not None
            async with asyncio.timeout(PATIENCE):
                while json.loads(await process.stderr.readline())["event"] != "scheduler.ready":
                    pass
            reading = asyncio.create_task(process.stderr.read())
            yield port
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(reading, PATIENCE)


async def placed(cluster: Cluster, nodes: list[str], scheduler: str) -> set[str]:
    """The nodes that a deployment's pods go to."""
    labels = {"app": "nginx"}
    among = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [among]}]}
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["sh", "-c", "sleep 3600"],
        "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}},
    }
    pod: dict[str, Any] = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 1,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "containers": [container],
    }
    spec = {
        "replicas": REPLICAS,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    await cluster.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "nginx"}, "spec": spec}
    )
    async with asyncio.timeout(PATIENCE):
        while True:
            pods = (await cluster.get("pods"))["items"]
            found = [one["spec"].get("nodeName") for one in pods]
            if len(found) == REPLICAS and all(found):
                return set(found)
            await asyncio.sleep(0.2)


async def test_by_taints_the_clusters_own_scheduler_avoids_a_full_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    nodes = await usable(cluster)
    hot = nodes[0]
    async with scheduling(cluster, tmp_path, hot, nodes, "taints"):
        async with asyncio.timeout(PATIENCE):
            while not (await cluster.get("node", hot))["spec"].get("taints"):  # noqa: ASYNC110 -- kubectl tells
                await asyncio.sleep(0.2)
        assert hot not in await placed(cluster, nodes, "default-scheduler")
    assert not (await cluster.get("node", hot))["spec"].get("taints"), "they are gone at the end"


async def test_by_the_extender_a_stock_kube_scheduler_avoids_a_full_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    program = os.environ.get("COLOCATE_KUBE_SCHEDULER")
    if not program:
        pytest.skip("COLOCATE_KUBE_SCHEDULER names no kube-scheduler program to start")
    nodes = await usable(cluster)
    async with scheduling(cluster, tmp_path, nodes[0], nodes, "extender") as port:
        wanted = Wanted(
            url=f"http://127.0.0.1:{port}",
            profiles=(Profile(NAME),),
            kubeconfig=cluster.kubeconfig,
            leader_election={"leaderElect": False},
        )
        (tmp_path / "kube-scheduler.yaml").write_text(kube_config.render(wanted))
        flags = ["--bind-address=127.0.0.1", f"--secure-port={free_port('127.0.0.1')}"]
        async with started(program, f"--config={tmp_path / 'kube-scheduler.yaml'}", *flags) as process:
            assert process.stderr is not None
            reading = asyncio.create_task(process.stderr.read())
            assert nodes[0] not in await placed(cluster, nodes, NAME)
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(reading, PATIENCE)
