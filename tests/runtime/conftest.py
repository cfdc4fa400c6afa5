"""A plugin that is connected to a runtime of the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.runtime.nri_pairs import NriPair, nri_pair


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[NriPair]:
    async with nri_pair(tmp_path) as pair:
        yield pair
