"""Time that is moved by hand, and the asyncio idioms that lean on it."""

import asyncio

import pytest

from colocate.aio import Watched, deadline, first
from colocate.clock import ManualClock


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    clock = ManualClock()
    woken: list[tuple[float, float]] = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2)]
    await clock.advance(2.5)
    assert woken == [(1, 1), (2, 2)]
    await clock.advance(0.5)
    await asyncio.gather(*tasks)
    assert woken[2:] == [(3, 3)]


async def test_a_sleeper_that_sleeps_again_is_woken_again_in_one_go() -> None:
    clock = ManualClock()
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await clock.sleep(10)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(tick())
    await clock.advance(35)
    assert ticks == [10, 20, 30]
    task.cancel()


async def test_the_wall_clock_jumps_and_the_other_does_not() -> None:
    clock = ManualClock(start=1000)
    clock.jump(-500)
    assert (clock.time(), clock.monotonic()) == (500, 0)


async def test_a_deadline_ends_its_body_and_nothing_else() -> None:
    clock = ManualClock()

    async def wait() -> str:
        try:
            async with deadline(clock, 5):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "in time"

    task = asyncio.create_task(wait())
    await clock.advance(4.9)
    early = task.done()
    await clock.advance(0.1)
    assert (early, await task) == (False, "late")


async def test_a_body_that_is_cancelled_from_outside_is_cancelled() -> None:
    async def wait() -> None:
        async with deadline(ManualClock(), 5):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_first_says_who_was_first_and_cancels_the_others() -> None:
    cancelled = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    assert await first(never(), asyncio.sleep(0)) == 1
    assert cancelled.is_set()


async def test_first_raises_the_error_of_the_first() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await first(asyncio.Event().wait(), fail())


async def test_no_change_is_lost_and_many_are_one() -> None:
    watched = Watched()
    watched.changed()
    watched.changed()
    assert await watched.beyond(0) == 2
    waiting = [asyncio.create_task(watched.beyond(2)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    watched.changed()
    assert await asyncio.gather(*waiting[1:]) == [3, 3]


async def test_the_last_words_of_a_task_that_is_cancelled_have_a_deadline_like_any_other() -> None:
    clock = ManualClock()
    said: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                async with deadline(clock, 5):
                    await asyncio.Event().wait()
            except TimeoutError:
                said.append("in vain")

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    await clock.until_someone_sleeps()
    await clock.advance(5)
    await asyncio.wait([task])
    assert said == ["in vain"]
    assert task.cancelled()
