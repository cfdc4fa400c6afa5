"""Strict pods are kept off nodes that say that no CCX has room, and go where one has."""

import asyncio
from typing import Any

from colocate.cluster.resources import NODES, PODS
from colocate.model.cpu_topology import FREE_CCXS
from tests.scheduler.pretending import NAMES
from tests.scheduler.story import NAME, POOL, Story, telling, with_metrics_api
from tests.support.waiting import until

FULL = '{"free": {"1500": 2, "0": 2}, "strict": ["default"]}'
ROOM = '{"free": {"4000": 1, "0": 3}, "strict": ["default"]}'
NOT_GRANTED = '{"free": {"0": 4}, "strict": []}'


def strict(name: str, cpu: str = "2") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "annotations": {"colocate.dev/cpus": "strict"}},
        "spec": {
            "schedulerName": NAME,
            "nodeSelector": POOL,
            "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}],
        },
    }


async def say(story: Story, **texts: str | None) -> None:
    for node, text in texts.items():
        await story.client.patch(NODES, node, {"metadata": {"annotations": {FREE_CCXS: text}}})


async def node_of(story: Story, name: str) -> str:
    pod: dict[str, Any] = await story.client.get(PODS, name, "default")
    return str(pod["spec"].get("nodeName", ""))


async def test_strict_pods_go_where_a_ccx_has_room_and_wait_where_none_has() -> None:
    async with telling("http://127.0.0.1:9", NAMES, filter=True) as story:
        await say(story, n1=FULL, n2=ROOM, n3=FULL)
        async with story.scheduling(with_metrics_api(story.config(), prometheus=False)) as scheduler:
            for number in range(2):
                await story.client.create(PODS, strict(f"s{number}"), "default")
            placed = {}

            async def both() -> bool:
                placed.update({name: await node_of(story, name) for name in ("s0", "s1")})
                return all(placed.values())

            while not await both():
                await scheduler.facts.nodes.synced()
            assert placed == {"s0": "n2", "s1": "n2"}
            await say(story, n2=FULL)
            await until(lambda: scheduler.facts.free_ccxs("n2") == FULL, "the news")
            await story.client.create(PODS, strict("s2"), "default")
            await story.client.create(PODS, {**strict("loose"), "metadata": {"name": "loose"}}, "default")
            while not await node_of(story, "loose"):
                await scheduler.facts.nodes.synced()
            assert not await node_of(story, "s2")
            # A node that grants no such wish, one that says nothing and one that says garbage are not judged.
            await say(story, n1=NOT_GRANTED)
            await until(lambda: scheduler.facts.free_ccxs("n1") == NOT_GRANTED, "the news")
            # A pod that was refused is tried again when a node changes: maybe that was before the news came.
            for number in range(600):
                if await node_of(story, "s2"):
                    break
                await story.client.patch(NODES, "n1", {"metadata": {"annotations": {"look": str(number)}}})
                await asyncio.sleep(0.1)
            assert await node_of(story, "s2") == "n1"
