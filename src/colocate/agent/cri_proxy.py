"""`colocate cri-proxy`: the process between the kubelet and its container runtime that places containers on CPUs.

SIGTERM and SIGINT stop it. SIGHUP reads the configuration again; a bad one is refused, and the old one stays in use.
It needs neither the API server nor an agent nor Prometheus.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import msgspec

from colocate import __version__, telemetry
from colocate.agent.schema import Config
from colocate.aio import Watched, first, with_signals
from colocate.clock import Clock, SystemClock
from colocate.cpus.placer.part import PlacementPart
from colocate.errors import UserError
from colocate.kubelet.paths import KubeletPaths
from colocate.runtime import cri_relay, cri_socket
from colocate.runtime.cri_proxy import CriProxy
from colocate.runtime.events import ContainerEvents
from colocate.telemetry import Event


class ProxySockets(msgspec.Struct, frozen=True):
    """The sockets on both sides of the proxy."""

    runtime: Path
    listen: Path


async def run_cri_proxy(load: Callable[[], Config], sockets: ProxySockets) -> None:
    """Run until SIGTERM or SIGINT; `load` reads the configuration, now and on SIGHUP."""
    if sockets.runtime == sockets.listen:
        raise UserError("--listen: it is the runtime's own socket; choose another path")
    config = load()
    telemetry.configure_logs(config.log.format, config.log.level)
    stop = Watched()
    hung_up = with_signals(stop=stop.changed)
    placement = PlacementPart(config.cpus, kubelet=KubeletPaths(config.kubelet.root))
    placement.begin()
    async with connected(sockets, placement.placer) as (proxy, server):

        async def serve() -> None:
            """Serve the kubelet; at the end, calls under way finish while the placer still runs."""
            async with cri_socket.serving(server, sockets.listen, sockets.runtime):
                telemetry.logger().info(
                    Event.CRI_PROXY_STARTED,
                    version=__version__,
                    runtime=str(sockets.runtime),
                    listen=str(sockets.listen),
                    policy=config.cpus.policy,
                )
                _tell_systemd()
                await stop.beyond(0)

        async def place() -> None:
            """Place containers. If that fails, every call passes unchanged until the next start."""
            try:
                await first(proxy.run(), placement.run(), placement.reload_on_demand(hung_up, load))
            except Exception as error:  # noqa: BLE001
                proxy.let_pass()
                why = {"reason": str(error)} if isinstance(error, UserError) else {"exc_info": error}
                telemetry.logger().error(
                    Event.CRI_PLACEMENT_ENDED, effect="every call passes unchanged", **why
                )
                await asyncio.Event().wait()

        await first(serve(), place())
    telemetry.logger().info(Event.CRI_PROXY_STOPPED)


@asynccontextmanager
async def connected(
    sockets: ProxySockets, events: ContainerEvents, clock: Clock | None = None
) -> AsyncIterator[tuple[CriProxy, grpc.aio.Server]]:
    """A proxy and its server; the caller runs the one and serves the other."""
    async with cri_relay.connect(sockets.runtime) as channel:
        proxy = CriProxy(
            channel,
            events,
            clock or SystemClock(),
            on_connection=lambda: cri_socket.take_access(sockets.listen, sockets.runtime),
        )
        yield proxy, cri_relay.server(cri_relay.Relay(channel, proxy.watches, proxy.taps))


def _tell_systemd() -> None:
    """Tell systemd that the unit is up (Type=notify): the kubelet, which starts after it, finds the socket."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(b"READY=1", address.replace("@", "\0", 1))
        except OSError:
            return  # systemd times out by itself, and logs it.
