"""Waiting for another task or process, never for time to pass."""

import asyncio
import io
from collections.abc import Callable


async def until(holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Return as soon as `holds()`; for conditions that nothing announces. Fails after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 -- what is awaited is outside of this event loop
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"waited {seconds:g} s in vain for {what}\n{_tasks()}") from None


def _tasks() -> str:
    """Where every task of this loop stands, to see what it was that did not come."""
    stacks = io.StringIO()
    for task in asyncio.all_tasks():
        try:
            task.print_stack(file=stacks)
        except TypeError:  # of a frame that has no line at this moment
            stacks.write(f"{task!r}\n")
    return stacks.getvalue()
