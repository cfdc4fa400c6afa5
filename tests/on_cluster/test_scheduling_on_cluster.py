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

from colocate.scheduler.kube import configuration as kube_config
from colocate.scheduler.kube.configuration import KubeProfile, WantedConfiguration
from tests.scheduler.pretending import Pretended, pretending
from tests.support.prometheus import free_port
from tests.support.waiting import until

from .conftest import IMAGE, Cluster

pytestmark = pytest.mark.needs("kubectl")
NAME = "colocate-test-scheduler"
REPLICAS = 30
PATIENCE = 120
FULL = (10.0, 95.0)
COMMAND = (sys.executable, "-m", "colocate.cli.main", "scheduler")


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
async def started(log: Path, *command: str) -> AsyncIterator[None]:
    """A process for as long as the body runs; what it says is in the log."""
    with log.open("wb") as said:
        process = await asyncio.create_subprocess_exec(*command, stderr=said)
    try:
        yield
        assert process.returncode is None, log.read_text()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), PATIENCE)


@asynccontextmanager
async def scheduling(
    cluster: Cluster, folder: Path, nodes: list[str], act: str
) -> AsyncIterator[tuple[str, Pretended]]:
    """The scheduler's process, ready; its address, and what it is told of nodes."""
    address, log = f"127.0.0.1:{free_port('127.0.0.1')}", folder / "scheduler.log"
    async with pretending(dict.fromkeys(nodes, (10.0, 20.0))) as prometheus:
        settings = {
            "version": 1,
            "log": {"format": "json"},
            "act": [act],
            "server": {"address": address, "callers": {"anyone": True}},
            "usage": {"prometheus": {"url": prometheus.url}, "interval": "1s"},
            "taints": {"period": "500ms", "lease": {"namespace": cluster.namespace}},
        }
        (folder / "scheduler.yaml").write_text(yaml.safe_dump(settings))
        words = ["serve", "--config", str(folder / "scheduler.yaml"), "--kubeconfig", cluster.kubeconfig]
        async with started(log, *COMMAND, *words):
            await until(lambda: '"scheduler.ready"' in log.read_text(), "the scheduler")
            yield f"http://{address}", prometheus


async def deploy(cluster: Cluster, nodes: list[str], scheduler: str) -> None:
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


async def rolled_out(cluster: Cluster) -> dict[str, str]:
    """The deployment's pods that stay, and their nodes."""
    await cluster.kubectl("rollout", "status", "deployment/nginx", f"--timeout={PATIENCE}s")
    pods = (await cluster.get("pods"))["items"]
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
    }


async def ask(url: str, *words: str) -> Any:
    """What `colocate scheduler` answers, as JSON."""
    command = [*COMMAND, *words, "--url", url, "-o", "json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0
    return json.loads(out)


async def memory_of(url: str, node: str) -> float:
    """How much of a node's memory is in use, in percent, as the scheduler knows it."""
    rows = await ask(url, "top")
    return next(float(row["memory"]["used"]) for row in rows if row["node"] == node)


async def test_by_taints_the_clusters_own_scheduler_avoids_a_full_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    nodes = await usable(cluster)
    hot = nodes[0]
    async with scheduling(cluster, tmp_path, nodes, "taints") as (_, prometheus):
        prometheus.uses[hot] = FULL
        async with asyncio.timeout(PATIENCE):
            while not (await cluster.get("node", hot))["spec"].get("taints"):  # noqa: ASYNC110 -- kubectl tells
                await asyncio.sleep(0.2)
        await deploy(cluster, nodes, "default-scheduler")
        assert hot not in (await rolled_out(cluster)).values()
    assert not (await cluster.get("node", hot))["spec"].get("taints"), "they are gone at the end"


async def test_by_the_extender_a_stock_kube_scheduler_avoids_a_full_node_after_a_restart_of_thirty(
    cluster: Cluster, tmp_path: Path
) -> None:
    program = os.environ.get("COLOCATE_KUBE_SCHEDULER")
    if not program:
        pytest.skip("COLOCATE_KUBE_SCHEDULER names no kube-scheduler program to start")
    nodes = await usable(cluster)
    hot = nodes[0]
    async with scheduling(cluster, tmp_path, nodes, "extender") as (url, prometheus):
        wanted = WantedConfiguration(
            url=url,
            profiles=(KubeProfile(NAME),),
            kubeconfig=cluster.kubeconfig,
            leader_election={"leaderElect": False},
        )
        (tmp_path / "kube-scheduler.yaml").write_text(kube_config.render(wanted))
        flags = ["--bind-address=127.0.0.1", f"--secure-port={free_port('127.0.0.1')}"]
        config = f"--config={tmp_path / 'kube-scheduler.yaml'}"
        async with started(tmp_path / "kube-scheduler.log", program, config, *flags):
            await deploy(cluster, nodes, NAME)
            assert set((await rolled_out(cluster)).values()) == set(nodes), "all are as good"
            prometheus.uses[hot] = FULL
            async with asyncio.timeout(PATIENCE):
                while (await memory_of(url, hot)) < 90:  # noqa: ASYNC110 -- the command tells
                    await asyncio.sleep(0.2)
            await cluster.kubectl("rollout", "restart", "deployment/nginx")
            pods = await rolled_out(cluster)
            assert len(pods) == REPLICAS
            assert hot not in pods.values()

            name = next(iter(pods))
            told = await ask(url, "explain", f"{cluster.namespace}/{name}", "--all")
            assert (told["node"], told["followed"]) == (pods[name], True)
            scores = {node["node"]: node["score"] for node in told["explanation"]["nodes"]}
            assert scores[hot] < scores[pods[name]]
