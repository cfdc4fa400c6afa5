"""The Prometheus endpoint of a process, loaded only where an address is given."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from colocate import telemetry
from colocate.errors import UserError, system_reason
from colocate.model.values import Address


@asynccontextmanager
async def serving(address: Address) -> AsyncIterator[str]:
    """Serve /metrics for as long as the body runs; yields the address that was taken, or 'off'."""
    where = address.split_host()
    if where is None:
        yield "off"
        return
    # An agent on every node pays for what it loads, and most serve no metrics.
    from colocate.http import metrics_server

    host, port = where
    telemetry.register_metrics()
    try:
        listener = await metrics_server.listen(host, port)
    except OSError as error:
        reason = system_reason(error)
        raise UserError(
            f"metrics.address: cannot listen on {address} ({reason}); choose another address, or 'off'"
        ) from error
    try:
        yield f"{host}:{listener.port}"
    finally:
        await listener.end()
