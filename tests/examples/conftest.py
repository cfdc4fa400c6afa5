"""What the tests of examples share."""

from collections.abc import AsyncIterator

import pytest
from tests.cluster.serving import new_server

from colocate.clock import ManualClock
from colocate.lab.api.server import ApiServer


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """An API server that knows its administrator."""
    running = new_server(ManualClock())
    await running.start(tls=False)
    yield running
    await running.stop()
