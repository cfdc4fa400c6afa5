"""What the tests of the doctor share."""

from collections.abc import AsyncIterator

import pytest
from tests.cluster.serving import new_server
from tests.resources.lab_resources import ResourceLab, resource_lab

from colocate.clock import ManualClock
from colocate.lab.api.server import ApiServer
from colocate.lab.api.users import known


@pytest.fixture
async def lab() -> AsyncIterator[ResourceLab]:
    async with resource_lab() as made:
        yield made


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """An API server for the doctor, which knows its administrator, ann, and the scheduler's account."""
    account = known("system:serviceaccount:kube-system:colocate-scheduler")
    running = new_server(ManualClock(), tokens={"ann-token": known("ann"), "account-token": account})
    await running.start(tls=False)
    yield running
    await running.stop()
