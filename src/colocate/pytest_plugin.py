"""The pytest plugin: the fixtures `embedded_kubelet`, for async tests, and `blocking_kubelet`, for others.

Async tests can run with pytest-asyncio, in either of its modes, or with anyio on asyncio. Every pytest run in an
environment with Colocate loads this module, so it imports the rest only when a test uses a fixture.
"""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from colocate.testing import BlockingNode, TestNode


async def _node() -> "AsyncIterator[TestNode]":
    from colocate.testing.node import embedded_kubelet

    async with embedded_kubelet() as node:
        yield node


# Two fixtures: pytest-asyncio marks the function that it gets as its own.
@pytest.fixture(name="_embedded_kubelet_by_anyio")
async def _by_anyio() -> "AsyncIterator[TestNode]":
    async for node in _node():
        yield node


try:
    import pytest_asyncio
except ImportError:
    pass
else:

    @pytest_asyncio.fixture(name="_embedded_kubelet_by_asyncio")
    async def _by_asyncio() -> "AsyncIterator[TestNode]":
        async for node in _node():
            yield node


@pytest.fixture(name="embedded_kubelet")
def _embedded_kubelet(request: pytest.FixtureRequest) -> "TestNode":
    """A node with an embedded kubelet, simulated pods and a clock that the test moves."""
    if "anyio_backend" in request.fixturenames:
        backend = request.getfixturevalue("anyio_backend")
        if (backend if isinstance(backend, str) else backend[0]) != "asyncio":
            pytest.fail(
                "embedded_kubelet runs on asyncio only; let the fixture anyio_backend return 'asyncio'"
            )
        return cast("TestNode", request.getfixturevalue("_embedded_kubelet_by_anyio"))
    if not request.config.pluginmanager.has_plugin("asyncio"):
        pytest.fail(
            "embedded_kubelet needs pytest-asyncio, or anyio and the marker anyio; "
            "a test without async uses blocking_kubelet"
        )
    return cast("TestNode", request.getfixturevalue("_embedded_kubelet_by_asyncio"))


@pytest.fixture(name="blocking_kubelet")
def _blocking_kubelet() -> "Iterator[BlockingNode]":
    """A node with an embedded kubelet for a test without async: each call returns when it is done."""
    from colocate.testing.blocking import blocking_kubelet

    with blocking_kubelet() as node:
        yield node
