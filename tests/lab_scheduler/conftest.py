"""A cluster without sockets and kubelets: objects, the scheduler, and a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from colocate.clock import ManualClock
from colocate.lab.scheduler.configuration import Configuration
from colocate.lab.scheduler.loop import Scheduler

from .lab import Lab


@pytest.fixture
def lab() -> Lab:
    return Lab(ManualClock())


@asynccontextmanager
async def scheduling(
    lab: Lab, configuration: Configuration | None = None, seed: int = 1
) -> AsyncIterator[Scheduler]:
    """A scheduler at work, which must leave no task behind."""
    before = asyncio.all_tasks()
    async with Scheduler(lab.registry, configuration, Random(seed), host="vm") as scheduler:
        await scheduler.settled()
        yield scheduler
    # The extender in the test has connections of its own, which end a little later.
    left = {task for task in asyncio.all_tasks() - before if "RequestHandler" not in repr(task.get_coro())}
    assert not left, f"tasks left behind: {left}"
