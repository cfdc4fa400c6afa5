"""Calls a plugin's code safely: it may block, hang, or raise anything.

Plain functions run in threads of their own. These are daemon threads, so that a call that hangs neither keeps the
process from stopping nor occupies a shared pool. Their number per plugin is limited.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from colocate.aio import ThreadFailed, in_daemon
from colocate.wire.rpc import cancelled

Result = TypeVar("Result")

MOST_THREADS = 8


class PluginFailed(Exception):
    """Replaces an exception that must not be raised further, such as SystemExit; the message names it."""


class Caller:
    """Calls the code of one plugin."""

    def __init__(self) -> None:
        self._threads = 0

    async def __call__(self, function: Callable[..., Result | Awaitable[Result]], *args: Any) -> Result:
        """Call a plain function in a thread, or a coroutine function here. Raises only Exceptions."""
        try:
            if inspect.iscoroutinefunction(function):
                result: Result | Awaitable[Result] = function(*args)
            else:
                result = await self._in_thread(function, *args)
            return await result if inspect.isawaitable(result) else result
        except BaseException as error:
            raise tamed(error) from error

    async def _in_thread(self, function: Callable[..., Result], *args: Any) -> Result:
        if self._threads >= MOST_THREADS:
            raise PluginFailed(f"{self._threads} earlier calls have not returned; no further call is made")
        self._threads += 1
        done = in_daemon(partial(function, *args), f"plugin {function.__qualname__}")
        done.add_done_callback(lambda _: self._ended())
        return await asyncio.shield(done)

    def _ended(self) -> None:
        self._threads -= 1


def tamed(error: BaseException) -> Exception:
    """An Exception for any error, so that it ends only this call. A cancellation of this task is raised again."""
    if isinstance(error, asyncio.CancelledError) and cancelled():
        raise error
    if isinstance(error, ThreadFailed):
        return PluginFailed(str(error))
    if isinstance(error, Exception):
        return error
    return PluginFailed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
