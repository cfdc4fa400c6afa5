"""A CRI proxy in this process, between a socket of a test's choice and a runtime."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from colocate.agent import cri_proxy
from colocate.agent.cri_proxy import ProxySockets
from colocate.clock import Clock
from colocate.runtime import cri_socket
from colocate.runtime.cri_proxy import CriProxy
from colocate.runtime.events import ContainerEvents


@asynccontextmanager
async def proxying(
    runtime: Path, listen: Path, events: ContainerEvents, clock: Clock | None = None
) -> AsyncIterator[CriProxy]:
    """Serve on `listen` for as long as the body runs."""
    sockets = ProxySockets(runtime, listen)
    async with (
        cri_proxy.connected(sockets, events, clock) as (proxy, server),
        cri_socket.serving(server, listen, runtime),
    ):
        running = asyncio.create_task(proxy.run())
        try:
            yield proxy
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
