"""Calling a plugin's own code, which may block, hang, or raise anything at all, without being harmed by it.

Plain functions run in threads of their own. They are daemons, so that one that hangs neither keeps the process
from stopping nor takes a place in a pool that others need; and there are only so many of them for one plugin.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from colocate.wire.rpc import cancelled

Result = TypeVar("Result")

MOST_THREADS = 8


class PluginFailed(Exception):
    """Stands for an exception that must not travel further, such as SystemExit; says what it was."""


class Caller:
    """Calls the code of one plugin."""

    def __init__(self) -> None:
        self._threads = 0

    async def __call__(self, function: Callable[..., Result | Awaitable[Result]], *args: Any) -> Result:
        """Call a plain function in a thread, a coroutine function here. Raises nothing but Exceptions."""
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
            raise PluginFailed(f"{self._threads} earlier calls have not come back; no further one is made")
        call = _Call(function, args)
        self._threads += 1
        call.done.add_done_callback(lambda _: self._ended())
        threading.Thread(target=call.run, daemon=True, name=f"plugin {function.__qualname__}").start()
        return await asyncio.shield(call.done)

    def _ended(self) -> None:
        self._threads -= 1


def tamed(error: BaseException) -> Exception:
    """The error as one that ends a call and nothing else. A cancellation of this very task is raised again."""
    if isinstance(error, asyncio.CancelledError) and cancelled():
        raise error
    if isinstance(error, Exception):
        return error
    return PluginFailed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


class _Call(Generic[Result]):
    """One call in a thread; its result is a future of the event loop that made it."""

    def __init__(self, function: Callable[..., Result], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Result] = self._loop.create_future()

    def run(self) -> None:
        try:
            result = self._function(*self._args)
        except BaseException as error:  # noqa: BLE001 -- whatever it is, it must not end the thread unseen
            self._tell(self._failed, error)
        else:
            self._tell(self._returned, result)

    def _tell(self, what: Callable[[Any], None], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, value)
        except RuntimeError:
            pass  # The process has stopped meanwhile; nobody waits any more.

    def _returned(self, result: Result) -> None:
        self.done.set_result(result)

    def _failed(self, error: BaseException) -> None:
        # A future takes no StopIteration, and a loop would end for a SystemExit.
        odd = not isinstance(error, Exception) or isinstance(error, StopIteration)
        self.done.set_exception(PluginFailed(f"{type(error).__name__}: {error}") if odd else error)
        self.done.exception()  # Looked at, even if the caller's deadline has passed.
