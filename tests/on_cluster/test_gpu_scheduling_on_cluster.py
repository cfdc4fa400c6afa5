"""GPUs chosen on any cluster: an agent with mock GPUs on this machine, `colocate scheduler serve` beside it.

A real kube-scheduler asks it where COLOCATE_KUBE_SCHEDULER names its program; on the embedded cluster the test asks
in its place, over HTTP.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from colocate.gpus import COLOCATE, DOSLAB, Dialect
from colocate.scheduler.kube import configuration as kube_config
from colocate.scheduler.kube.configuration import KubeProfile, WantedConfiguration
from tests.on_cluster.conftest import Cluster
from tests.on_cluster.test_scheduling_on_cluster import COMMAND, PATIENCE, started
from tests.support.prometheus import free_port

pytestmark = pytest.mark.needs("kubectl")
GPU = "GPU-709fac35-5f40-624b-90f7-b0a3db7a97a0"


SMALL = ({"model": "Tesla T4", "memory": "160Mi", "uuid": GPU},)


@asynccontextmanager
async def agent(
    cluster: Cluster,
    folder: Path,
    node: str,
    *,
    dialect: Dialect = DOSLAB,
    gpus: Sequence[Mapping[str, object]] = SMALL,
    units: int = 160,
) -> AsyncIterator[None]:
    """An agent with mock GPUs: one of 160 MiB, unless others are named."""
    (folder / "gpus.yaml").write_text(yaml.safe_dump({"version": 1, "gpus": [*gpus]}))
    settings = {
        "version": 1,
        "kubelet": {"root": cluster.kubelet_root, "onStop": "withdraw"},
        "control": {"socket": f"{cluster.kubelet_root}/gpu-agent.sock"},
        "gpus": {
            "enabled": True,
            "dialects": [{"name": dialect.name}],
            "mock": str(folder / "gpus.yaml"),
            "node": node,
            "kubeconfig": cluster.kubeconfig,
            "stateFolder": str(folder / "state"),
        },
    }
    (folder / "agent.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "colocate.cli.main", "agent", "--config", str(folder / "agent.yaml")]
    async with started(folder / "agent.log", *command):
        async with asyncio.timeout(PATIENCE):
            while True:
                found = await cluster.get("node", node)
                marks = found["metadata"].get("annotations", {})
                if (
                    found["status"]["allocatable"].get(dialect.memory) == str(units)
                    and "colocate.dev/gpus" in marks
                ):
                    break
                await asyncio.sleep(0.2)
        yield


@asynccontextmanager
async def scheduling(
    cluster: Cluster, folder: Path, dialect: str = "doslab", key: Path | None = None
) -> AsyncIterator[str]:
    """The scheduler's process, with the lease; its address. Its key is in a Secret, or in a file."""
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    secret = {"namespace": cluster.namespace} if key is None else {}
    settings = {
        "version": 1,
        "act": ["gpus"],
        "server": {"address": address, "callers": {"anyone": True}},
        "gpus": {
            "lease": {"namespace": cluster.namespace},
            "dialects": [{"name": dialect}],
            "keySecret": secret,
            **({"keyFile": str(key)} if key is not None else {}),
        },
    }
    (folder / "scheduler.yaml").write_text(yaml.safe_dump(settings))
    words = ["serve", "--config", str(folder / "scheduler.yaml"), "--kubeconfig", cluster.kubeconfig]
    async with started(folder / "scheduler.log", *COMMAND, *words), aiohttp.ClientSession() as session:
        async with asyncio.timeout(PATIENCE):
            while not await _is_ready(session, address):  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.2)
        yield f"http://{address}"


