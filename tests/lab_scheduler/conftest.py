"""A cluster without sockets and kubelets: objects, the scheduler, and a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from colocate.clock import ManualClock
from colocate.lab.scheduler.configuration import Configuration
from colocate.lab.scheduler.loop import Scheduler

from .lab import Lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    yield Lab(ManualClock())


@asynccontextmanager
async def scheduling(
    lab: Lab, configuration: Configuration | None = None, seed: int = 1
) -> AsyncIterator[Scheduler]:
    """A scheduler at work, which must leave no task behind."""
    before = asyncio.all_tasks()
    async with Scheduler(lab.registry, configuration, Random(seed), host="vm") as scheduler:
        await scheduler.settled()
        yield scheduler
    left = asyncio.all_tasks() - before
    assert not left, f"tasks left behind: {left}"
