"""The seed's pod, the whole way: scheduled with no annotation by hand, matched by the agent, started with its GPU."""

from typing import Any

import msgspec

from colocate.apps.config.values import Seconds
from colocate.apps.scheduler.gpus.section import GpuLease, GpuSection
from colocate.apps.scheduler.kube import configuration as kube_config
from colocate.apps.scheduler.kube.configuration import KubeProfile, WantedConfiguration
from colocate.apps.scheduler.process import running
from colocate.apps.scheduler.settings import Act, CallerSettings, SchedulerConfig, Server, ServerEndpoint
from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Flags, find
from colocate.gpus import DOSLAB
from colocate.lab.api.resources import PODS
from colocate.lab.scheduler import configuration
from tests.gpu_agent.lab import A100, MOCKS, T4, gpu_lab
from tests.gpu_scheduler.clusters import gpu_pod
from tests.support.prometheus import free_port
from tests.support.waiting import until


def configured(port: int) -> tuple[configuration.Configuration, SchedulerConfig]:
    """The embedded scheduler, and ours that it asks."""
    wanted = WantedConfiguration(
        url=f"http://127.0.0.1:{port}",
        profiles=(KubeProfile(DOSLAB.scheduler),),
        loads=False,
        gpus=(DOSLAB.memory, DOSLAB.cores, DOSLAB.count),
    )
    kube = configuration.read(kube_config.render(wanted))
    ours = SchedulerConfig(
        act=(Act.GPUS,),
        server=Server(
            address=ServerEndpoint(f"127.0.0.1:{port}"), callers=CallerSettings(anyone=True), grace=Seconds(1)
        ),
        gpus=GpuSection(lease=GpuLease(duration=Seconds(6))),
    )
    return msgspec.structs.replace(kube, pod_initial_backoff_seconds=0.2, pod_max_backoff_seconds=0.5), ours


async def test_the_seeds_pod_is_scheduled_matched_and_started_with_its_gpu() -> None:
    kube, ours = configured(free_port("127.0.0.1"))
    async with gpu_lab(scheduling=kube) as lab:
        lab.configure(MOCKS)
        await lab.start_agent()
        await lab.shows(15360 + 40536, 2)
        async with (
            Client(find(Flags(kubeconfig=lab.root / "kubeconfig"))) as client,
            running(ours, client, SystemClock()) as process,
        ):
            assert process.gpus is not None
            scheduling = process.gpus
            await until(lambda: not scheduling.unready(), "the GPU scheduler")
            await until(lambda: scheduling.book.fleet.total() == 2, "the agent's GPUs to be announced")
            pods: dict[str, Any] = {
                "mnist": gpu_pod("mnist", 4096, cores=30),
                "large": gpu_pod("large", 30_000),
                "both": gpu_pod("both", 2048, count=2),
            }
            for name, body in pods.items():
                lab.cluster.registry.create(PODS, "default", body)
                await lab.until_phase(name)
                await lab.until_annotated(name, "doslab.io/gpu-assigned", "true")
            assert lab.env("large")["NVIDIA_VISIBLE_DEVICES"] == A100
            assert set(lab.env("both")["NVIDIA_VISIBLE_DEVICES"].split(",")) == {T4, A100}
            mnist = lab.env("mnist")
            assert mnist["NVIDIA_VISIBLE_DEVICES"] == mnist["DOSLAB_IO_GPU_UUID"]
            assert mnist["NVIDIA_VISIBLE_DEVICES"] == lab.annotations("mnist")["doslab.io/gpu-uuid"]
            assert mnist["DOSLAB_IO_GPU_RESOURCE_USED_BY_CONTAINER"] == "4096"
            booked = {gpu.uuid: gpu.booked for gpu in (await lab.report()).gpus}
            book = next(one for one in scheduling.book.books.values() if one.inventory.gpus)
            assert {uuid: book.used[uuid].memory for uuid in booked} == booked