async def _is_ready(session: aiohttp.ClientSession, address: str) -> bool:
    try:
        async with session.get(f"http://{address}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def asked_by_hand(cluster: Cluster, url: str, name: str, node: str) -> None:
    """What kube-scheduler asks for one pod and the one node that is left."""
    pod: Any = await cluster.get("pod", name)
    async with aiohttp.ClientSession() as session:
        body = {"Pod": pod, "Nodes": None, "NodeNames": [node]}
        async with session.post(f"{url}/gpu/filter", json=body) as answer:
            assert (await answer.json())["NodeNames"] == [node]
        meta = pod["metadata"]
        binding = {"PodName": name, "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        async with session.post(f"{url}/gpu/bind", json=binding) as answer:
            assert await answer.json() == {"Error": ""}


async def test_a_pod_is_scheduled_with_no_annotation_and_finds_its_gpu(
    cluster: Cluster, tmp_path: Path
) -> None:
    program = os.environ.get("COLOCATE_KUBE_SCHEDULER")
    if not program and not cluster.is_lab:
        pytest.skip("COLOCATE_KUBE_SCHEDULER names no kube-scheduler program to start")
    node = await cluster.own_node()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(agent(cluster, tmp_path, node))
        url = await stack.enter_async_context(scheduling(cluster, tmp_path))
        if program:
            wanted = WantedConfiguration(
                url=url,
                profiles=(KubeProfile(DOSLAB.scheduler),),
                kubeconfig=cluster.kubeconfig,
                leader_election={"leaderElect": False},
                loads=False,
                gpus=(DOSLAB.memory, DOSLAB.cores, DOSLAB.count),
            )
            (tmp_path / "kube-scheduler.yaml").write_text(kube_config.render(wanted))
            flags = ["--bind-address=127.0.0.1", f"--secure-port={free_port('127.0.0.1')}"]
            config = f"--config={tmp_path / 'kube-scheduler.yaml'}"
            await stack.enter_async_context(started(tmp_path / "kube.log", program, config, *flags))
        limits = {"limits": {DOSLAB.memory: "100", DOSLAB.cores: "30"}}
        script = f'test "$NVIDIA_VISIBLE_DEVICES" = {GPU} && sleep 1000'
        pod = cluster.pod("mnist", script, resources=limits, schedulerName=DOSLAB.scheduler)
        await cluster.apply(pod)
        if not program:
            await asked_by_hand(cluster, url, "mnist", node)
        await cluster.wait("pod/mnist", "condition=Ready")
        found = await cluster.get("pod", "mnist")
        assert found["spec"]["nodeName"] == node
        assert found["metadata"]["annotations"]["doslab.io/gpu-uuid"] == GPU
        await cluster.kubectl("delete", "pod", "mnist", "--now")


async def test_a_kubelet_that_restarts_with_many_gpus_still_admits(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Eight GPUs of 80 GiB in the default unit, and pods that hold half of it: every device is new to the kubelet."""
    node = await cluster.own_node()
    gpus = [{"model": "NVIDIA A100-SXM4-80GB", "memory": "80Gi", "count": 8}]
    devices = 8 * 80 * 1024 // COLOCATE.unit
    async with agent(cluster, tmp_path, node, dialect=COLOCATE, gpus=gpus, units=devices):
        limits = {"limits": {COLOCATE.memory: str(devices // 16)}}
        names = [f"holder-{number}" for number in range(8)]
        for name in names:
            await cluster.apply(cluster.pod(name, "sleep 1000", resources=limits, nodeName=node))
        for name in names:
            await cluster.wait(f"pod/{name}", "condition=Ready")
        await cluster.restart_kubelet()
        # At once: a pod without any device, and one with many.
        began = time.monotonic()
        await cluster.apply(cluster.pod("plain", "sleep 1000", nodeName=node))
        await cluster.wait("pod/plain", "condition=Ready", timeout=90)
        async with asyncio.timeout(90):
            while True:
                found = await cluster.get("node", node)
                if found["status"]["allocatable"].get(COLOCATE.memory) == str(devices):
                    break
                await asyncio.sleep(0.5)
        await cluster.apply(cluster.pod("later", "sleep 1000", resources=limits, nodeName=node))
        await cluster.wait("pod/later", "condition=Ready", timeout=90)
        record_property("seconds after the restart", round(time.monotonic() - began, 1))
        await cluster.kubectl("delete", "pod", *names, "plain", "later", "--now")
