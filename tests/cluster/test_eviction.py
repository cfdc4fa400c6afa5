"""Evictions: asked for until a budget allows it, given up at the deadline, told as data."""

import asyncio

import pytest

from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.eviction import Evicted, Eviction, EvictionSettings, evict
from colocate.cluster.resources import DISRUPTION_BUDGETS, NODES, PODS
from colocate.lab.api.server import ApiServer
from colocate.lab.api.users import known
from tests.lab_api.samples import budget, node, pod

from .serving import Scripted, connect


async def running_pod(client: Client, name: str) -> str:
    """A pod that runs and is ready; returns its uid."""
    made = await client.create(PODS, pod(name))
    await client.bind(name, "n1")
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await client.patch(PODS, name, ready, subresource="status")
    metadata = made["metadata"]
    assert isinstance(metadata, dict)
    return str(metadata["uid"])


@pytest.fixture
async def cluster(client: Client) -> Client:
    await client.create(NODES, node("n1"))
    return client


async def is_leaving(client: Client, name: str) -> bool:
    metadata = (await client.get(PODS, name))["metadata"]
    assert isinstance(metadata, dict)
    return "deletionTimestamp" in metadata


async def through(clock: ManualClock, work: "asyncio.Task[Eviction]") -> Eviction:
    while not work.done():
        await clock.advance(1)
        await asyncio.sleep(0.001)
    return work.result()


async def test_a_pod_without_a_budget_goes(cluster: Client) -> None:
    uid = await running_pod(cluster, "p")
    assert await evict(cluster, "p", uid=uid) == Eviction(Evicted.EVICTED, 1)
    assert await is_leaving(cluster, "p")


async def test_a_dry_run_asks_and_changes_nothing(cluster: Client) -> None:
    await running_pod(cluster, "p")
    assert await evict(cluster, "p", dry_run=True) == Eviction(Evicted.EVICTED, 1, dry_run=True)
    await cluster.create(DISRUPTION_BUDGETS, budget("b", "p", minAvailable=1))
    would = await evict(cluster, "p", dry_run=True)
    assert (would.outcome, would.attempts) == (Evicted.BLOCKED, 1)
    assert not await is_leaving(cluster, "p")


async def test_a_budget_is_waited_for(cluster: Client, clock: ManualClock) -> None:
    await running_pod(cluster, "p-1")
    await cluster.create(DISRUPTION_BUDGETS, budget("b", "p", minAvailable=1))
    work = asyncio.create_task(evict(cluster, "p-1"))
    await clock.until_someone_sleeps()
    for _ in range(5):
        await clock.advance(1)
        await asyncio.sleep(0.001)
    assert not work.done()
    await running_pod(cluster, "p-2")
    ended = await through(clock, work)
    assert ended.outcome is Evicted.EVICTED
    assert ended.attempts > 1


async def test_a_budget_that_does_not_give_way_ends_at_the_deadline(
    cluster: Client, clock: ManualClock
) -> None:
    await running_pod(cluster, "p")
    await cluster.create(DISRUPTION_BUDGETS, budget("b", "p", minAvailable=1))
    work = asyncio.create_task(
        evict(cluster, "p", settings=EvictionSettings(deadline=20), random=lambda: 0.0)
    )
    ended = await through(clock, work)
    # At 0, 1, 3, 7 and 15 seconds.
    assert (ended.outcome, ended.attempts) == (Evicted.BLOCKED, 5)
    assert "disruption budget" in ended.message
    assert clock.monotonic() < 25
    assert not await is_leaving(cluster, "p")


async def test_a_pod_that_is_gone_is_gone(cluster: Client) -> None:
    assert (await evict(cluster, "absent")).outcome is Evicted.GONE


async def test_a_new_pod_under_the_name_is_left_alone(cluster: Client) -> None:
    uid = await running_pod(cluster, "p")
    await cluster.delete(PODS, "p", grace=0)
    await running_pod(cluster, "p")
    assert (await evict(cluster, "p", uid=uid)).outcome is Evicted.GONE
    assert not await is_leaving(cluster, "p")


async def test_budgets_that_contradict_each_other_are_told_at_once(cluster: Client) -> None:
    await running_pod(cluster, "p")
    for name in ("b", "c"):
        await cluster.create(DISRUPTION_BUDGETS, budget(name, "p", minAvailable=1))
    ended = await evict(cluster, "p")
    assert (ended.outcome, ended.attempts) == (Evicted.REFUSED, 1)
    assert "more than one PodDisruptionBudget" in ended.message


async def test_a_missing_right_is_told_at_once(
    cluster: Client, server: ApiServer, clock: ManualClock
) -> None:
    server.authenticator.add_token("weak", known("weak"))
    async with connect(server.url, clock, "weak") as weak:
        ended = await evict(weak, "p")
    assert (ended.outcome, ended.attempts) == (Evicted.REFUSED, 1)
    assert ended.message.endswith("grant weak the verb create on pods/eviction in namespace default")


async def test_a_server_that_is_away_is_asked_until_the_deadline(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    scripted.cut()
    work = asyncio.create_task(evict(asking, "p", settings=EvictionSettings(deadline=5)))
    ended = await through(clock, work)
    assert ended.outcome is Evicted.UNREACHABLE
    assert ended.attempts >= 2


async def test_the_servers_wish_to_be_left_alone_is_respected(
    scripted: Scripted, asking: Client, clock: ManualClock
) -> None:
    scripted.say(429, Retry_After="30")
    scripted.say(201)
    work = asyncio.create_task(evict(asking, "p"))
    ended = await through(clock, work)
    assert ended == Eviction(Evicted.EVICTED, 2)
    assert clock.monotonic() >= 30


@pytest.mark.parametrize("code", [500, 401], ids=["a webhook that is away", "a token that has run out"])
async def test_what_may_pass_is_asked_for_again(
    scripted: Scripted, asking: Client, clock: ManualClock, code: int
) -> None:
    for _ in range(3):
        scripted.say(code)
    scripted.say(201)
    ended = await through(clock, asyncio.create_task(evict(asking, "p")))
    assert ended.outcome is Evicted.EVICTED
    assert ended.attempts >= 2


@pytest.mark.parametrize("code", [500, 401])
async def test_what_has_not_passed_by_the_deadline_is_no_refusal(
    scripted: Scripted, asking: Client, clock: ManualClock, code: int
) -> None:
    for _ in range(20):
        scripted.say(code)
    settings = EvictionSettings(deadline=0.0)
    ended = await through(clock, asyncio.create_task(evict(asking, "p", settings=settings)))
    assert ended.outcome is Evicted.UNREACHABLE
