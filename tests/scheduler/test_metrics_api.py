"""Where Prometheus is missing or away the metrics API fills in; where that is missing too, pods go on."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from colocate.apps.scheduler.process import Scheduler, running
from colocate.apps.scheduler.sections import Prometheus
from colocate.apps.scheduler.settings import SchedulerConfig
from colocate.clock import SystemClock
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.transport import Request
from colocate.cluster.usage.metrics_api import NODE_METRICS
from colocate.telemetry import Event
from tests.scheduler.granting import rules
from tests.scheduler.pretending import CALM, NAMES, internal_error, pretending
from tests.scheduler.story import Story, logged, spread, telling, told
from tests.scheduler.test_process import prioritized
from tests.support.waiting import until


class WithMetricsServer(Client):
    """Whose cluster seems to have a metrics-server, which the embedded one has not."""

    def __init__(self, story: Story, gibibytes: Mapping[str, int]) -> None:
        super().__init__(story.client.connection, settings=ClientSettings(attempts=1))
        self._gibibytes = gibibytes

    async def ask_once(self, request: Request) -> bytes:
        if "metrics.k8s.io" not in request.path:
            return await super().ask_once(request)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        items = [
            {
                "metadata": {"name": name},
                "timestamp": now,
                "window": "10s",
                "usage": {"cpu": "400m", "memory": f"{used}Gi"},
            }
            for name, used in self._gibibytes.items()
        ]
        listed = {"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}}
        return json.dumps(listed | {"items": items}).encode()


def with_metrics_api(config: SchedulerConfig, *, prometheus: bool) -> SchedulerConfig:
    usage = msgspec.structs.replace(
        config.usage,
        metrics_api=True,
        prometheus=config.usage.prometheus if prometheus else Prometheus(),
    )
    return msgspec.structs.replace(config, usage=usage)


@asynccontextmanager
async def scheduling(story: Story, client: Client, *, prometheus: bool) -> AsyncIterator[Scheduler]:
    config = with_metrics_api(story.config(), prometheus=prometheus)
    async with client, running(config, client, SystemClock()) as scheduler:
        await until(lambda: not scheduler.judge.unready(), "the scheduler to be ready")
        yield scheduler


async def test_without_prometheus_a_hot_node_is_avoided_by_the_metrics_api() -> None:
    async with telling("http://127.0.0.1:9", NAMES) as story:
        client = WithMetricsServer(story, {"n1": 2, "n2": 15, "n3": 3})
        async with scheduling(story, client, prometheus=False) as scheduler:
            await story.deploy("nginx", 9)
            assert "n2" not in spread(await story.pods("nginx"))
            memory = scheduler.facts.table.loads["n2"].memory
            assert memory is not None
            assert round(memory.percent) == round(100 * 15 / 16)


async def test_so_it_is_while_prometheus_is_away() -> None:
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES) as story:
        prometheus.ill(internal_error)
        client = WithMetricsServer(story, {"n1": 2, "n2": 15, "n3": 3})
        async with scheduling(story, client, prometheus=True):
            await story.deploy("nginx", 9)
            assert "n2" not in spread(await story.pods("nginx"))


async def test_without_either_all_nodes_are_alike_and_each_source_is_told_once() -> None:
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES) as story:
        prometheus.ill(internal_error)
        client = Client(story.client.connection, settings=ClientSettings(attempts=1))
        with logged() as logs:
            async with scheduling(story, client, prometheus=True) as scheduler:
                rounds = scheduler.facts.sampled.count
                await story.deploy("nginx", 9)
                assert len(set((await prioritized(scheduler.listening.url, "n1", "n2", "n3")).values())) == 1
                await until(lambda: scheduler.facts.sampled.count > rounds + 1, "more rounds")
        failed = [one for one in told(logs, Event.USAGE_FAILED) if one["signal"] == "metrics-api"]
        assert len(failed) == 1
        assert "metrics.k8s.io" in failed[0]["error"]
        assert "metrics-server" in failed[0]["error"]


def test_the_example_allows_to_ask_it() -> None:
    allowed = {"apiGroups": [NODE_METRICS.group], "resources": [NODE_METRICS.plural], "verbs": ["list"]}
    assert allowed in [one["rule"] for one in rules() if one["kind"] == "ClusterRole"]
