"""The runtime's side of NRI, for tests: a socket that plugins connect to, and what a runtime says over it."""

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
from google.protobuf.message import Message

from colocate.wire import mux
from colocate.wire import nri_pb2 as nri
from colocate.wire import ttrpc_pb2 as ttrpc
from colocate.wire.ttrpc import Frame, FrameKind, FrameReader, encode_frame

SERVICE = "nri.pkg.api.v1alpha1.Plugin"
_PATIENCE = 30


class RecordedFrame(msgspec.Struct):
    """One frame of a recording."""

    dir: str
    conn: int
    stream: int
    type: int
    what: str
    frame_base64: str

    @property
    def raw(self) -> bytes:
        return base64.b64decode(self.frame_base64)

    @property
    def body(self) -> bytes:
        return self.raw[10:]

    @property
    def request(self) -> ttrpc.Request:
        return ttrpc.Request.FromString(self.body)

    @property
    def from_runtime(self) -> bool:
        return self.dir == "runtime>plugin"


def recorded(folder: Path, name: str) -> list[RecordedFrame]:
    """The frames of a recording, in their order."""
    return msgspec.convert(json.loads((folder / "nri" / f"{name}.json").read_text()), list[RecordedFrame])


class PluginConnection:
    """One plugin that has connected."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._mux = mux.MuxReader()
        self._frames = {number: FrameReader() for number in (mux.PLUGIN_SERVICE, mux.RUNTIME_SERVICE)}
        self._streams = itertools.count(1, 2)
        self._answers: dict[int, asyncio.Future[ttrpc.Response]] = {}
        self.calls: asyncio.Queue[tuple[int, ttrpc.Request]] = asyncio.Queue()
        """What the plugin has called, with its streams."""
        self.closed = asyncio.Event()
        self.longest_piece = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(1 << 16):
                for connection, part in self._mux.feed(data):
                    self.longest_piece = max(self.longest_piece, len(part))
                    for frame in self._frames[connection].feed(part):
                        self._take(connection, frame)
        except ConnectionError:
            pass
        self.closed.set()
        for answer in self._answers.values():
            answer.cancel()

    def _take(self, connection: int, frame: Frame) -> None:
        if connection == mux.RUNTIME_SERVICE:
            assert frame.kind == FrameKind.REQUEST
            self.calls.put_nowait((frame.stream, ttrpc.Request.FromString(frame.body)))
        else:
            assert frame.kind == FrameKind.RESPONSE
            self._answers.pop(frame.stream).set_result(ttrpc.Response.FromString(frame.body))

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    def request(self, method: str, message: Message | bytes, *, timeout: float = 2.0) -> bytes:
        """A request as it travels, on the next stream; `answer_to_last` waits for its answer."""
        payload = message if isinstance(message, bytes) else message.SerializeToString()
        asked = ttrpc.Request(
            service=SERVICE, method=method, payload=payload, timeout_nano=int(timeout * 1e9)
        )
        self._last = next(self._streams)
        self._answers[self._last] = asyncio.get_running_loop().create_future()
        frame = encode_frame(self._last, FrameKind.REQUEST, asked.SerializeToString())
        return mux.pieces(mux.PLUGIN_SERVICE, frame)

    async def ask(
        self, method: str, message: Message | bytes = b"", *, timeout: float = 2.0
    ) -> ttrpc.Response:
        """Call the plugin, and wait for its answer."""
        self.send(self.request(method, message, timeout=timeout))
        return await self.answer_to_last()

    async def answer_to_last(self) -> ttrpc.Response:
        async with asyncio.timeout(_PATIENCE):
            return await self._answers[self._last]

    def expect(self, stream: int) -> "asyncio.Future[ttrpc.Response]":
        """The answer on a stream, once it comes."""
        answer = self._answers[stream] = asyncio.get_running_loop().create_future()
        return answer

    def ask_on(self, stream: int, frame: bytes) -> "asyncio.Future[ttrpc.Response]":
        """Send a recorded frame on its own stream."""
        answer = self.expect(stream)
        self.send(mux.pieces(mux.PLUGIN_SERVICE, frame))
        return answer

    async def called(self, method: str) -> tuple[int, ttrpc.Request]:
        """The plugin's next call, which must be this one."""
        async with asyncio.timeout(_PATIENCE):
            stream, request = await self.calls.get()
        assert (request.service, request.method) == ("nri.pkg.api.v1alpha1.Runtime", method)
        return stream, request

    def answer(self, stream: int, response: ttrpc.Response | None = None) -> None:
        """Answer a call of the plugin."""
        body = (response or ttrpc.Response()).SerializeToString()
        self.send(mux.pieces(mux.RUNTIME_SERVICE, encode_frame(stream, FrameKind.RESPONSE, body)))

    async def introduce(self, *, request_timeout: int = 2000) -> nri.ConfigureResponse:
        """Register and configure the plugin, in the order that is the harder one for it."""
        stream, _ = await self.called("RegisterPlugin")
        configure = nri.ConfigureRequest(
            runtime_name="test", runtime_version="1", request_timeout=request_timeout
        )
        configured = await self.ask("Configure", configure)
        self.answer(stream)
        return nri.ConfigureResponse.FromString(configured.payload)

    async def hang_up(self) -> None:
        self._writer.close()
        await self._reading
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def end(self) -> None:
        """Wait until the plugin has hung up."""
        async with asyncio.timeout(_PATIENCE):
            await self.closed.wait()
        await self.hang_up()


class NriRuntime:
    """A socket that plugins connect to."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._connections: asyncio.Queue[PluginConnection] = asyncio.Queue()
        self._all: list[PluginConnection] = []

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = PluginConnection(reader, writer)
        self._all.append(connection)
        self._connections.put_nowait(connection)

    async def connection(self) -> PluginConnection:
        """The next plugin that connects."""
        async with asyncio.timeout(_PATIENCE):
            return await self._connections.get()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["NriRuntime"]:
        server = await asyncio.start_unix_server(self._accept, self.socket)
        try:
            yield self
        finally:
            server.close()
            await asyncio.sleep(0)  # then connections that are being accepted are in the list
            for connection in self._all:
                await connection.hang_up()
            self.socket.unlink(missing_ok=True)
