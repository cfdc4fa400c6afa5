"""Strict pods are kept off nodes that say that no CCX has room, and go where one has."""

import asyncio
from typing import Any

import msgspec
import pytest

from colocate.cluster.resources import NODES, PODS
from colocate.model.cpu_topology import FREE_CCXS
from colocate.scheduler.loop.strict_cpus import StrictByDefault, StrictPod, strict_refusals
from tests.scheduler.pretending import NAMES
from tests.scheduler.story import NAME, POOL, Story, telling, with_metrics_api
from tests.support.waiting import until

FULL = '{"free": {"1500": 2, "0": 2}, "strict": ["default"]}'
ROOM = '{"free": {"4000": 1, "0": 3}, "strict": ["default"]}'
BY_DEFAULT = '{"free": {"1500": 4}, "strict": ["default"], "default": ["default"]}'
NOT_GRANTED = '{"free": {"0": 4}, "strict": []}'


def strict(name: str, cpu: str = "2", wish: str = "strict") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "annotations": {"colocate.dev/cpus": wish} if wish else {}},
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
            await story.client.create(PODS, strict("loose", wish=""), "default")
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


async def test_pods_that_their_namespace_makes_strict_go_where_a_ccx_has_room() -> None:
    async with telling("http://127.0.0.1:9", NAMES, filter=True) as story:
        await say(story, n1=BY_DEFAULT, n2=ROOM, n3=BY_DEFAULT)
        async with story.scheduling(with_metrics_api(story.config(), prometheus=False)) as scheduler:
            await story.client.create(PODS, strict("silent", wish=""), "default")
            while not await node_of(story, "silent"):
                await scheduler.facts.nodes.synced()
            assert await node_of(story, "silent") == "n2", "no pod is strict by default there"
            await say(story, n2=BY_DEFAULT)
            await until(lambda: scheduler.facts.free_ccxs("n2") == BY_DEFAULT, "the news")
            await story.client.create(PODS, strict("later", wish=""), "default")
            await story.client.create(PODS, strict("small", "1500m", wish=""), "default")
            await story.client.create(PODS, strict("own-word", wish="shared"), "default")
            for name in ("own-word", "small"):
                while not await node_of(story, name):
                    await scheduler.facts.nodes.synced()
            assert not await node_of(story, "later")


def pod(annotations: dict[str, str], **cpus: str) -> StrictPod:
    containers = [{"name": name, "resources": {"requests": {"cpu": cpu}}} for name, cpu in cpus.items()]
    body = {
        "metadata": {"namespace": "default", "annotations": annotations},
        "spec": {"containers": containers},
    }
    return msgspec.convert(body, StrictPod)


@pytest.mark.parametrize(
    ("asked", "told", "refused"),
    [
        (pod({}, main="2"), BY_DEFAULT, True),
        (pod({}, main="1"), BY_DEFAULT, False),
        (pod({}, main="2"), FULL, False),
        (pod({"colocate.dev/cpus": "strict"}, main="2"), FULL, True),
        (pod({"colocate.dev/cpus": ""}, main="2"), BY_DEFAULT, False),
        (pod({"colocate.dev/cpus": "nonsense"}, main="2"), BY_DEFAULT, False),
        (pod({"colocate.dev/cpus.side": "shared"}, main="1", side="2"), BY_DEFAULT, False),
        (pod({"colocate.dev/cpus.side": "shared"}, main="2", side="1"), BY_DEFAULT, True),
        (pod({}, main="2"), '{"free": {"0": 4}, "strict": [], "default": ["default"]}', False),
    ],
)
def test_a_default_counts_for_containers_without_a_word_of_their_own(
    asked: StrictPod, told: str, refused: bool
) -> None:
    assert bool(strict_refusals(asked, ["n"], lambda _: told)) is refused


def test_a_namespace_is_strict_as_long_as_a_node_says_so() -> None:
    known = StrictByDefault()
    assert "default" not in known
    known.tell("n1", BY_DEFAULT)
    known.tell("n2", BY_DEFAULT)
    known.tell("n1", BY_DEFAULT)
    known.tell("n1", FULL)
    assert "default" in known
    known.tell("n2", "")
    assert "default" not in known
