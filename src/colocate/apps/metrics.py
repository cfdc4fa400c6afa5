"""The Prometheus endpoint of a process, and what is told there of the CPUs that containers were given."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import start_http_server

from colocate.apps.config.values import Address
from colocate.errors import UserError
from colocate.telemetry import CPUS_BELOW_LIMIT, CPUS_SHORT

if TYPE_CHECKING:
    from colocate.cpus import CpuAllocator


@contextmanager
def serving(address: Address) -> Iterator[str]:
    """Serve /metrics for as long as the body runs; yields the address that was taken, or 'off'."""
    where = address.split_host()
    if where is None:
        yield "off"
        return
    host, port = where
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


def tell_cpus(allocator: "CpuAllocator") -> None:
    """Set the metrics of CPUs to what an allocator has given."""
    CPUS_BELOW_LIMIT.set(len(allocator.below_limit()))
    CPUS_SHORT.set(sum(1 for each in allocator.assignments.values() if each.short))
