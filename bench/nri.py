"""An NRI CreateContainer from its frame to its answer, and the memory of `colocate nri`, with 200 containers placed.

The answer is compared with decoding and encoding the very same messages and nothing else: from the request's bytes to
the values that a decision needs, and from CPUs to the answer's bytes. protobuf reads a field when it is asked for, so
what it takes to parse the bytes and write them again, without looking, is a figure beside it. The recorded request of
a real runtime is sent again and again, each time for another pod. Two rows: all that is NRI, with an answer that is
known beforehand; and the whole, where the placer decides in a thread, and its state is on the disk before the answer
goes out. What a disk takes to have a file for good is no ratio of decoding, so the second row has no bar.
"""

import asyncio
import base64
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import uvloop

from bench.child import child
from bench.measure import side_by_side
from bench.memory import MEGABYTE, Memory, memory_at_rest
from bench.ratio import Figure, Ratio, Row
from colocate.cpus.placer.machine import PlacementMachine
from colocate.cpus.placer.placer import Placer
from colocate.cpus.placer.section import CpusSection
from colocate.cpus.placer.store import PlacementStore
from colocate.model.container import CpuPin, RuntimeContainer, RuntimeSandbox
from colocate.model.cpu_shapes import CpuShape, machine
from colocate.model.cpuset import CpuSet
from colocate.runtime import nri_messages as facts
from colocate.runtime.events import Placing
from colocate.runtime.nri_session import PLUGIN, NriSession
from colocate.wire import mux
from colocate.wire import nri_pb2 as nri
from colocate.wire import ttrpc_pb2 as ttrpc
from colocate.wire.ttrpc import FrameKind, encode_frame
from colocate.wire.ttrpc_link import TtrpcLink

PLACED = 200
SHAPE = CpuShape(sockets=2, nodes_per_socket=4, ccx_cores=(4, 4))
SHAPE_TEXT = "2x4x2x4x2"
"""128 CPUs in 16 CCXs, and the same in words."""
RECORDING = Path(__file__).parents[1] / "tests/data/recordings/nri/lifecycle.json"
_ALONE = "decoding and encoding the same messages alone"
EDGE = Ratio("an NRI CreateContainer from frame to answer, decided beforehand", _ALONE, 4.0)
WHOLE = Ratio(
    f"an NRI CreateContainer from frame to answer, {PLACED} placed, decided and stored", _ALONE, None
)
RESIDENT = Ratio(
    f"memory of colocate nri, {PLACED} containers placed", "a bare `import grpc.aio` process", 2.0
)
RATIOS = (EDGE, WHOLE, RESIDENT)
_TIMES = 50
_PIN = CpuPin(cpus=CpuSet.parse("0-7"), mems=(0,))
_TIMEOUT = 2_000_000_000
_BARE = "import grpc.aio, sys; print('ready', flush=True); sys.stdin.read()"
_NRI = "from colocate.cli.main import main; main()"


def bench() -> list[Row]:
    return uvloop.run(_bench())


async def _bench() -> list[Row]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        placer = Placer(CpusSection(), PlacementStore(folder), PlacementMachine(decide_for=machine(SHAPE)))
        placer.keeper.begin()
        try:
            async with _linked(placer) as runtime:
                for _ in range(PLACED):
                    await runtime.ask()
                whole = await _measure(WHOLE, runtime, 1, after=lambda: placer.sandbox_stopped(runtime.pod))
            answer = Placing(placer.keeper.outgoing(next(iter(placer.keeper.pins.values()))))
        finally:
            placer.keeper.close()
        memory = await _memory(folder)
    async with _linked(_Decided(answer)) as runtime:
        edge = await _measure(EDGE, runtime, _TIMES)
    return [edge, whole, memory]


async def _measure(
    ratio: Ratio, runtime: "_Runtime", times: int, after: Callable[[], Awaitable[None]] | None = None
) -> Row:
    async def ours() -> float:
        seconds = sum([await runtime.ask() for _ in range(times)]) / times
        if after is not None:
            await after()
        return seconds

    async def theirs() -> float:
        return sum([runtime.alone() for _ in range(_TIMES)]) / _TIMES

    measured = await side_by_side(ours, theirs)
    return ratio.row(
        measured.ratio,
        Figure("answer", measured.ours * 1e6, "µs"),
        Figure("alone", measured.theirs * 1e6, "µs"),
        Figure("parsed only", statistics.median(runtime.parsed() for _ in range(_TIMES)) * 1e6, "µs"),
        Figure("request", runtime.size, "bytes"),
    )


