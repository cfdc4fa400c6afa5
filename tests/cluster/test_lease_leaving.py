"""A process that ends leaves its lease to another holder or candidate, and takes it if there is none; two never
hold it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import msgspec
import pytest

from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.cluster.errors import ApiStatus, Conflict, Doing, Forbidden, NotFound, Unreachable
from colocate.cluster.lease import LeaseHolder, LeaseSettings
from colocate.cluster.resources import Object, Resource

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds for which a holder may take its leave."""
DOING = Doing("get", "leases.coordination.k8s.io")


class Stalling(ManualClock):
    """A clock by which a test can let time pass in which no process acts."""

    stalled = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.stalled

    def stall(self, seconds: float) -> None:
        self.stalled += seconds


class Kept:
    """The one lease, as the server has it."""

    def __init__(self, clock: Stalling) -> None:
        self.clock = clock
        self.version = 0
        self.spec: Object | None = None

    def put(self, **spec: object) -> None:
        self.version += 1
        self.spec = spec

    @property
    def holder(self) -> object:
        return (self.spec or {}).get("holderIdentity")


class Wire(Client):
    """One process' way to it, which may be slow, hang or be cut."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(Connection("http://127.0.0.1:1", "the test"), kept.clock)
        self._kept = kept
        self.takes = 0.0
        self.hangs_until = 0.0
        self.cut = False
        self.refused = False

    async def _reach(self) -> None:
        clock = self._kept.clock
        if self.cut:
            raise Unreachable("cut")
        if self.refused:
            raise Forbidden(DOING, ApiStatus())
        for seconds in (self.takes, self.hangs_until - clock.monotonic()):
            if seconds > 0:
                await clock.sleep(seconds)

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        await self._reach()
        if self._kept.spec is None:
            raise NotFound(DOING, ApiStatus())
        found = {"metadata": {"resourceVersion": str(self._kept.version)}, "spec": self._kept.spec}
        return msgspec.convert(found, resource.shape)

    async def create(self, resource: Any, body: Any, *_: Any, **__: Any) -> Any:
        await self._reach()
        if self._kept.spec is not None:
            raise Conflict(DOING, ApiStatus())
        self._kept.put(**body["spec"])

    async def replace(self, resource: Any, name: str, body: Any, *_: Any, **__: Any) -> Any:
        await self._reach()
        if body["metadata"]["resourceVersion"] != str(self._kept.version):
            raise Conflict(DOING, ApiStatus())
        self._kept.put(**body["spec"])


class Replica(LeaseHolder):
    def __init__(self, kept: Kept, identity: str) -> None:
        self.wire = Wire(kept)
        settings = LeaseSettings(namespace="kube-system", name="one-at-a-time", identity=identity)
        super().__init__(self.wire, settings, kept.clock, lambda: 0.5)


class Scene:
    """Some replicas, of which the first holds the lease; and time, in which never two do."""

    def __init__(self, clock: Stalling, kept: Kept, replicas: Sequence[Replica]) -> None:
        self.clock = clock
        self.kept = kept
        self.replicas = replicas

    async def pass_(self, seconds: float) -> None:
        for _ in range(round(seconds * 20)):
            await self.clock.advance(0.05)
            assert sum(one.held for one in self.replicas) <= 1

    async def left(self, one: Replica, within: float = PATIENCE) -> bool:
        """What came of its leave, which has taken no longer than `within`."""
        leaving = asyncio.create_task(one.leave(PATIENCE))
        begun = self.clock.monotonic()
        while not leaving.done() and self.clock.monotonic() < begun + within + 0.1:
            await self.pass_(0.05)
        assert leaving.done(), f"it leaves for more than {within} s"
        return leaving.result()


@asynccontextmanager
async def replicas(*identities: str, kept: Kept | None = None) -> AsyncIterator[Scene]:
    kept = kept or Kept(Stalling())
    async with AsyncExitStack() as stack:
        scene = Scene(kept.clock, kept, [Replica(kept, identity) for identity in identities])
        for one in scene.replicas:
            await stack.enter_async_context(one.running())
            await scene.pass_(1.5)
        try:
            yield scene
        finally:
            for one in scene.replicas:
                one.wire.takes = one.wire.hangs_until = 0.0


def of_another(holds: float) -> Kept:
    """A lease whose holder does nothing any more."""
    kept = Kept(Stalling())
    kept.put(holderIdentity="dead", leaseDurationSeconds=holds, renewTime="2026-01-01T00:00:00.000000Z")
    return kept


@pytest.mark.parametrize("hangs", [0.0, 2.0, 2.5, 4.0])
@pytest.mark.parametrize("takes", [0.0, 0.5, 1.0, 1.6])
async def test_it_is_left_to_another_that_waits_however_slow_the_server(takes: float, hangs: float) -> None:
    async with replicas("one", "other") as scene:
        one, other = scene.replicas
        assert one.held
        for each in scene.replicas:
            each.wire.takes = takes
            each.wire.hangs_until = scene.clock.monotonic() + hangs
        assert not await scene.left(one)
        assert one.another == "other"
        await scene.pass_(2)
        assert other.held


async def test_the_time_for_others_begins_when_it_is_given_back() -> None:
    async with replicas("one") as scene:
        (one,) = scene.replicas
        one.wire.hangs_until = scene.clock.monotonic() + 2.5
        leaving = asyncio.create_task(one.leave(PATIENCE))
        free: float | None = None
        while not leaving.done():
            await scene.pass_(0.05)
            if free is None and not scene.kept.holder:
                free = scene.clock.monotonic()
            elif free is not None and scene.kept.holder:
                assert scene.clock.monotonic() >= free + 3
        assert leaving.result()


async def test_a_stall_of_our_own_takes_no_time_from_others() -> None:
    async with replicas("one") as scene:
        (one,) = scene.replicas
        leaving = asyncio.create_task(one.leave(PATIENCE))
        await scene.pass_(0.5)
        assert not scene.kept.holder
        scene.clock.stall(5)
        await scene.pass_(1.5)
        assert not scene.kept.holder
        await scene.pass_(1)
        assert leaving.result()


async def test_without_a_candidate_it_is_held_again_and_kept_to_the_end() -> None:
    async with replicas("one") as scene:
        (one,) = scene.replicas
        assert await scene.left(one, within=4)
        for _ in range(60):
            await scene.pass_(0.5)
            assert one.held
    assert not scene.kept.holder


async def test_who_has_left_without_it_takes_it_no_more() -> None:
    async with replicas("one", "other") as scene:
        one, other = scene.replicas
        assert not await scene.left(other, within=4)
        assert other.another == "one", "it was seen to renew it"
        assert await scene.left(one), "neither takes what the other leaves"


async def test_a_server_that_hangs_for_a_while_is_waited_for() -> None:
    async with replicas("one") as scene:
        (one,) = scene.replicas
        one.wire.hangs_until = scene.clock.monotonic() + 12
        assert await scene.left(one, within=17)


async def test_a_server_that_hangs_for_good_is_not() -> None:
    async with replicas("one") as scene:
        (one,) = scene.replicas
        one.wire.hangs_until = float("inf")
        assert not await scene.left(one)
        assert one.error == "the API server does not answer in time"
        assert not one.another


async def test_a_holder_that_cannot_reach_the_server_leaves_it_to_the_next() -> None:
    async with replicas("one", "other") as scene:
        one, other = scene.replicas
        one.wire.hangs_until = scene.clock.monotonic() + 20
        assert not await scene.left(one)
        assert one.another == "other"
        assert other.held


async def test_who_waits_behind_a_dead_one_outlives_it_and_takes_it() -> None:
    async with replicas("one", kept=of_another(15)) as scene:
        (one,) = scene.replicas
        await scene.pass_(5)
        assert await scene.left(one, within=12)


async def test_what_a_dead_one_had_is_left_to_another_that_waits_as_well() -> None:
    async with replicas("one", "other", kept=of_another(15)) as scene:
        one, other = scene.replicas
        assert not await scene.left(one)
        assert one.another == "other"
        assert other.held


async def test_a_holder_that_was_seen_to_do_nothing_does_not_count() -> None:
    async with replicas("one", kept=of_another(600)) as scene:
        (one,) = scene.replicas
        assert not await scene.left(one)
        assert not one.another
        assert not one.error


async def test_who_never_held_it_does_not_wait_for_a_server_that_fails() -> None:
    async with replicas("one", "other") as scene:
        _, other = scene.replicas
        other.wire.cut = True
        assert not await scene.left(other, within=0.1)
        assert (other.ever_held, other.error, other.another) == (False, "cut", "")


async def test_nor_does_a_holder_that_is_refused_it() -> None:
    async with replicas("one") as scene:
        (one,) = scene.replicas
        one.wire.refused = True
        assert not await scene.left(one, within=0.1)
        assert one.ever_held
        assert one.error


async def test_a_holder_that_stands_back_takes_it_at_the_end_where_no_other_has() -> None:
    async with replicas("one") as scene:
        (one,) = scene.replicas
        one.stand_back(1000)
        await scene.pass_(10)
        assert await scene.left(one, within=4)


@pytest.mark.parametrize("apart", [0.0, 0.3, 1.0, 2.9, 3.0, 3.1, 5.0])
async def test_of_several_that_leave_one_has_it_in_the_end(apart: float) -> None:
    async with replicas("one", "two", "three") as scene:
        leaving = []
        for one in scene.replicas:
            leaving.append(asyncio.create_task(one.leave(PATIENCE)))
            await scene.pass_(apart)
        await scene.pass_(PATIENCE)
        assert sorted(one.result() for one in leaving) == [False, False, True]
