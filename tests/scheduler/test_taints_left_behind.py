"""Taints left behind: a scheduler that writes none warns of them, and the command that it names removes them."""

import asyncio
import os
from asyncio.subprocess import DEVNULL
from pathlib import Path

import pytest

from colocate.cluster.resources import NODES
from colocate.scheduler.loop.taints import REMOVAL, with_level
from colocate.telemetry import Event
from tests.scheduler.pretending import CALM, NAMES, pretending
from tests.scheduler.story import Story, telling
from tests.support.logs import logged, told
from tests.support.waiting import until

FOREIGN = {"key": "example.com/maintenance", "effect": "PreferNoSchedule"}


async def leave_behind(story: Story) -> None:
    for name, level in (("n1", 4), ("n2", 2)):
        await story.client.patch(NODES, name, {"spec": {"taints": with_level([FOREIGN], level)}})


async def test_who_does_not_write_taints_tells_of_them_and_leaves_them() -> None:
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        await leave_behind(story)
        with logged() as logs:
            async with story.scheduling(story.config()):
                await until(lambda: bool(told(logs, Event.TAINTS_FOUND)), "the taints to be told of")
        (found,) = told(logs, Event.TAINTS_FOUND)
        assert found["nodes"] == 2
        assert REMOVAL in found["remedy"]
        assert [await story.heat(name) for name in NAMES] == [4, 2, 0]


async def test_who_finds_none_says_nothing() -> None:
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        with logged() as logs:
            async with story.scheduling(story.config()) as scheduler:
                await scheduler.facts.sampled.beyond(2)
        assert told(logs, Event.TAINTS_FOUND) == []


@pytest.mark.needs("kubectl")
async def test_the_command_takes_ours_from_all_nodes_and_no_other(tmp_path: Path) -> None:
    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        await leave_behind(story)
        story.cluster.server.write_kubeconfig(tmp_path / "kubeconfig")
        environment = os.environ | {"KUBECONFIG": str(tmp_path / "kubeconfig"), "HOME": str(tmp_path)}
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", REMOVAL, env=environment, stdout=DEVNULL, stderr=DEVNULL
        )
        await process.wait()
        assert [await story.taints(name) for name in NAMES] == [[FOREIGN], [FOREIGN], []]