async def _memory(folder: Path) -> Row:
    config = folder / "colocate.yaml"
    socket = folder / "cpus.sock"
    config.write_text(
        f"version: 1\nlog: {{level: error}}\ncpus:\n  topology: {SHAPE_TEXT}\n  stateFolder: {folder}\n"
        f"  socket: {socket}\n  nri: {{socket: {folder / 'nri.sock'}}}\n"
    )
    plugins: list[Memory] = []
    bares: list[Memory] = []

    async def ours() -> float:
        async with child("-c", _NRI, "nri", "--config", str(config)) as process:
            while not socket.exists():
                assert process.returncode is None
                await asyncio.sleep(0.01)
            plugins.append(await memory_at_rest(process.pid))
        socket.unlink(missing_ok=True)
        return plugins[-1].resident

    async def theirs() -> float:
        async with child("-c", _BARE) as process:
            assert process.stdout is not None
            await process.stdout.readline()
            bares.append(await memory_at_rest(process.pid))
        return bares[-1].resident

    measured = await side_by_side(ours, theirs, warm_up=0, at_least=3, seconds=0)
    return RESIDENT.row(
        measured.ratio,
        Figure("plugin", measured.ours / MEGABYTE, "MB"),
        Figure("bare", measured.theirs / MEGABYTE, "MB"),
    )


class _Decided:
    """Answers what is known beforehand; the other events are not told here."""

    def __init__(self, placing: Placing) -> None:
        self._placing = placing

    async def create(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        return self._placing


class _Sink(asyncio.Transport):
    """Where a link writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = asyncio.get_running_loop().create_future()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data = bytes(data)
        self.answered.set_result(time.perf_counter())

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        raise AssertionError("the link has ended")


class _Runtime:
    """Sends the recorded request, each time for another pod."""

    def __init__(self, link: TtrpcLink, sink: _Sink) -> None:
        self._link = link
        self._sink = sink
        self._request = recorded_request()
        parent = self._request.pod.linux.cgroup_parent
        self._request.pod.linux.cgroup_parent = parent.replace("/kubepods/", "/kubepods/burstable/")
        self._count = 0
        self._frame = b""

    @property
    def size(self) -> int:
        return len(self._frame)

    @property
    def pod(self) -> str:
        """The last one."""
        return self._request.pod.id

    async def ask(self) -> float:
        """Seconds from the frame to the answer."""
        self._count += 1
        self._frame = frame_of(self._request, self._count)
        pieces = mux.pieces(mux.PLUGIN_SERVICE, self._frame)
        self._sink.answered = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        self._link.data_received(pieces)
        answered: float = await self._sink.answered
        return answered - begun

    def alone(self) -> float:
        """Seconds to decode the last request and to encode the last answer."""
        begun = time.perf_counter()
        asked = ttrpc.Request.FromString(self._frame[10:])
        request = nri.CreateContainerRequest.FromString(asked.payload)
        facts.sandbox(request.pod)
        facts.container(request.container)
        answer = nri.CreateContainerResponse()
        facts.merge(_PIN, answer.adjust.linux.resources)
        ttrpc.Response(payload=answer.SerializeToString()).SerializeToString()
        return time.perf_counter() - begun

    def parsed(self) -> float:
        """Seconds to parse the same bytes and write them again, without looking at them."""
        answer = ttrpc.Response.FromString(self._sink.data[18:])
        begun = time.perf_counter()
        asked = ttrpc.Request.FromString(self._frame[10:])
        nri.CreateContainerRequest.FromString(asked.payload)
        answer.SerializeToString()
        return time.perf_counter() - begun


@asynccontextmanager
async def _linked(events: object) -> AsyncIterator[_Runtime]:
    link = TtrpcLink(NriSession(events))  # type: ignore[arg-type]
    sink = _Sink()
    link.connection_made(sink)
    running = asyncio.create_task(link.run())
    try:
        yield _Runtime(link, sink)
    finally:
        running.cancel()


def recorded_request() -> nri.CreateContainerRequest:
    for entry in msgspec.json.decode(RECORDING.read_bytes()):
        if entry["what"] == "Plugin/CreateContainer request":
            frame = base64.b64decode(entry["frame_base64"])
            return nri.CreateContainerRequest.FromString(ttrpc.Request.FromString(frame[10:]).payload)
    raise AssertionError("the recording has no creation")


def frame_of(request: nri.CreateContainerRequest, number: int) -> bytes:
    """The request for another pod, on a stream of its own."""
    request.pod.id = request.container.pod_sandbox_id = f"{number:064x}"
    request.container.id = f"{number:032x}" + "c" * 32
    asked = ttrpc.Request(
        service=PLUGIN, method="CreateContainer", payload=request.SerializeToString(), timeout_nano=_TIMEOUT
    )
    return encode_frame(2 * number - 1, FrameKind.REQUEST, asked.SerializeToString())
