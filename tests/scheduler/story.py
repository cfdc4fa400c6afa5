"""The seed's story, to be told in several ways: nodes with equal requests of which one is hot, and a deployment.

A real Prometheus and real node-exporters say how busy nodes are; the embedded cluster has the nodes and a scheduler
that asks extenders as kube-scheduler does.
"""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Flags, find
from colocate.cluster.resources import DEPLOYMENTS, NODES, PODS, Object
from colocate.cluster.usage import PrometheusSettings, UsageSettings
from colocate.lab.cluster import LabCluster
from colocate.lab.nodes.shape import LabNodeShape
from colocate.lab.scheduler import configuration
from colocate.model.values import Seconds
from colocate.scheduler.kube import configuration as kube_config
from colocate.scheduler.kube.configuration import KubeProfile, WantedConfiguration
from colocate.scheduler.process import SchedulerProcess, running
from colocate.scheduler.sections import Lease, Taints
from colocate.scheduler.settings import Act, CallerSettings, SchedulerConfig, Server, ServerEndpoint
from tests.support.prometheus import WINDOW, Metrics, free_port
from tests.support.waiting import until

NAME = "mem-real-usage-scheduler"
POOL = {"pool": "story"}


class Placed(msgspec.Struct, frozen=True):
    name: str
    node: str
    generation: str


class Story:
    """A cluster with nodes of the story's own, and what is done to it."""

    def __init__(self, cluster: LabCluster, client: Client, port: int, metrics_url: str) -> None:
        self.cluster = cluster
        self.client = client
        self.port = port
        self._metrics_url = metrics_url
        self._restarts = 0

    def config(self, *act: Act, **more: Any) -> SchedulerConfig:
        usage = UsageSettings(
            prometheus=PrometheusSettings(url=self._metrics_url, timeout=Seconds(2)),
            interval=Seconds(0.2),
            average=Seconds(WINDOW),
        )
        taints = Taints(period=Seconds(0.1), per_minute=600, lease=Lease(duration=Seconds(3)))
        config = SchedulerConfig(
            act=act or (Act.EXTENDER,),
            server=Server(
                address=ServerEndpoint(f"127.0.0.1:{self.port}"),
                callers=CallerSettings(anyone=True),
                grace=Seconds(1),
            ),
            usage=usage,
            taints=taints,
        )
        return msgspec.structs.replace(config, **more)

    def tainting(self, **more: Any) -> SchedulerConfig:
        config = self.config(Act.TAINTS)
        return msgspec.structs.replace(config, taints=msgspec.structs.replace(config.taints, **more))

    @asynccontextmanager
    async def scheduling(self, config: SchedulerConfig | None = None) -> AsyncIterator[SchedulerProcess]:
        """The process, ready."""
        async with running(config or self.config(), self.client, SystemClock()) as scheduler:
            await until(lambda: not scheduler.judge.unready(), "the scheduler to be ready")
            yield scheduler

    async def deploy(self, name: str, replicas: int, scheduler: str = NAME) -> None:
        await self.client.create(DEPLOYMENTS, deployment(name, replicas, scheduler), "default")
        await self.placed(name, replicas)

    async def restart(self, name: str, replicas: int) -> list[Placed]:
        """As `kubectl rollout restart` does it; the pods of the new generation, once all have a node."""
        before = {pod.generation for pod in await self.pods(name)}
        self._restarts += 1
        mark = {"kubectl.kubernetes.io/restartedAt": f"the {self._restarts}. time"}
        patch = {"spec": {"template": {"metadata": {"annotations": mark}}}}
        await self.client.patch(DEPLOYMENTS, name, patch, "default")
        return await self.placed(name, replicas, lambda pod: pod.generation not in before)

    async def placed(
        self, name: str, count: int, counts: Callable[[Placed], bool] = lambda pod: True
    ) -> list[Placed]:
        """All pods that count, once they are so many and each has a node, and no other is left."""
        store = self.cluster.store
        while True:
            seen = store.changed.count
            pods = await self.pods(name)
            if len(pods) == count and all(pod.node and counts(pod) for pod in pods):
                return pods
            await store.changed.beyond(seen)

    async def pods(self, name: str) -> list[Placed]:
        found = await self.client.list(PODS)
        return [
            Placed(
                _at(pod, "metadata", "name"), _at(pod, "spec", "nodeName"), _label(pod, "pod-template-hash")
            )
            for pod in found
            if _label(pod, "app") == name
        ]

    async def taints(self, node: str) -> list[Any]:
        found = await self.client.get(NODES, node)
        taints = _at(found, "spec", "taints")
        return list(taints or [])

    async def heat(self, node: str) -> int:
        taints = await self.taints(node)
        return sum(one["key"].startswith("colocate.dev/load-") for one in taints)

    async def hot(self, node: str, *levels: int) -> None:
        """Return once the node shows one of these heats."""
        store = self.cluster.store
        async with asyncio.timeout(60):
            while True:
                seen = store.changed.count
                if await self.heat(node) in levels:
                    return
                await store.changed.beyond(seen)


def with_metrics_api(config: SchedulerConfig, *, prometheus: bool) -> SchedulerConfig:
    """That asks the metrics API, too, or alone."""
    usage = msgspec.structs.replace(
        config.usage,
        metrics_api=True,
        prometheus=config.usage.prometheus if prometheus else PrometheusSettings(),
    )
    return msgspec.structs.replace(config, usage=usage)


def spread(pods: Sequence[Placed]) -> Counter[str]:
    return Counter(pod.node for pod in pods)


def deployment(name: str, replicas: int, scheduler: str) -> Object:
    """The seed's own, on the story's nodes."""
    labels = {"app": name}
    container = {
        "name": "nginx",
        "image": "nginx",
        "resources": {"requests": {"cpu": "50m", "memory": "100Mi"}},
    }
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "containers": [container],
            "schedulerName": scheduler,
            "nodeSelector": POOL,
            "terminationGracePeriodSeconds": 0,
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


@asynccontextmanager
async def telling(
    metrics: Metrics | str, nodes: Sequence[str], *, extender: bool = True, **wanted: Any
) -> AsyncIterator[Story]:
    """A cluster whose scheduler asks the extender by what `colocate scheduler kube-config` prints, or asks none."""
    # Not below pytest's tmp_path, whose length may pass what a unix socket's path allows.
    root = Path(tempfile.mkdtemp(prefix="colocate-"))
    port = free_port("127.0.0.1")
    scheduling = None
    if extender:
        printed = kube_config.render(
            WantedConfiguration(url=f"http://127.0.0.1:{port}", profiles=(KubeProfile(NAME),), **wanted)
        )
        scheduling = configuration.read(printed)
    shapes = [LabNodeShape(name=name, cpu="4", memory="16Gi", labels=POOL) for name in nodes]
    cluster = LabCluster(root, nodes=shapes, scheduling=scheduling)
    url = metrics if isinstance(metrics, str) else metrics.url
    try:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(cluster.running())
            cluster.server.write_kubeconfig(root / "kubeconfig")
            client = await stack.enter_async_context(Client(find(Flags(kubeconfig=root / "kubeconfig"))))
            yield Story(cluster, client, port, url)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _at(found: object, *names: str) -> Any:
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _label(pod: Object, name: str) -> str:
    return str(_at(pod, "metadata", "labels", name))
