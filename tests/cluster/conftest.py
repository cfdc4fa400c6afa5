"""A server for each test, a client for it, and nothing left behind."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.lab.api.server import ApiServer

from .serving import Scripted, connect, new_server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[ApiServer]:
    """A running server without TLS, on the test's clock."""
    running = new_server(clock)
    await running.start(tls=False)
    yield running
    await running.stop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"


@pytest.fixture
async def client(server: ApiServer, clock: ManualClock) -> AsyncIterator[Client]:
    async with connect(server.url, clock) as made:
        yield made


@pytest.fixture
async def scripted() -> AsyncIterator[Scripted]:
    async with Scripted().running() as running:
        yield running


@pytest.fixture
async def asking(scripted: Scripted, clock: ManualClock) -> AsyncIterator[Client]:
    """A client of a server that answers as the test has written."""
    async with connect(scripted.url, clock) as client:
        yield client


@pytest.fixture
async def with_tls(clock: ManualClock) -> AsyncIterator[ApiServer]:
    server = new_server(clock)
    await server.start()
    yield server
    await server.stop()
