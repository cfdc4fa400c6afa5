"""The seed's pod, the whole way: scheduled with no annotation by hand, matched by the agent, started with its GPU."""

from typing import Any

import msgspec
import pytest

from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Flags, find
from colocate.gpus import COLOCATE, COUNT_WISH, DOSLAB, Dialect
from colocate.lab.api.resources import PODS
from colocate.lab.scheduler import configuration
from colocate.model.values import Seconds
from colocate.scheduler.gpus.section import GpuLease, GpuSection, SchedulerDialect
from colocate.scheduler.kube import configuration as kube_config
from colocate.scheduler.kube.configuration import KubeProfile, WantedConfiguration
from colocate.scheduler.process import running
from colocate.scheduler.settings import Act, CallerSettings, SchedulerConfig, Server, ServerEndpoint
from tests.gpu_agent.lab import A100, MOCKS, T4, gpu_lab
from tests.gpu_scheduler.clusters import gpu_pod
from tests.support.prometheus import free_port
from tests.support.waiting import until


def configured(port: int, dialect: Dialect = DOSLAB) -> tuple[configuration.Configuration, SchedulerConfig]:
    """The embedded scheduler, and ours that it asks."""
    wanted = WantedConfiguration(
        url=f"http://127.0.0.1:{port}",
        profiles=(KubeProfile(dialect.scheduler),),
        loads=False,
        gpus=[name for name in (dialect.memory, dialect.cores, dialect.count) if name],
    )
    kube = configuration.read(kube_config.render(wanted))
    ours = SchedulerConfig(
        act=(Act.GPUS,),
        server=Server(
            address=ServerEndpoint(f"127.0.0.1:{port}"), callers=CallerSettings(anyone=True), grace=Seconds(1)
        ),
        gpus=GpuSection(dialects=(SchedulerDialect(name=dialect.name),), lease=GpuLease(duration=Seconds(6))),
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


@pytest.mark.parametrize("dialect", [COLOCATE, DOSLAB])
async def test_four_pods_with_two_of_four_gpus_each_all_run(dialect: Dialect) -> None:
    """The number of GPUs is wished for by annotation: what the node counts is not used up by shares."""
    kube, ours = configured(free_port("127.0.0.1"), dialect)
    mocks = [{"model": "Tesla T4", "memory": "15360Mi", "count": 4}]
    async with gpu_lab(scheduling=kube) as lab:
        lab.configure(mocks, dialects=[{"name": dialect.name}])
        await lab.start_agent()
        async with (
            Client(find(Flags(kubeconfig=lab.root / "kubeconfig"))) as client,
            running(ours, client, SystemClock()) as process,
        ):
            assert process.gpus is not None
            scheduling = process.gpus
            await until(lambda: not scheduling.unready(), "the GPU scheduler", 30)
            await until(lambda: scheduling.book.fleet.total() == 4, "the agent's GPUs to be announced", 30)
            names = [f"pair-{number}" for number in range(4)]
            for name in names:
                body: dict[str, Any] = gpu_pod(name, 13, annotations={COUNT_WISH: "2"})
                body["spec"]["schedulerName"] = dialect.scheduler
                body["spec"]["containers"][0]["resources"]["limits"] = {dialect.memory: "13"}
                lab.cluster.registry.create(PODS, "default", body)
            for name in names:
                await lab.until_phase(name)
                given = lab.env(name)["NVIDIA_VISIBLE_DEVICES"].split(",")
                assert len(set(given)) == 2
            booked = sum(gpu.booked for gpu in (await lab.report()).gpus)
            assert booked == 4 * 2 * 13 * dialect.unit
