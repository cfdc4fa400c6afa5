"""Heat as taints, with the rights of the example: they are enough, and none of them is too much."""

import pytest

from colocate.clock import SystemClock
from colocate.lab.cluster import MACHINE
from colocate.scheduler.process import running
from colocate.scheduler.settings import SchedulerConfig
from tests.scheduler.granting import FILES, one_hot
from tests.scheduler.story import Story, with_metrics_api
from tests.support.rights import Right, rights
from tests.support.waiting import until


def everything(story: Story) -> SchedulerConfig:
    """By taints, and by the metrics API where Prometheus says nothing of a node: this machine is one."""
    return with_metrics_api(story.tainting(), prometheus=True)


async def test_the_rights_of_the_example_are_enough() -> None:
    async with one_hot() as (story, client):
        async with running(everything(story), client, SystemClock()) as scheduler:
            await story.hot("n2", 4)
            await until(lambda: MACHINE in scheduler.facts.table.loads, "a sample of the metrics API")
        assert await story.heat("n2") == 0
        assert client.refused == []


async def test_an_extender_asks_for_nothing_but_what_its_own_file_allows() -> None:
    async with one_hot(files=FILES[:1]) as (story, client):
        async with running(story.config(), client, SystemClock()) as scheduler:
            await until(lambda: not scheduler.judge.unready(), "the scheduler to be ready")
            await until(lambda: "n2" in scheduler.facts.table.loads, "a sample")
        assert client.refused == []


async def test_taints_ask_for_nothing_but_what_their_file_allows_besides() -> None:
    async with one_hot(files=FILES[:2]) as (story, client):
        async with running(story.tainting(), client, SystemClock()):
            await story.hot("n2", 4)
        assert client.refused == []


@pytest.mark.parametrize("missing", rights(*FILES), ids=lambda missing: f"{missing[2]} {missing[1]}")
async def test_and_none_of_them_is_too_much(missing: Right) -> None:
    _, resource, verb = missing
    async with one_hot(missing) as (story, client):
        async with running(everything(story), client, SystemClock()):
            await until(lambda: bool(client.refused), f"{verb} {resource} to be refused")
        assert f"{verb} {resource}" in client.refused[0]
