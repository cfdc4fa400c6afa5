"""The story of the seed, with the real process, a real Prometheus and real node-exporters."""

import asyncio
import json

import msgspec
import pytest

from colocate.load.terms import Freshness
from colocate.scheduler import client as questions
from colocate.scheduler.client import Where
from colocate.scheduler.loop.decision_log import Told
from colocate.scheduler.sections import Load, Policies
from colocate.scheduler.settings import Act
from tests.scheduler.story import spread, telling
from tests.support.prometheus import Metrics
from tests.support.waiting import until

pytestmark = pytest.mark.needs("prometheus", "node-exporter")
NODES = ("k8s-node-01", "k8s-node-02", "k8s-node-03")
HOT = "k8s-node-02"


async def calm(metrics: Metrics) -> None:
    for name in NODES:
        await metrics.node(name, memory_percent=20, cpu_percent=10)
    await metrics.settled()


@pytest.mark.parametrize("policy", ["mem-real-usage", "balanced"])
async def test_all_new_pods_avoid_the_node_whose_memory_is_full(metrics: Metrics, policy: str) -> None:
    await calm(metrics)
    async with telling(metrics, NODES) as story:
        config = story.config(load=Load(policy=Policies(policy)))
        async with story.scheduling(config) as scheduler:
            await story.deploy("nginx", 30)
            assert set(spread(await story.pods("nginx"))) == set(NODES)

            await metrics.node(HOT, memory_percent=90)
            await metrics.settled()
            table = scheduler.facts.table
            await until(
                lambda: (m := table.loads[HOT].memory) is not None and m.percent > 85, "the sample of 90 %"
            )
            pods = await story.restart("nginx", 30)

            assert HOT not in spread(pods)
            body = await questions.ask(
                Where(url=scheduler.listening.url), "/explain", pod=f"default/{pods[0].name}"
            )
            told = msgspec.json.decode(body, type=Told)
            assert told.followed is not False
            assert told.node == pods[0].node
            by_name = {node.node: node for node in told.explanation.nodes}
            assert set(by_name) == set(NODES), "the runner-up and the loser are told, too"
            hot, best = by_name[HOT], told.explanation.nodes[0]
            assert hot.score is not None
            assert best.score is not None
            assert hot.score < best.score - 15
            assert all(node.age is not None and node.age < 60 for node in by_name.values())
            assert all(node.freshness is Freshness.FRESH for node in by_name.values())
            parts = {part.name: part.value for reason in hot.policies for part in reason.parts}
            assert parts["used" if policy == "mem-real-usage" else "peak memory"] > 85, hot


async def test_pods_are_still_scheduled_when_prometheus_dies(metrics: Metrics) -> None:
    await calm(metrics)
    async with telling(metrics, NODES) as story, story.scheduling():
        await story.deploy("before", 6)
        await metrics.stop()
        await story.deploy("after", 30)
        assert set(spread(await story.pods("after"))) == set(NODES)


async def test_a_scheduler_that_starts_without_prometheus_is_ready_and_answers(metrics: Metrics) -> None:
    await metrics.stop()
    async with telling(metrics, NODES) as story, story.scheduling() as scheduler:
        await story.deploy("nginx", 30)
        told = scheduler.decisions.latest(1)[0]
        assert told.explanation.nodes[0].freshness is Freshness.NEVER
        assert max(spread(await story.pods("nginx")).values()) <= 11


async def test_nothing_fails_when_one_node_exporter_is_missing(metrics: Metrics) -> None:
    for name in NODES[:2]:
        await metrics.node(name, memory_percent=90 if name == HOT else 20, cpu_percent=10)
    await metrics.settled()
    async with telling(metrics, NODES) as story, story.scheduling() as scheduler:
        await story.deploy("nginx", 30)
        placed = spread(await story.pods("nginx"))
        assert HOT not in placed
        assert NODES[2] in placed, "a node without samples is neither favoured nor shunned"
        state = json.loads(await questions.ask(Where(url=scheduler.listening.url), "/state"))
        assert state["ready"]
        missing = next(one["missing"] for one in state["samples"] if one["name"] == "memory")
        assert NODES[2] in missing
        assert HOT not in missing


async def test_by_taints_any_scheduler_avoids_the_hot_node(metrics: Metrics) -> None:
    await calm(metrics)
    await metrics.node(HOT, memory_percent=90)
    await metrics.settled()
    async with telling(metrics, NODES, extender=False) as story:
        async with story.scheduling(story.config(Act.TAINTS)):
            await story.hot(HOT, 3, 4)
            assert [await story.heat(name) for name in NODES if name != HOT] == [0, 0]
            await story.deploy("nginx", 30, "default-scheduler")
            pods = await story.restart("nginx", 30)
            assert HOT not in spread(pods)

            await metrics.node(HOT, memory_percent=20)
            await story.hot(HOT, 0)
            assert set(spread(await story.restart("nginx", 30))) == set(NODES)
            await metrics.node(HOT, memory_percent=90)
            await story.hot(HOT, 3, 4)
        assert [await story.heat(name) for name in NODES] == [0, 0, 0], "they are removed at the end"


async def test_by_taints_nothing_fails_when_one_node_exporter_is_missing(metrics: Metrics) -> None:
    await calm(metrics)
    await metrics.node(HOT, memory_percent=90)
    await metrics.settled()
    nodes = (*NODES, "k8s-node-04")
    cool = set(nodes) - {HOT}
    async with (
        telling(metrics, nodes, extender=False) as story,
        story.scheduling(story.config(Act.TAINTS)) as scheduler,
    ):
        await story.hot(HOT, 3, 4)
        assert {await story.heat(name) for name in cool} == {0}
        await story.deploy("nginx", 30, "default-scheduler")
        assert set(spread(await story.pods("nginx"))) == cool, "one without samples is as good as the others"

        # Another one goes, whose rules say ever more while they drain.
        await metrics.exporter(NODES[0]).stop()
        said = [10.0]
        async with asyncio.timeout(30):
            while busy := await metrics.query(f'node_cpu_usage_avg_5m{{node="{NODES[0]}"}}'):
                said += busy.values()
                await scheduler.facts.sampled.beyond(scheduler.facts.sampled.count)
        assert max(said) > 60, "Prometheus itself takes it for busy"
        assert {await story.heat(name) for name in cool} == {0}
        assert set(spread(await story.restart("nginx", 30))) == cool
        missing: set[str] = set()
        async with asyncio.timeout(30):
            while not missing >= {NODES[0], nodes[3]}:
                await scheduler.facts.sampled.beyond(scheduler.facts.sampled.count)
                state = json.loads(await questions.ask(Where(url=scheduler.listening.url), "/state"))
                assert state["ready"]
                missing = set(next(one["missing"] for one in state["samples"] if one["name"] == "cpu"))


async def test_by_both_ways_at_once(metrics: Metrics) -> None:
    await calm(metrics)
    await metrics.node(HOT, memory_percent=90)
    await metrics.settled()
    async with telling(metrics, NODES) as story, story.scheduling(story.config(*Act)):
        await story.hot(HOT, 3, 4)
        await story.deploy("nginx", 30)
        assert HOT not in spread(await story.pods("nginx"))
