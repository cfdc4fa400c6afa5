"""An update of 10 000 devices, from the change in the plugin to its arrival at the kubelet.

Compared with a bare gRPC stream that sends the very bytes that the kubelet has just received. On both sides
server and client share one process and one event loop, the socket is a unix socket, and the client takes
bytes as they come: no side decodes anything.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import uvloop

from bench.listening_kubelet import ByteStream, listening_kubelet
from bench.measure import Sample, side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate import telemetry
from colocate.aio import Watched
from colocate.kubelet import Device, DevicePlugin, Health, Plugins, Settings

DEVICES = 10_000

ONE = Ratio("one of 10 000 devices changes", "the same bytes raw over gRPC", 3.0)
ANEW = Ratio("one changes in a list made anew", "the same bytes raw over gRPC", 15.0)
ALL = Ratio("all of 10 000 devices change", "the same bytes raw over gRPC", 120.0)
RATIOS = (ONE, ANEW, ALL)


def bench() -> list[Row]:
    telemetry.configure_logs("json", "warning")
    return uvloop.run(_bench())


class Changing(DevicePlugin):
    """A plugin with many devices, one or all of which change when it is told to."""

    resource = "bench.example/device"

    def __init__(self) -> None:
        self._devices = [Device(f"device-{index:05}", numa=(index % 2,)) for index in range(DEVICES)]
        self._changes = Watched()
        self._turn = 0

    async def devices(self) -> AsyncIterator[list[Device]]:
        seen = 0
        while True:
            yield self._devices
            seen = await self._changes.beyond(seen)

    def prepare_one(self) -> None:
        """Another device every time, so that its new state has not been serialised before."""
        self._turn += 1
        index = self._turn * 7919 % DEVICES
        device = self._devices[index]
        healthy = device.health is Health.HEALTHY
        self._devices[index] = (
            device.unhealthy() if healthy else msgspec.structs.replace(device, health=Health.HEALTHY)
        )

    def prepare_anew(self) -> None:
        """One changes, in a list of new objects, as of a plugin that reads all its devices each time."""
        self._devices = [
            Device(device.id.encode().decode(), device.health, (*device.numa,)) for device in self._devices
        ]
        self.prepare_one()

    def prepare_all(self) -> None:
        """Every device as it has not been for the last hundred times."""
        self._turn += 1
        node = 2 + self._turn % 100
        self._devices = [msgspec.structs.replace(device, numa=(node,)) for device in self._devices]

    def publish(self) -> None:
        self._changes.changed()


async def _bench() -> list[Row]:
    plugin = Changing()
    async with listening_kubelet() as kubelet, _raw_stream() as (send, raw):
        group = Plugins(plugin, settings=Settings(paths=kubelet.paths))
        running = asyncio.create_task(group.run())
        await kubelet.listed(1)
        stream = kubelet.streams[plugin.resource]

        def ours(prepare: Callable[[], None]) -> Sample:
            async def sample() -> float:
                prepare()
                return await _until_received(stream, plugin.publish)

            return sample

        async def theirs() -> float:
            return await _until_received(raw, lambda: send(stream.last))

        rows = []
        for ratio, prepare in (
            (ONE, plugin.prepare_one),
            (ANEW, plugin.prepare_anew),
            (ALL, plugin.prepare_all),
        ):
            measured = await side_by_side(ours(prepare), theirs)
            assert raw.last == stream.last
            rows.append(
                ratio.row(
                    measured.ratio,
                    Figure("change to received", 1000 * measured.ours, "ms"),
                    Figure("raw", 1000 * measured.theirs, "ms"),
                    Figure("message", len(stream.last) / 1000, "kB"),
                    Figure("rounds", measured.rounds),
                )
            )
        group.stop()
        await running
    return rows


async def _until_received(stream: ByteStream, change: Callable[[], None]) -> float:
    seen = stream.messages.count
    started = time.perf_counter()
    change()
    await stream.messages.beyond(seen)
    return time.perf_counter() - started


@asynccontextmanager
async def _raw_stream() -> AsyncIterator[tuple[Callable[[bytes], None], ByteStream]]:
    """Plain grpc.aio: a function that sends bytes, and the stream on which they arrive."""
    outgoing: asyncio.Queue[bytes] = asyncio.Queue()

    async def send_all(request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        while True:
            yield await outgoing.get()

    handlers = {"Stream": grpc.unary_stream_rpc_method_handler(send_all)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Raw", handlers)])
    with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
        socket = Path(folder) / "raw.sock"
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        stream = ByteStream(socket, "/bench.Raw/Stream")
        try:
            yield outgoing.put_nowait, stream
        finally:
            await stream.close()
            await server.stop(None)
