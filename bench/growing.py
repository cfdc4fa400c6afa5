"""Processes that first serve one plugin, or one bare gRPC stream, and on a word twenty; and how they grow."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import uvloop

from bench.child import child
from bench.listening_kubelet import PATIENCE, ByteStream, listening_kubelet
from bench.memory import memory_at_rest
from colocate import telemetry
from colocate.kubelet import DevicePlugin, KubeletPaths, Plugins, Settings

FEW, MANY = 1, 20


class Small(DevicePlugin):
    """A plugin with a few devices that stay as they are."""

    def __init__(self, number: int) -> None:
        self.resource = f"bench.example/small-{number}"

    def devices(self) -> list[str]:
        return [f"device-{index}" for index in range(8)]


async def per_plugin() -> float:
    """Bytes by which a process grows with each further plugin."""
    async with listening_kubelet() as kubelet:
        return await _growth("serve_plugins", kubelet.paths.root, kubelet.listed)


async def per_bare_server() -> float:
    """Bytes by which a process grows with each further gRPC server that has a stream open."""
    with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
        streams: list[ByteStream] = []

        async def listen(servers: int) -> None:
            while len(streams) < servers:
                streams.append(ByteStream(_bare_socket(Path(folder), len(streams)), "/bench.Bare/Stream"))
            await asyncio.gather(*(stream.messages.beyond(0) for stream in streams))

        try:
            return await _growth("serve_bare", Path(folder), listen)
        finally:
            await asyncio.gather(*(stream.close() for stream in streams))


async def _growth(serve: str, folder: Path, listened: Callable[[int], Awaitable[None]]) -> float:
    code = f"import sys; from bench.growing import {serve}; {serve}(sys.argv[1])"
    async with asyncio.timeout(PATIENCE), child("-c", code, str(folder)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdout.readline()
        await listened(FEW)
        before = await memory_at_rest(process.pid)
        process.stdin.write(b"more\n")
        await process.stdout.readline()
        await listened(MANY)
        after = await memory_at_rest(process.pid)
    return (after.resident - before.resident) / (MANY - FEW)


# --- in the processes that grow ----------------------------------------------------------------------


def serve_plugins(folder: str) -> None:
    telemetry.configure_logs("json", "error")
    uvloop.run(_serve_plugins(KubeletPaths(Path(folder))))


def serve_bare(folder: str) -> None:
    uvloop.run(_serve_bare(Path(folder)))


async def _serve_plugins(paths: KubeletPaths) -> None:
    group = Plugins(*map(Small, range(FEW)), settings=Settings(paths=paths))
    running = asyncio.create_task(group.run())
    await _told_to_grow()
    for number in range(FEW, MANY):
        group.add(Small(number))
    print(flush=True)
    await running


async def _serve_bare(folder: Path) -> None:
    async def stream(request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        yield b"list"
        await asyncio.Event().wait()

    async def start(number: int) -> grpc.aio.Server:
        handlers = {"Stream": grpc.unary_stream_rpc_method_handler(stream)}
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Bare", handlers)])
        server.add_insecure_port(f"unix:{_bare_socket(folder, number)}")
        await server.start()
        return server

    servers = [await start(number) for number in range(FEW)]
    await _told_to_grow()
    servers += [await start(number) for number in range(FEW, MANY)]
    print(flush=True)
    await servers[0].wait_for_termination()


def _bare_socket(folder: Path, number: int) -> Path:
    return folder / f"bare-{number}.sock"


async def _told_to_grow() -> None:
    print(flush=True)
    await asyncio.to_thread(sys.stdin.readline)
