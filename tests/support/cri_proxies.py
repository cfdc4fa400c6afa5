"""A CRI proxy in this process, between a socket of a test's choice and a runtime."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from colocate.clock import Clock, SystemClock
from colocate.runtime import cri_relay
from colocate.runtime.cri_proxy import CriProxy
from colocate.runtime.events import ContainerEvents


@asynccontextmanager
async def proxying(
    runtime: Path, listen: Path, events: ContainerEvents, clock: Clock | None = None
) -> AsyncIterator[CriProxy]:
    """Serve on `listen` for as long as the body runs."""
    async with cri_relay.connect(runtime) as channel:
        proxy = CriProxy(channel, events, clock or SystemClock())
        server = cri_relay.server(cri_relay.Relay(channel, proxy.watches, proxy.taps))
        server.add_insecure_port(f"unix:{listen}")
        await server.start()
        running = asyncio.create_task(proxy.run())
        try:
            yield proxy
        finally:
            await server.stop(None)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
