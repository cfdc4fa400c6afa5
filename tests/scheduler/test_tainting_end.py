"""Heat as taints, when something goes wrong and at the end: nothing is left behind, or it is said what."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from colocate.clock import SystemClock
from colocate.cluster.client import Client
from colocate.cluster.lease import LeaseHolder, LeaseSettings
from colocate.cluster.resources import LEASES
from colocate.cluster.transport import Request
from colocate.scheduler.loop.taints import REMOVAL
from colocate.scheduler.process import running
from colocate.scheduler.settings import SchedulerConfig, ServerEndpoint
from colocate.telemetry import Event
from tests.scheduler.pretending import CALM, NAMES, ONE_HOT, pretending
from tests.scheduler.story import Story, telling
from tests.support.logs import logged, told
from tests.support.waiting import until


class Lagging(Client):
    """Whose watches tell nothing; and whose writes, once sent, arrive when the test lets them."""

    def __init__(self, story: Story) -> None:
        super().__init__(story.client.connection)
        self.sent = asyncio.Event()
        self.arrives = asyncio.Event()
        self.lists = 0

    async def __aenter__(self) -> "Lagging":
        return self

    async def ask_once(self, request: Request) -> bytes:
        self.lists += request.doing.verb == "list" and request.doing.resource == "nodes"
        if request.method != "PATCH":
            return await super().ask_once(request)
        self.sent.set()
        # Who gives up waiting for the answer does not call the request back.
        return await asyncio.shield(asyncio.ensure_future(self._deliver(request)))

    async def _deliver(self, request: Request) -> bytes:
        await self.arrives.wait()
        return await super().ask_once(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        await asyncio.Event().wait()
        async with super().stream(request) as pieces:
            yield pieces


async def test_a_fault_in_one_round_is_told_and_the_next_round_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise OverflowError("integer division result too large for a float")

    async with pretending(CALM) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        with logged() as logs:
            async with story.scheduling(story.tainting()) as scheduler:
                monkeypatch.setattr(scheduler.tainting, "planned", broken)
                await until(lambda: bool(told(logs, Event.TAINTS_FAILED)), "the fault to be told")
                monkeypatch.undo()
                prometheus.uses["n2"] = (10.0, 95.0)
                await story.hot("n2", 4)


async def test_a_taint_that_no_watch_has_told_of_is_removed_at_the_end() -> None:
    async with (
        pretending(ONE_HOT) as prometheus,
        telling(prometheus.url, NAMES, extender=False) as story,
        Lagging(story) as client,
    ):
        client.arrives.set()
        async with running(story.tainting(), client, SystemClock()):
            await story.hot("n2", 4)
        assert await story.heat("n2") == 0


async def test_a_write_that_is_under_way_at_the_end_is_waited_for_and_removed() -> None:
    async with (
        pretending(ONE_HOT) as prometheus,
        telling(prometheus.url, NAMES, extender=False) as story,
        Lagging(story) as client,
    ):
        stop = asyncio.Event()

        async def run() -> None:
            async with running(story.tainting(), client, SystemClock()):
                await stop.wait()

        process = asyncio.create_task(run())
        await client.sent.wait()
        stop.set()
        ended, _ = await asyncio.wait([process], timeout=0.5)
        client.arrives.set()
        await process
        assert not ended, "a write is under way"
        assert await story.heat("n2") == 0


async def test_that_taints_stay_because_another_has_the_lease_is_told() -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        lease = LeaseSettings(namespace="kube-system", name="colocate-load-taints", identity="thief")
        thief = LeaseHolder(story.client, lease, SystemClock())
        with logged() as logs:
            async with AsyncExitStack() as of_thief, story.scheduling(story.tainting()) as scheduler:
                writer = scheduler.tainting
                assert writer is not None
                await story.hot("n2", 4)
                await until(lambda: not writer.planned().changes, "the watch to show it")
                stolen = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 600}}
                await story.client.patch(LEASES, lease.name, stolen, lease.namespace)
                await of_thief.enter_async_context(thief.running())
                await until(lambda: not writer.lease.held, "the lease to be lost")
        assert await story.heat("n2") == 4
        assert told(logs, Event.TAINTS_REMOVED) == told(logs, Event.TAINTS_LEFT) == []
        (passed,) = told(logs, Event.TAINTS_PASSED_ON)
        assert (passed["nodes"], passed["holder"]) == (1, "thief")


async def test_of_several_replicas_the_last_takes_the_taints_away_and_none_before_it() -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        first = story.tainting()
        elsewhere = msgspec.structs.replace(first.server, address=ServerEndpoint("127.0.0.1:0"))
        async with AsyncExitStack() as of_second:
            with logged() as logs:
                async with story.scheduling(first):
                    await story.hot("n2", 4)
                    # What it shows is all that the next one knows of how hot it was: at 87 %, it stays so.
                    prometheus.uses["n2"] = (10.0, 87.0)
                    second = msgspec.structs.replace(first, server=elsewhere)
                    other = await of_second.enter_async_context(story.scheduling(second))
                    writer = other.tainting
                    assert writer is not None
                assert await story.heat("n2") == 4
                await until(lambda: writer.lease.held, "the second to hold the lease")
                assert writer.planned().changes == ()
            assert [one["nodes"] for one in told(logs, Event.TAINTS_PASSED_ON)] == [1]
            assert told(logs, Event.TAINTS_REMOVED) == []
        assert await story.heat("n2") == 0


async def test_replicas_that_stop_together_leave_nothing_behind() -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        config = story.tainting()
        elsewhere = msgspec.structs.replace(config.server, address=ServerEndpoint("127.0.0.1:0"))
        configs = [msgspec.structs.replace(config, server=elsewhere) for _ in range(3)]
        stop = asyncio.Event()

        async def run(config: SchedulerConfig) -> None:
            async with story.scheduling(config):
                await stop.wait()

        replicas = [asyncio.create_task(run(config)) for config in configs]
        await story.hot("n2", 4)
        stop.set()
        await asyncio.gather(*replicas)
        assert await story.heat("n2") == 0


class Slipping:
    """A lease that is lost once nodes have been listed for the end."""

    error = another = ""
    ever_held = True

    def __init__(self, client: Lagging) -> None:
        self._client = client
        self._lists = client.lists

    async def leave(self, seconds: float) -> bool:
        return self.held

    @property
    def held(self) -> bool:
        return self._client.lists == self._lists


async def test_a_taint_that_was_not_removed_does_not_count_as_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        pretending(ONE_HOT) as prometheus,
        telling(prometheus.url, NAMES, extender=False) as story,
        Lagging(story) as client,
    ):
        client.arrives.set()
        with logged() as logs:
            async with running(story.tainting(), client, SystemClock()) as scheduler:
                await story.hot("n2", 4)
                monkeypatch.setattr(scheduler.tainting, "lease", Slipping(client))
        assert await story.heat("n2") == 4
        assert told(logs, Event.TAINTS_REMOVED) == []
        (left,) = told(logs, Event.TAINTS_LEFT)
        assert (left["nodes"], left["removed"]) == (1, 0)
        assert left["remedy"] == f"unless another replica writes them: {REMOVAL}", "it was lost, maybe to one"


class Lost:
    """A lease that could not be had at the end."""

    held = False
    another = ""

    def __init__(self, ever_held: bool, error: str) -> None:
        self.ever_held = ever_held
        self.error = error

    async def leave(self, seconds: float) -> bool:
        return False


@pytest.mark.parametrize(
    ("lease", "reason"),
    [
        pytest.param(Lost(True, "away"), "away", id="a writer, and the API server is away"),
        pytest.param(Lost(False, ""), "no process renews the lease", id="another, and the writer was killed"),
        pytest.param(Lost(False, "no right"), "", id="another, which never could read the lease"),
    ],
)
async def test_that_taints_stay_is_told_by_who_knows_of_them(
    lease: Lost, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pretending(ONE_HOT) as prometheus, telling(prometheus.url, NAMES, extender=False) as story:
        with logged() as logs:
            async with story.scheduling(story.tainting()) as scheduler:
                writer = scheduler.tainting
                assert writer is not None
                await story.hot("n2", 4)
                await until(lambda: not writer.planned().changes, "the watch to show it")
                monkeypatch.setattr(writer, "lease", lease)
        assert await story.heat("n2") == 4
        assert told(logs, Event.TAINTS_REMOVED) == told(logs, Event.TAINTS_PASSED_ON) == []
        left = told(logs, Event.TAINTS_LEFT)
        assert len(left) == bool(reason)
        for one in left:
            assert (one["nodes"], one["removed"]) == (1, 0)
            assert one["reason"].startswith(reason)
            assert one["remedy"] == f"unless another replica writes them: {REMOVAL}"
