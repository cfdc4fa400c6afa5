"""A server for each test, which must leave nothing behind, and clients for it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from colocate.clock import ManualClock, SystemClock
from colocate.lab.api.registry import Identities
from colocate.lab.api.resources import NODES
from colocate.lab.api.server import ApiServer
from colocate.lab.api.store import ObjectStore
from tests.support import components

from .asking import Http
from .controlled import Cluster
from .kubectl import Kubectl
from .running import Runner
from .samples import bare

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings" / "api"


@pytest.fixture
def recorded() -> Callable[[str], Any]:
    """A recorded document by its name."""

    def read(name: str) -> Any:
        text = (RECORDINGS / name).read_text()
        return [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)

    return read


@asynccontextmanager
async def serving(server: ApiServer, tls: bool = False) -> AsyncIterator[Http]:
    """A running server, and its administrator's client."""
    await server.start(tls=tls)
    try:
        if tls:
            yield Http(None, server.url, "")
        else:
            async with aiohttp.ClientSession() as session:
                yield Http(session, server.url, server.admin().token)
    finally:
        await server.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> ApiServer:
    """A server that does not run yet, on a clock that the test moves."""
    return ApiServer(ObjectStore(), clock, Identities(seed=1))


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Http]:
    """A client of the running server."""
    async with serving(server) as http:
        yield http
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"


@pytest.fixture
async def cluster(server: ApiServer, clock: ManualClock) -> AsyncIterator[Cluster]:
    cluster = Cluster(server, clock)
    working = asyncio.create_task(cluster.controllers.run())
    yield cluster
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


def _clients() -> list[str]:
    """An old one and a new one, and those that COLOCATE_KUBECTL names; where these are absent, that of the PATH."""
    named = os.environ.get("COLOCATE_KUBECTL", "").split(os.pathsep)
    unpacked = [components.find("kubectl-1.20"), components.find("kubectl-1.36")]
    found = [path for path in dict.fromkeys([*unpacked, *named]) if path]
    return found or [path for path in [components.find("kubectl")] if path]


@pytest.fixture(params=_clients() or [""])
async def kubectl(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """A real kubectl with a cluster of two nodes, on which pods run as soon as they are made."""
    if not request.param:
        missing = "kubectl is not on the PATH: install it, or name one in COLOCATE_KUBECTL"
        if os.environ.get("CI") == "true":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    server = ApiServer(ObjectStore(), SystemClock())
    recorded_node = json.loads((RECORDINGS / "node.json").read_text())
    for name, labels in (("vm", {}), ("worker", {"node-role.kubernetes.io/worker": ""})):
        node = bare(recorded_node)
        node["metadata"] |= {"name": name, "labels": node["metadata"]["labels"] | labels}
        server.registry.create(NODES, "", node)
    await server.start()
    running = asyncio.create_task(Runner(server.registry).run())
    try:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        client = Kubectl(request.param, tmp_path, server)
        await client.find_version()
        yield client
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop()
