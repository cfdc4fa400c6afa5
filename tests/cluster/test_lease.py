"""A lease is held by one at a time, whatever happens to the server between them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from colocate.clock import SystemClock
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.lease import LeaseHolder, LeaseSettings
from colocate.cluster.resources import LEASES, Object
from colocate.lab.api.server import ApiServer
from tests.cluster.serving import connect, new_server
from tests.support.waiting import until

NAMESPACE, NAME = "kube-system", "one-at-a-time"


class Skipping(SystemClock):
    """The machine's time, of which a test may leave some out."""

    skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = new_server(SystemClock())
    await server.start(tls=False)
    yield server
    await server.stop()


@asynccontextmanager
async def client_of(server: ApiServer) -> AsyncIterator[Client]:
    async with connect(server.url, SystemClock(), settings=ClientSettings(attempts=1, timeout=2)) as client:
        yield client


def holder(
    client: Client, identity: str, clock: SystemClock | None = None, duration: float = 60
) -> LeaseHolder:
    settings = LeaseSettings(namespace=NAMESPACE, name=NAME, identity=identity, duration=duration)
    return LeaseHolder(client, settings, clock or SystemClock())


async def spec(client: Client) -> Object:
    found = (await client.get(LEASES, NAME, NAMESPACE))["spec"]
    assert isinstance(found, dict)
    return found


async def test_of_two_one_holds_it_and_the_other_takes_it_when_it_is_given_back(server: ApiServer) -> None:
    async with client_of(server) as client:
        one, other = holder(client, "one", duration=1), holder(client, "other", duration=1)
        async with one.running():
            await until(lambda: one.held, "the first to hold it")
            async with other.running():
                seen = one.changed.count
                assert not other.held
                assert (await spec(client))["holderIdentity"] == "one"
                assert one.changed.count == seen
        async with other.running():
            await until(lambda: other.held, "the second to hold it")
            assert not one.held
            assert (await spec(client))["leaseTransitions"] == 1
        assert (await spec(client))["holderIdentity"] == ""


async def test_who_cannot_renew_holds_it_no_more_before_another_may(server: ApiServer) -> None:
    clock = Skipping()
    async with client_of(server) as client:
        one = holder(client, "one", clock)
        async with one.running():
            await until(lambda: one.held, "it to be held")
            clock.skipped = 60 * 2 / 3
            assert not one.held, "two thirds of its duration are over without a renewal"


async def test_a_holder_that_died_is_outlived(server: ApiServer) -> None:
    clock = Skipping()
    body: Object = {
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 1, "leaseTransitions": 4},
    }
    async with client_of(server) as client:
        await client.create(LEASES, body, NAMESPACE)
        one = holder(client, "one", clock, duration=2)
        async with one.running():
            await until(lambda: one.held, "the dead one's time to run out")
            assert (await spec(client))["leaseTransitions"] == 5


async def test_a_lease_that_another_has_taken_is_lost_at_once(server: ApiServer) -> None:
    async with client_of(server) as client:
        one = holder(client, "one", duration=1)
        async with one.running():
            await until(lambda: one.held, "it to be held")
            await client.patch(
                LEASES, NAME, {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 600}}, NAMESPACE
            )
            await until(lambda: not one.held, "it to be lost")
        assert (await spec(client))["holderIdentity"] == "thief", "what is another's is not given back"


async def test_who_takes_again_what_another_had_meanwhile_is_told(server: ApiServer) -> None:
    async with client_of(server) as client:
        one = holder(client, "one", duration=1)
        async with one.running():
            await until(lambda: one.held, "it to be held")
            seen = one.changed.count
            await client.patch(LEASES, NAME, {"spec": {"holderIdentity": ""}}, NAMESPACE)
            await until(lambda: one.changed.count == seen + 2 and one.held, "the loss and the lease")


async def test_without_the_right_to_it_the_reason_is_kept(server: ApiServer) -> None:
    async with connect(server.url, SystemClock(), "wrong", ClientSettings(attempts=1)) as client:
        one = holder(client, "one", duration=1)
        async with one.running():
            await until(lambda: bool(one.error), "a reason")
            assert not one.held
            assert "leases" in one.error


async def test_a_fault_of_our_own_is_told_and_the_lease_is_asked_for_again(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise OverflowError("too large")

    async with client_of(server) as client:
        one = holder(client, "one", duration=1)
        monkeypatch.setattr(client, "get", broken)
        async with one.running():
            await until(lambda: one.error == "OverflowError: too large", "the fault")
            monkeypatch.undo()
            await until(lambda: one.held, "the lease")


async def test_who_stands_back_gives_it_away_at_once_and_asks_again_later(server: ApiServer) -> None:
    clock = Skipping()
    async with client_of(server) as client:
        one, other = holder(client, "one", clock, duration=1), holder(client, "other", duration=1)
        async with one.running():
            await until(lambda: one.held, "the first to hold it")
            one.stand_back(1000)
            assert not one.held
            async with other.running():
                await until(lambda: other.held, "the second to hold it")
            assert not one.held
            clock.skipped = 1000
            await until(lambda: one.held, "the first to come back")


async def test_of_two_that_leave_at_once_one_has_it_in_the_end(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking, goes_on = asyncio.Event(), asyncio.Event()
    async with client_of(server) as client, client_of(server) as slow:
        put = slow.replace

        async def replace(*given: Any) -> object:
            taking.set()
            await goes_on.wait()
            return await put(*given)

        monkeypatch.setattr(slow, "replace", replace)
        one, other = holder(client, "one"), holder(slow, "other")
        async with one.running():
            await until(lambda: one.held, "the first to hold it")
            async with other.running():
                left = asyncio.create_task(one.leave(30))
                await taking.wait()
                leaving = asyncio.create_task(other.leave(30))
                goes_on.set()
                assert sorted(await asyncio.gather(left, leaving)) == [False, True]
