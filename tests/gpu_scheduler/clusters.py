"""Embedded clusters with announced GPUs, and schedulers that choose them."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Flags, find
from colocate.cluster.resources import NODES, PODS, Object
from colocate.gpus import ANNOUNCED, DOSLAB, announcement_of
from colocate.lab.api.objects import at
from colocate.lab.api.resources import EVENTS
from colocate.lab.api.resources import PODS as LAB_PODS
from colocate.lab.cluster import LabCluster
from colocate.lab.nodes.shape import LabNodeShape
from colocate.lab.scheduler import configuration
from colocate.model.gpu import Gpu, GpuInventory
from colocate.model.values import Seconds
from colocate.scheduler.gpus.section import GpuLease, GpuPolicy, GpuSection, SchedulerDialect
from colocate.scheduler.kube import configuration as kube_config
from colocate.scheduler.kube.configuration import KubeProfile, WantedConfiguration
from colocate.scheduler.process import SchedulerProcess, running
from colocate.scheduler.settings import Act, CallerSettings, SchedulerConfig, Server, ServerEndpoint
from tests.support.prometheus import free_port
from tests.support.waiting import until

NAME = "doslab-gpu-scheduler"
SIZE = 16384


def uuid(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


def gpus(
    node: str, count: int, *, size: int = SIZE, model: str = "Tesla T4", sick: Sequence[int] = ()
) -> GpuInventory:
    return GpuInventory(
        tuple(
            Gpu(uuid=uuid(node, index), index=index, memory=size, model=model, healthy=index not in sick)
            for index in range(count)
        )
    )


def shape(name: str, count: int, size: int = SIZE, cpu: str = "16") -> LabNodeShape:
    """A node whose status says what its GPUs come to."""
    return LabNodeShape(
        name=name,
        cpu=cpu,
        resources={DOSLAB.memory: count * size, DOSLAB.cores: 100 * count, DOSLAB.count: count},
    )


def gpu_pod(
    name: str,
    memory: int,
    *,
    cores: int | None = None,
    count: int | None = None,
    annotations: Mapping[str, str] | None = None,
    cpu: str = "100m",
    **spec: Any,
) -> Object:
    limits: dict[str, str] = {DOSLAB.memory: str(memory)}
    limits |= {DOSLAB.cores: str(cores)} if cores is not None else {}
    limits |= {DOSLAB.count: str(count)} if count is not None else {}
    container = {
        "name": "main",
        "image": "busybox",
        "resources": {"limits": limits, "requests": {"cpu": cpu}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {"schedulerName": NAME, "containers": [container], **spec},
    }


class SeenPod(msgspec.Struct, frozen=True):
    """A pod as a test looks at it."""

    name: str
    uid: str
    node: str
    annotations: Mapping[str, str]
    deleting: bool = False

    @property
    def gpus(self) -> str:
        return self.annotations.get("doslab.io/gpu-uuid", "")


class GpuLab:
    """A cluster with GPUs, and what is done to it."""

    def __init__(self, root: Path, cluster: LabCluster, client: Client, port: int) -> None:
        self.root = root
        self.cluster = cluster
        self.client = client
        self.port = port

    def config(
        self, *act: Act, policy: GpuPolicy = GpuPolicy.OURS, port: int | None = None, **more: Any
    ) -> SchedulerConfig:
        return SchedulerConfig(
            act=act or (Act.GPUS,),
            server=Server(
                address=ServerEndpoint(f"127.0.0.1:{self.port if port is None else port}"),
                callers=CallerSettings(anyone=True),
                grace=Seconds(1),
            ),
            gpus=GpuSection(
                policy=policy,
                dialects=(SchedulerDialect(name="doslab"),),
                lease=GpuLease(duration=Seconds(6)),
                **more,
            ),
        )

    @asynccontextmanager
    async def scheduling(self, config: SchedulerConfig | None = None) -> AsyncIterator[SchedulerProcess]:
        """The process, with the lease."""
        async with running(config or self.config(), self.client, SystemClock()) as process:
            assert process.gpus is not None
            scheduling = process.gpus
            await until(lambda: not scheduling.unready(), "the GPU scheduler to be ready")
            yield process

    async def announce(self, inventory: GpuInventory, node: str) -> None:
        body = {"metadata": {"annotations": {ANNOUNCED: announcement_of(inventory)}}}
        await self.client.patch(NODES, node, body)

    async def create(self, *pods: Object) -> None:
        for pod in pods:
            await self.client.create(PODS, pod, "default")

    def pod(self, name: str) -> SeenPod:
        return next(pod for pod in self.pods() if pod.name == name)

    def pods(self) -> list[SeenPod]:
        return [_seen(stored.body) for stored in self.cluster.store.items(LAB_PODS.storage)]

    async def bound(self, *names: str) -> list[SeenPod]:
        """These pods, once all have a node."""
        await until(
            lambda: all(pod.node for pod in self.pods() if pod.name in names),
            f"a node for {', '.join(names[:5])}",
        )
        return [self.pod(name) for name in names]

    def why(self, name: str) -> str:
        """What events say of a pod."""
        return " | ".join(
            str(at(stored.body, "message") or at(stored.body, "note") or "")
            for stored in self.cluster.store.items(EVENTS.storage)
            if name in (at(stored.body, "involvedObject", "name"), at(stored.body, "regarding", "name"))
        )


def _seen(pod: Object) -> SeenPod:
    meta: Any = pod["metadata"]
    spec: Any = pod["spec"]
    return SeenPod(
        meta["name"],
        meta["uid"],
        spec.get("nodeName", ""),
        meta.get("annotations") or {},
        "deletionTimestamp" in meta,
    )


@asynccontextmanager
async def gpu_lab(
    *nodes: tuple[str, int], size: int = SIZE, cpu: str = "16", loads: bool = False
) -> AsyncIterator[GpuLab]:
    """Nodes by name and number of GPUs, all announced. The embedded scheduler asks an extender on `port`; with
    `loads`, about what nodes use, too."""
    port = free_port("127.0.0.1")
    wanted = WantedConfiguration(
        url=f"http://127.0.0.1:{port}",
        profiles=(KubeProfile(NAME),),
        loads=loads,
        points=25,
        gpus=(DOSLAB.memory, DOSLAB.cores, DOSLAB.count),
    )
    async with AsyncExitStack() as stack:
        root = Path(tempfile.mkdtemp(prefix="gpu-lab-"))
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        scheduling = configuration.read(kube_config.render(wanted))
        shapes = [shape(name, count, size, cpu) for name, count in nodes]
        cluster = LabCluster(
            root,
            nodes=shapes,
            scheduling=msgspec.structs.replace(
                scheduling, pod_initial_backoff_seconds=0.2, pod_max_backoff_seconds=0.5
            ),
        )
        await stack.enter_async_context(cluster.running())
        cluster.server.write_kubeconfig(root / "kubeconfig")
        client = await stack.enter_async_context(Client(find(Flags(kubeconfig=root / "kubeconfig"))))
        lab = GpuLab(root, cluster, client, port)
        for name, count in nodes:
            await lab.announce(gpus(name, count, size=size), name)
        yield lab
