"""Prod pods are judged by what prod pods use, from the samples of Prometheus to the answers of the extender."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import aiohttp

from colocate.aio import Watched
from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.cluster.resources import PODS, Object
from colocate.cluster.usage import UsageSnapshot, queries
from colocate.config.file import build_document
from colocate.load import LoadSettings, LoadTable
from colocate.model.load import Amount, PodUsage
from colocate.scheduler.loop.table_feed import TableFeed
from colocate.scheduler.process import SchedulerProcess
from colocate.scheduler.settings import SCHEDULER, SchedulerConfig
from tests.scheduler.pretending import CALM, NAMES, Pretended, pretending
from tests.scheduler.story import Story, telling
from tests.support.waiting import until

BATCH = {"koordinator.sh/priority-class": "koord-batch"}
CONFIG = """
version: 1
server: {{address: '127.0.0.1:{port}', callers: {{anyone: true}}}}
usage: {{prometheus: {{url: '{url}'}}, interval: 200ms, average: 3s, pods: true}}
load:
  policy: load-aware
  loadAware: {{byProdUsage: true}}
  filter: {{enabled: true, thresholds: {{usage: {{cpu: 65}}, prod: {{cpu: 50, memory: 50}}}}}}
"""


def pod_of(name: str, node: str | None = None, labels: Mapping[str, str] | None = None) -> Object:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "50m", "memory": "100Mi"}}}
    spec = {"containers": [container], "nodeName": node} if node else {"containers": [container]}
    metadata = {"name": name, "namespace": "default", "labels": dict(labels or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def uses(prometheus: Pretended, config: SchedulerConfig, **used: tuple[int, int]) -> None:
    """What pods use, in millicores and bytes; their names with underscores."""
    asked = {str(query.signal): query.promql for query in queries(config.asked()).signals}
    for place, signal in enumerate(("pod.cpu", "pod.memory")):
        series = [
            {
                "metric": {"namespace": "default", "pod": name.replace("_", "-")},
                "value": [1.7e9, str(both[place])],
            }
            for name, both in used.items()
        ]
        body = {"status": "success", "data": {"resultType": "vector", "result": series}}
        prometheus.table.say(asked[signal], json.dumps(body).encode())


async def asked(scheduler: SchedulerProcess, verb: str, pod: Object) -> Any:
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(NAMES)})
    url = f"{scheduler.listening.url}/{verb}"
    async with aiohttp.ClientSession() as session, session.post(url, data=body) as answer:
        assert answer.status == 200
        return await answer.json(content_type=None)


async def refused(scheduler: SchedulerProcess, pod: Object) -> dict[str, str]:
    return dict((await asked(scheduler, "filter", pod))["FailedNodes"] or {})


async def scores(scheduler: SchedulerProcess, pod: Object) -> dict[str, int]:
    return {one["Host"]: one["Score"] for one in await asked(scheduler, "prioritize", pod)}


@asynccontextmanager
async def busy(story: Story, prometheus: Pretended) -> AsyncIterator[SchedulerProcess]:
    """A scheduler, and two pods that use most of their nodes: a prod pod on n1, a batch pod on n2."""
    await story.client.create(PODS, pod_of("web-1", "n1"), "default")
    await story.client.create(PODS, pod_of("job-1", "n2", BATCH), "default")
    text = CONFIG.format(port=story.port, url=prometheus.url)
    config = build_document(SCHEDULER, text.encode(), "scheduler.yaml", {}).config
    uses(prometheus, config, web_1=(3000, 12 << 30), job_1=(3000, 12 << 30), stranger=(4000, 1))
    async with story.scheduling(config) as scheduler:
        await until(lambda: len(scheduler.facts.table.pods.usages) == 2, "what both pods use")
        yield scheduler


async def test_prod_pods_go_where_prod_pods_use_little() -> None:
    async with (
        pretending(CALM | {"n2": (80.0, 80.0)}) as prometheus,
        telling(prometheus.url, NAMES) as story,
        busy(story, prometheus) as scheduler,
    ):
        new, later = pod_of("new"), pod_of("later", labels=BATCH)
        assert list(await refused(scheduler, new)) == ["n1"]
        assert "cpu would be at" in (await refused(scheduler, new))["n1"]
        given = await scores(scheduler, new)
        assert given["n1"] < 30 < 90 < given["n2"]
        assert list(await refused(scheduler, later)) == ["n2"], "by what the whole node uses"
        given = await scores(scheduler, later)
        assert given["n2"] < 30 < 80 < given["n1"]


async def test_what_a_pod_uses_is_prod_usage_while_the_pod_is_prod() -> None:
    async with (
        pretending(CALM) as prometheus,
        telling(prometheus.url, NAMES) as story,
        busy(story, prometheus) as scheduler,
    ):
        table = scheduler.facts.table
        assert table.terms("n1").aware.prod.cpu >= 3000
        assert table.terms("n2").aware.prod == Amount()
        await story.client.patch(PODS, "web-1", {"metadata": {"labels": BATCH}}, "default")
        await until(lambda: table.terms("n1").aware.prod == Amount(), "the pod to be batch")
        await story.client.delete(PODS, "job-1", "default", grace=0)
        await until(lambda: len(table.pods.usages) == 1, "the other's use alone")


async def test_requests_go_before_what_pods_use_is_joined() -> None:
    clock = ManualClock()
    nowhere = Client(Connection("http://127.0.0.1:9", "nobody"))
    facts = TableFeed(LoadTable(LoadSettings()), Mock(), nowhere, clock)
    used = PodUsage(Amount(1, 1), clock.time())
    latest = UsageSnapshot(pods={f"default/p-{number}": used for number in range(50_000)})
    poller = Mock(changed=Watched(), latest=latest)
    following = asyncio.create_task(facts.follow(poller))
    poller.changed.changed()
    given_way = 0
    while not facts.sampled.count:
        given_way += 1
        await asyncio.sleep(0)
    following.cancel()
    assert given_way > 40


async def test_what_was_measured_too_long_ago_is_not_measured() -> None:
    async with (
        pretending(CALM) as prometheus,
        telling(prometheus.url, NAMES) as story,
        busy(story, prometheus) as scheduler,
    ):
        facts = scheduler.facts
        old = PodUsage(Amount(3000, 1), facts.table.now - facts.table.settings.staleness.after - 1)
        latest = UsageSnapshot(pods={"default/web-1": old})
        poller = Mock(changed=Watched(), latest=latest)
        following = asyncio.create_task(facts.follow(poller))
        poller.changed.changed()
        await until(lambda: not facts.table.pods.usages, "nothing to be measured")
        following.cancel()
