"""A kubelet that does as little as possible: takes registrations, opens the streams, keeps the last bytes.

It decodes no list, so that what is measured is the plugin's side and gRPC, and nothing of the kubelet's.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio

from colocate.aio import Watched
from colocate.kubelet import KubeletPaths
from colocate.wire import deviceplugin_pb2 as dp
from colocate.wire import methods
from colocate.wire.rpc import Service, connect, serve

PATIENCE = 60
"""Seconds for what takes milliseconds, so that a bench fails rather than hangs."""


class ByteStream:
    """The receiving end of one server stream: the last message, as bytes, and how many there were."""

    def __init__(self, socket: Path, path: str, tell: Callable[[], None] = lambda: None) -> None:
        """`tell` is called after every message."""
        self.last = b""
        self.messages = Watched()
        self._tell = tell
        self._channel = connect(socket)
        self._call = self._channel.unary_stream(path)(b"")
        self._task = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        try:
            async for message in self._call:
                self.last = message
                self.messages.changed()
                self._tell()
        except grpc.RpcError:
            pass  # The plugin has stopped.

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()


class ListeningKubelet:
    """Serves kubelet.sock, and listens to every plugin that registers there."""

    def __init__(self, paths: KubeletPaths) -> None:
        self.paths = paths
        self.streams: dict[str, ByteStream] = {}
        self._server: grpc.aio.Server | None = None
        self._starts = 0
        self._progress = Watched()
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self.paths.device_plugins.mkdir(parents=True, exist_ok=True)
        self._starts += 1
        # gRPC removes the socket that it was told of when it stops; a kubelet leaves its own lying there.
        hidden = self.paths.root / f"{self._starts}.sock"
        self._server = await serve(hidden, Service({methods.REGISTER: self._register}))
        self.paths.kubelet_socket.unlink(missing_ok=True)
        os.link(hidden, self.paths.kubelet_socket)
        hidden.unlink()

    async def stop(self) -> None:
        """Close every stream, then the server, and forget the plugins, as a kubelet that is killed does."""
        await self.forget()
        if self._server is not None:
            await self._server.stop(None)

    async def forget(self) -> None:
        """Close every stream, as if no plugin had ever registered."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        streams, self.streams = self.streams, {}
        await asyncio.gather(*(stream.close() for stream in streams.values()))

    async def listed(self, plugins: int) -> None:
        """Return once so many plugins have registered and sent a list.

        A plugin that finds the kubelet's socket replaced while it registers does so twice: the last counts.
        """
        async with asyncio.timeout(PATIENCE):
            while sum(stream.messages.count > 0 for stream in self.streams.values()) < plugins:
                await self._progress.beyond(self._progress.count)

    async def _register(self, request: dp.RegisterRequest) -> dp.Empty:
        socket = self.paths.device_plugins / request.endpoint
        before = self.streams.pop(request.resource_name, None)
        if before is not None:
            task = asyncio.create_task(before.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self.streams[request.resource_name] = ByteStream(
            socket, methods.LIST_AND_WATCH.path, self._progress.changed
        )
        return dp.Empty()


@asynccontextmanager
async def listening_kubelet() -> AsyncIterator[ListeningKubelet]:
    """A running one, in a folder of its own that is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="colocate-") as folder:
        kubelet = ListeningKubelet(KubeletPaths(Path(folder)))
        await kubelet.start()
        try:
            yield kubelet
        finally:
            await kubelet.stop()
            shutil.rmtree(kubelet.paths.device_plugins, ignore_errors=True)
