"""The pytest plugin: the fixture `embedded_kubelet`, where pytest-asyncio is installed.

Nothing heavy is imported until a test asks for the fixture: this module is loaded by every pytest run of
every environment that has Colocate installed.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colocate.testing.node import TestNode

try:
    import pytest_asyncio
except ImportError:
    pass
else:

    @pytest_asyncio.fixture(name="embedded_kubelet")
    async def _embedded_kubelet() -> "AsyncIterator[TestNode]":
        """A node with an embedded kubelet, simulated pods and a clock that the test moves."""
        from colocate.testing.node import embedded_kubelet

        async with embedded_kubelet() as node:
            yield node
