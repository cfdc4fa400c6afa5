"""The Prometheus endpoint of a process."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server

from colocate import telemetry
from colocate.apps.config.values import Address
from colocate.errors import UserError


@contextmanager
def serving(address: Address) -> Iterator[str]:
    """Serve /metrics for as long as the body runs; yields the address that was taken, or 'off'."""
    where = address.split_host()
    if where is None:
        yield "off"
        return
    host, port = where
    telemetry.register_metrics()
    try:
        server, thread = start_http_server(port, host)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(
            f"metrics.address: cannot listen on {address} ({reason}); choose another address, or 'off'"
        ) from error
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
