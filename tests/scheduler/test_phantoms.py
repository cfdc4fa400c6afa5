"""Pods that do not exist, asked about by a caller: what they can do to scores, and that they taint no node."""

import asyncio
import json

import aiohttp

from colocate.cluster.changes import Key
from colocate.cluster.resources import PODS
from colocate.load.heat import pressures
from colocate.scheduler.process import SchedulerProcess
from colocate.scheduler.settings import Act
from tests.scheduler.pretending import CALM, NAMES, pretending
from tests.scheduler.story import Story, telling
from tests.support.waiting import until

HUGE = [{"name": "c", "resources": {"requests": {"cpu": "8", "memory": "32Gi"}}}]


async def ask(url: str, pod: dict[str, object], *names: str) -> None:
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)})
    async with aiohttp.ClientSession() as session, session.post(f"{url}/prioritize", data=body) as answer:
        assert answer.status == 200


def phantom(number: int) -> dict[str, object]:
    metadata = {"name": f"phantom-{number}", "namespace": "default", "uid": f"phantom-{number}"}
    return {"metadata": metadata, "spec": {"containers": HUGE}}


async def test_a_caller_that_plants_phantoms_taints_no_node_and_has_only_a_few_counted() -> None:
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES) as story:
        config = story.config(Act.EXTENDER, Act.TAINTS)
        async with story.scheduling(config) as scheduler:
            assert scheduler.tainting is not None
            table = scheduler.facts.table
            before = pressures(table)
            await asyncio.gather(
                *(ask(scheduler.listening.url, phantom(number), "n1") for number in range(200))
            )
            assert len(table.ledger.assumptions) == 50
            assert table.terms("n1").unseen_pods == 50
            for name, pressure in pressures(table).items():
                assert abs(pressure - before[name]) < 5, (
                    "measured load may move; invented pods must not move it"
                )
            assert scheduler.tainting.planned().changes == ()
            real = await a_pod_that_waits(story, scheduler)
            await ask(scheduler.listening.url, real, "n2")
            assert len(table.ledger.assumptions) == 51, "a pod that the API server shows still counts"


async def a_pod_that_waits(story: Story, scheduler: SchedulerProcess) -> dict[str, object]:
    """A pod of the cluster that no scheduler binds, once it is seen."""
    spec = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "i"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "real"}, "spec": spec}
    made = await story.client.create(PODS, pod, "default")
    await until(lambda: Key("default", "real") in dict(scheduler.facts.pods.items()), "the pod to be seen")
    return {"metadata": made["metadata"], "spec": {"containers": HUGE}}
