"""A real Prometheus, where a test asks for one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.prometheus import Metrics


@pytest.fixture
async def metrics(tmp_path: Path) -> AsyncIterator[Metrics]:
    async with Metrics(tmp_path / "metrics") as running:
        yield running
