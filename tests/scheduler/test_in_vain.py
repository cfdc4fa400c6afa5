"""Who holds the lease and can write nothing leaves it to another."""

import msgspec

from colocate.clock import ManualClock, SystemClock
from colocate.model.values import Seconds
from colocate.scheduler.loop.taints import InVain
from colocate.scheduler.process import running
from colocate.scheduler.sections import Lease
from colocate.scheduler.settings import ServerEndpoint
from colocate.telemetry import Event
from tests.scheduler.granting import FILES, one_hot
from tests.support.logs import logged, told
from tests.support.rights import Right, rights
from tests.support.waiting import until


async def test_only_what_fails_for_long_is_in_vain() -> None:
    clock = ManualClock()
    tries = InVain(60)
    assert not tries.for_too_long(False, clock.monotonic())
    await clock.advance(59)
    assert not tries.for_too_long(False, clock.monotonic())
    await clock.advance(1)
    assert tries.for_too_long(None, clock.monotonic()), "nothing to try proves nothing"
    assert not tries.for_too_long(True, clock.monotonic())
    await clock.advance(60)
    assert not tries.for_too_long(False, clock.monotonic()), "it counts from the first failure since"


def right(resource: str, verb: str) -> Right:
    return next(one for one in rights(*FILES) if one[1:] == (resource, verb))


async def test_a_replica_whose_writes_are_refused_for_good_lets_another_write() -> None:
    async with one_hot(without=right("nodes", "patch")) as (story, refused):
        config = story.tainting(lease=Lease(duration=Seconds(0.5)))
        elsewhere = msgspec.structs.replace(config.server, address=ServerEndpoint("127.0.0.1:0"))
        with logged() as logs:
            async with running(config, refused, SystemClock()) as one:
                lease = one.tainting.lease if one.tainting else None
                assert lease is not None
                await until(lambda: lease.held and bool(refused.refused), "a write to be refused")
                async with story.scheduling(msgspec.structs.replace(config, server=elsewhere)):
                    await story.hot("n2", 4)
                    assert not lease.held
        [said] = told(logs, Event.TAINTS_HANDED_OVER)
        assert said["reason"] == "no taint could be written"


async def test_so_does_one_that_never_learns_of_the_nodes() -> None:
    async with one_hot(without=right("pods", "list")) as (story, refused):
        config = story.tainting(lease=Lease(duration=Seconds(0.5)))
        with logged() as logs:
            async with running(config, refused, SystemClock()):
                await until(lambda: bool(told(logs, Event.TAINTS_HANDED_OVER)), "the lease to be left")
        [said] = told(logs, Event.TAINTS_HANDED_OVER)
        assert "has not read all pods of the cluster yet" in said["reason"]
