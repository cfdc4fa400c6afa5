"""What the tests of extended resources share."""

from collections.abc import AsyncIterator

import pytest
from tests.resources.lab_resources import ResourceLab, resource_lab


@pytest.fixture
async def lab() -> AsyncIterator[ResourceLab]:
    async with resource_lab() as made:
        yield made
