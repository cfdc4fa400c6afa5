"""Asyncio helpers that several packages use."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from colocate.clock import Clock

T = TypeVar("T")


async def first(*coroutines: Coroutine[Any, Any, Any]) -> int:
    """Run all until one is done, and cancel the others. Returns the index of that one, or raises its error."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        pending = [task for task in tasks if not task.done()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    winner = next(index for index, task in enumerate(tasks) if task not in pending)
    tasks[winner].result()
    return winner


@asynccontextmanager
async def deadline(clock: Clock, seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the body once `seconds` have passed on `clock`."""
    body = asyncio.current_task()
    assert body is not None
    # A task that is being cancelled may clean up with a deadline of its own.
    cancelled_before = body.cancelling()
    expired = False

    async def expire() -> None:
        nonlocal expired
        await clock.sleep(seconds)
        expired = True
        body.cancel()

    timer = asyncio.create_task(expire())
    try:
        yield
    except asyncio.CancelledError:
        if expired and body.uncancel() <= cancelled_before:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()


async def seen_through(work: Coroutine[Any, Any, T]) -> T:
    """Run work that must not be interrupted: a cancellation waits until it ends."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise


async def in_thread(call: Callable[[], T]) -> T:
    """Run a short blocking call in a thread; a cancellation waits until it ends."""
    return await seen_through(asyncio.to_thread(call))


class ThreadFailed(Exception):
    """Replaces an exception that a future cannot hold, such as SystemExit, and names it."""


def in_daemon(call: Callable[[], T], name: str) -> "asyncio.Future[T]":
    """Run a blocking call that may never return in a daemon thread.

    Only the thread may end the future: wait for it with `asyncio.shield`.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def failed(error: BaseException) -> None:
        # A future cannot hold StopIteration, and SystemExit would end the loop.
        odd = not isinstance(error, Exception) or isinstance(error, StopIteration)
        done.set_exception(ThreadFailed(f"{type(error).__name__}: {error}") if odd else error)
        done.exception()  # Marks it as retrieved, even if the waiter has given up.

    def tell(what: Callable[[Any], None], value: object) -> None:
        try:
            loop.call_soon_threadsafe(what, value)
        except RuntimeError:
            pass  # The loop is closed; no task waits any more.

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 -- passed on to the waiter
            tell(failed, error)
        else:
            tell(done.set_result, result)

    threading.Thread(target=run, daemon=True, name=name).start()
    return done


class Watched:
    """A counter of changes that tasks can wait on. No change is lost; many at once wake a waiter once.

    A waiter passes the count that it has seen. An asyncio.Event that is cleared after a wait would lose a
    change that came in between.
    """

    def __init__(self) -> None:
        self.count = 0
        self._next: asyncio.Future[None] | None = None

    def changed(self) -> None:
        """Count a change and wake the waiters."""
        self.count += 1
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None

    async def beyond(self, seen: int) -> int:
        """Return the count as soon as it is greater than `seen`."""
        while self.count <= seen:
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._next)
        return self.count


def with_signals(stop: Callable[[], None]) -> Watched:
    """SIGTERM and SIGINT call `stop`; the result counts SIGHUPs, so that a task can wait for one."""
    loop = asyncio.get_running_loop()
    hung_up = Watched()
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, stop)
    loop.add_signal_handler(signal.SIGHUP, hung_up.changed)
    return hung_up


def without_signals() -> None:
    """Undo `with_signals`."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.remove_signal_handler(number)
