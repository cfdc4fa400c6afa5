"""A cluster, a Prometheus that is pretended, and what the doctor finds of scheduling by load there."""

import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.cluster.serving import connect, new_server
from tests.scheduler.pretending import Pretended

from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.usage import PrometheusSettings, UsageSettings
from colocate.doctor.check import Patient, Scheduling
from colocate.doctor.examination import chosen, examine
from colocate.doctor.report import CheckResult
from colocate.kubelet import KubeletPaths
from colocate.lab.api.resources import NODES
from colocate.load import BalancedSettings
from colocate.model.load import Aggregation
from colocate.scheduler.kube.extender import KubeExtender, KubeScheduler
from colocate.scheduler.sections import Load
from colocate.scheduler.settings import SchedulerConfig, Server

NAMES = ("a", "b", "c")
CALM = dict.fromkeys(NAMES, (10.0, 20.0))


@asynccontextmanager
async def cluster_of(*names: str) -> AsyncIterator[Client]:
    nodes = [
        {
            "metadata": {"name": name},
            "status": {
                "addresses": [{"type": "InternalIP", "address": f"10.0.0.{number}"}],
                "capacity": {"cpu": "4", "memory": "16Gi"},
            },
        }
        for number, name in enumerate(names, 1)
    ]
    async with cluster_with(nodes) as client:
        yield client


@asynccontextmanager
async def cluster_with(nodes: Iterable[dict[str, Any]]) -> AsyncIterator[Client]:
    running = new_server(SystemClock())
    for node in nodes:
        running.registry.create(NODES, "", node)
    await running.start(tls=False)
    try:
        async with connect(running.url, SystemClock()) as client:
            yield client
    finally:
        await running.stop()


async def examined(
    check: str,
    client: Client | str,
    url: str = "",
    extenders: tuple[KubeExtender, ...] | None = None,
    usage: UsageSettings | None = None,
    load: Load | None = None,
    server: Server | None = None,
) -> list[CheckResult]:
    usage = usage or UsageSettings(prometheus=PrometheusSettings(url=url), pods=False)
    wary = Load(balanced=BalancedSettings(Aggregation.P95, deviations=1))
    kube_scheduler = None if extenders is None else KubeScheduler(extenders)
    config = SchedulerConfig(usage=usage, load=load or wary, server=server or Server())
    scheduling = Scheduling(config, kube_scheduler)
    nowhere = KubeletPaths(Path("/nowhere"))
    patient = Patient(nowhere, Path("/nowhere"), "worker", SystemClock(), client, scheduling=scheduling)
    return [result async for one in examine(patient, chosen([check])) for result in one.results]


async def samples(prometheus: Pretended, *nodes: str) -> list[CheckResult]:
    async with cluster_of(*nodes) as client:
        return await examined("samples", client, prometheus.url)


def say(prometheus: Pretended, query: str, *series: dict[str, Any]) -> None:
    result = [{"metric": labels, "value": [time.time(), "20"]} for labels in series]
    body = {"status": "success", "data": {"resultType": "vector", "result": result}}
    prometheus.table.say(query, json.dumps(body).encode())
