"""Where Prometheus is missing or away the metrics API fills in; where that is missing too, pods go on."""

import msgspec
import pytest

from colocate.clock import SystemClock
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.resources import NODES
from colocate.cluster.transport import Request
from colocate.cluster.usage.metrics_api import NODE_METRICS
from colocate.load.terms import Freshness
from colocate.scheduler.process import SchedulerProcess, running
from colocate.scheduler.sections import Load, Policies
from colocate.scheduler.settings import Act
from colocate.telemetry import Event
from tests.scheduler.pretending import CALM, NAMES, internal_error, pretending
from tests.scheduler.story import Story, spread, telling, with_metrics_api
from tests.scheduler.test_process import prioritized
from tests.support.logs import logged, told
from tests.support.rights import rights
from tests.support.waiting import until


class WithoutMetricsApi(Client):
    """Whose cluster seems to have no metrics-server, which the embedded one has."""

    def __init__(self, story: Story) -> None:
        super().__init__(story.client.connection, settings=ClientSettings(attempts=1))

    async def ask_once(self, request: Request) -> bytes:
        path = request.path.replace(NODE_METRICS.group, "nowhere.example.com")
        return await super().ask_once(msgspec.structs.replace(request, path=path))


async def used(story: Story, **gibibytes: int | None) -> None:
    """Make nodes use so much memory; None: as much as their pods do, which is nothing."""
    for name, memory in gibibytes.items():
        told = {"lab.colocate.dev/usage-memory": None if memory is None else f"{memory}Gi"}
        await story.client.patch(NODES, name, {"metadata": {"annotations": told}})


def percent(scheduler: SchedulerProcess, node: str) -> float | None:
    load = scheduler.facts.table.loads.get(node)
    return None if load is None or load.memory is None else load.memory.percent


@pytest.mark.parametrize("policy", ["mem-real-usage", "balanced"])
async def test_without_prometheus_all_new_pods_avoid_the_hot_node(policy: str) -> None:
    async with telling("http://127.0.0.1:9", NAMES) as story:
        await used(story, n1=3, n2=3, n3=3)
        config = with_metrics_api(story.config(load=Load(policy=Policies(policy))), prometheus=False)
        async with story.scheduling(config) as scheduler:
            await story.deploy("nginx", 30)
            assert set(spread(await story.pods("nginx"))) == set(NAMES)

            await used(story, n2=15)
            await until(lambda: percent(scheduler, "n2") == 100 * 15 / 16, "the sample of 94 %")
            assert "n2" not in spread(await story.restart("nginx", 30))
            latest = scheduler.decisions.latest(1)[0]
            by_name = {node.node: node for node in latest.explanation.nodes}
            assert set(by_name) == set(NAMES)
            assert all(node.freshness is Freshness.FRESH for node in by_name.values())

            await used(story, n2=3)
            await until(lambda: percent(scheduler, "n2") == 100 * 3 / 16, "the sample of 19 %")
            assert set(spread(await story.restart("nginx", 30))) == set(NAMES)


async def test_so_it_is_by_taints() -> None:
    async with telling("http://127.0.0.1:9", NAMES, extender=False) as story:
        await used(story, n1=3, n2=15, n3=3)
        async with story.scheduling(with_metrics_api(story.config(Act.TAINTS), prometheus=False)):
            await story.hot("n2", 3, 4)
            await story.deploy("nginx", 9, "default-scheduler")
            assert "n2" not in spread(await story.pods("nginx"))
            await used(story, n2=None)
            await story.hot("n2", 0)


async def test_so_it_is_while_prometheus_is_away() -> None:
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES) as story:
        prometheus.ill(internal_error)
        await used(story, n1=2, n2=15, n3=3)
        async with story.scheduling(with_metrics_api(story.config(), prometheus=True)):
            await story.deploy("nginx", 9)
            assert "n2" not in spread(await story.pods("nginx"))


async def test_a_node_that_the_metrics_api_leaves_out_is_neither_favoured_nor_shunned() -> None:
    async with telling("http://127.0.0.1:9", NAMES) as story:
        await used(story, n1=3, n2=15)
        unmeasured = {"metadata": {"annotations": {"lab.colocate.dev/usage-cpu": "none"}}}
        await story.client.patch(NODES, "n3", unmeasured)
        async with story.scheduling(with_metrics_api(story.config(), prometheus=False)) as scheduler:
            assert percent(scheduler, "n3") is None
            await story.deploy("nginx", 30)
            assert set(spread(await story.pods("nginx"))) == {"n1", "n3"}


async def test_without_either_all_nodes_are_alike_and_each_source_is_told_once() -> None:
    async with (
        pretending(CALM) as prometheus,
        telling(prometheus.url, NAMES) as story,
        WithoutMetricsApi(story) as client,
    ):
        prometheus.ill(internal_error)
        with logged() as logs:
            async with running(
                with_metrics_api(story.config(), prometheus=True), client, SystemClock()
            ) as scheduler:
                await until(lambda: not scheduler.judge.unready(), "the scheduler to be ready")
                rounds = scheduler.facts.sampled.count
                await story.deploy("nginx", 9)
                assert len(set((await prioritized(scheduler.listening.url, "n1", "n2", "n3")).values())) == 1
                await until(lambda: scheduler.facts.sampled.count > rounds + 1, "more rounds")
        failed = [one for one in told(logs, Event.USAGE_FAILED) if one["signal"] == "metrics-api"]
        assert len(failed) == 1
        assert "metrics.k8s.io" in failed[0]["error"]
        assert "metrics-server" in failed[0]["error"]


def test_the_example_allows_to_ask_it() -> None:
    assert [right[1:] for right in rights("scheduler/metrics-api-rbac.yaml")] == [
        (NODE_METRICS.plural, "list")
    ]
