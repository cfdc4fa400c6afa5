"""Whatever arrives instead of NRI: one log line, the connection made again, and nothing held."""

import asyncio
import gc
import itertools
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.nri_pairs import NriPair, nri_pair
from tests.support.cost import cost
from tests.support.nri_runtime import recorded

from colocate.model.container import CpuPin
from colocate.model.cpuset import CpuSet
from colocate.runtime.events import Placing
from colocate.wire import mux
from colocate.wire import nri_pb2 as nri
from colocate.wire.ttrpc import FrameKind, encode_frame

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
CONVERSATION = [
    frame for frame in recorded(RECORDINGS, "lifecycle") if frame.from_runtime and frame.conn == 1
]
STREAM = b"".join(mux.pieces(1, frame.raw) for frame in CONVERSATION)


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, len(STREAM) - 1), max_size=12))
def test_frames_that_are_cut_anywhere_are_answered(cuts: list[int]) -> None:
    async def converse() -> None:
        with TemporaryDirectory() as folder:
            async with nri_pair(Path(folder)) as pair:
                pair.events.placing = Placing(CpuPin(cpus=CpuSet.parse("0")))
                plugin = await pair.runtime.connection()
                stream, _ = await plugin.called("RegisterPlugin")
                plugin.answer(stream)
                answers = [plugin.expect(frame.stream) for frame in CONVERSATION]
                places = [0, *sorted(cuts), len(STREAM)]
                for start, end in itertools.pairwise(places):
                    plugin.send(STREAM[start:end])
                    await plugin.drain()
                    await asyncio.sleep(0)  # each part arrives by itself
                async with asyncio.timeout(30):
                    assert not any([(await answer).HasField("status") for answer in answers])
                assert len(pair.events.heard) == 6

    asyncio.run(converse())


@settings(max_examples=25)
@given(end=st.integers(0, len(STREAM) - 1))
def test_a_runtime_that_hangs_up_anywhere_is_told_once_and_found_again(end: int) -> None:
    async def converse() -> None:
        with TemporaryDirectory() as folder:
            async with nri_pair(Path(folder)) as pair:
                plugin = await pair.runtime.connection()
                stream, _ = await plugin.called("RegisterPlugin")
                plugin.answer(stream)
                for frame in CONVERSATION:
                    plugin.expect(frame.stream)
                plugin.send(STREAM[:end])
                await plugin.drain()
                await plugin.hang_up()
                await pair.synchronized()
                told = pair.told()
                assert told.count("nri.disconnected") == 1
                assert set(told) <= {"nri.disconnected", "nri.synchronized"}

    asyncio.run(converse())


GARBAGE = {
    "a piece whose length lies": struct.pack(">II", 1, 2**32 - 1),
    "a frame whose length lies": mux.pieces(1, struct.pack(">IIBB", 2**31, 99, 1, 0)),
    "an answer whose length lies": mux.pieces(2, struct.pack(">IIBB", 2**31, 99, 2, 0)),
    "a request that is no request": mux.pieces(1, encode_frame(99, FrameKind.REQUEST, b"\xff" * 100)),
    "an even stream": mux.pieces(1, encode_frame(98, FrameKind.REQUEST, b"")),
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros in place of streams": bytes(1 << 16) + mux.pieces(1, encode_frame(0, FrameKind.REQUEST, b"")),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_told_once_and_the_connection_made_again(pair: NriPair, garbage: bytes) -> None:
    plugin = await pair.synchronized()
    pair.told()
    plugin.send(garbage)
    await plugin.end()
    await pair.synchronized()
    assert pair.told() == ["nri.disconnected", "nri.synchronized"]


@pytest.mark.parametrize(
    "method",
    ["Configure", "Synchronize", "CreateContainer", "UpdateContainer", "StopContainer", "StateChange"],
)
async def test_a_payload_that_cannot_be_read_is_as_good_as_hanging_up(pair: NriPair, method: str) -> None:
    """The container goes on without the plugin, which then asks again what there is."""
    plugin = await pair.synchronized()
    pair.told()
    plugin.send(plugin.request(method, b"\x0a\xff"))
    await plugin.end()
    await pair.synchronized()
    assert pair.told() == ["nri.disconnected", "nri.synchronized"]


async def test_unknown_methods_and_events_are_told_once_each_and_answered(pair: NriPair) -> None:
    plugin = await pair.synchronized()
    pair.told()
    for _ in range(3):
        answer = await plugin.ask("ValidateContainerAdjustment", b"")
        assert answer.status.code == 12, "unimplemented"
        event = nri.StateChangeEvent(event=cast(nri.Event, 99))
        assert not (await plugin.ask("StateChange", event)).HasField("status")
    assert pair.told() == ["nri.unknown", "nri.unknown"]
    for number in range(200):
        await plugin.ask(f"Method{number}", b"")
    assert len(pair.told()) == 14, "and no more than sixteen in a connection"
    assert not plugin.closed.is_set()


def crowd(count: int, size: int) -> nri.SynchronizeRequest:
    """So many containers, each of so many bytes."""
    request = nri.SynchronizeRequest(more=True)
    for number in range(count):
        pod = nri.PodSandbox(id=f"pod-{number}", annotations={"large": "x" * size}, pid=1)
        request.pods.append(pod.SerializeToString())
        container = nri.Container(id=f"c-{number}", pod_sandbox_id=f"pod-{number}", name="main")
        request.containers.append(container.SerializeToString())
    return request


async def test_what_runs_comes_in_pieces_of_4_mib(pair: NriPair) -> None:
    plugin = await pair.runtime.connection()
    await plugin.introduce()
    piece = crowd(500, 8192)
    assert 4_100_000 < piece.ByteSize() < 4 << 20
    for _ in range(3):
        answer = await plugin.ask("Synchronize", piece, timeout=30)
        assert nri.SynchronizeResponse.FromString(answer.payload) == nri.SynchronizeResponse(more=True)
    assert pair.events.heard == []
    assert (await plugin.ask("Synchronize", nri.SynchronizeRequest())).payload == b""
    assert pair.events.heard == [("synchronize", 1500, 1500)]


async def test_pieces_without_an_end_are_refused(pair: NriPair) -> None:
    plugin = await pair.runtime.connection()
    await plugin.introduce()
    few = nri.SynchronizeRequest(more=True, containers=[b""] * 10_000)
    assert (await plugin.ask("Synchronize", few)).payload
    plugin.send(plugin.request("Synchronize", few))
    await plugin.end()
    assert "20000 sandboxes or containers" in pair.reasons()[0]
    assert pair.told() == ["nri.disconnected"]


@pytest.fixture
def traced() -> Iterator[None]:
    """What Python holds is counted, and nothing waits for the garbage collector, whose turn is a matter of chance."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.usefixtures("traced")
async def test_nothing_is_held_of_connections_that_ended_in_the_middle(pair: NriPair) -> None:
    unfinished = mux.pieces(1, struct.pack(">IIBB", 4 << 20, 9, 1, 0) + bytes((4 << 20) - 1))
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(10):
        plugin = await pair.synchronized()
        plugin.send(unfinished)
        await plugin.drain()
        await plugin.hang_up()
    # The plugin has come back: it is done with the last one too.
    await pair.synchronized()
    held, peak = (size - before for size in tracemalloc.get_traced_memory())
    assert peak > 4 << 20, "a frame was held while its end might come"
    assert held < 4 << 20, "less than one of the ten frames"
    assert pair.told().count("nri.disconnected") == 10


LARGEST = (4 << 20) - 200
READ = """
import asyncio
from colocate.runtime.nri_session import PLUGIN, NriSession
from tests.support.noted_events import NotedEvents

async def converse(body):
    session = NriSession(NotedEvents())
    method, _, payload = body.partition(b"|")
    return len(await session.handle(PLUGIN, method.decode(), payload))

def read(body):
    try:
        return asyncio.run(converse(body))
    except Exception as error:
        return type(error).__name__
"""


def nested(number: int, content: bytes) -> bytes:
    """A field of a message, or of text."""
    length = len(content)
    digits = b""
    while length > 127:
        digits += bytes([length & 127 | 128])
        length >>= 7
    key = number << 3 | 2
    head = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
    return head + digits + bytes([length]) + content


def filled(item: bytes) -> bytes:
    return item * (LARGEST // len(item))


HOSTILE = {
    "a million empty sandboxes": b"Synchronize|" + filled(nested(1, b"")),
    "a million empty containers": b"Synchronize|" + filled(nested(2, b"")),
    "one container with a million devices": b"CreateContainer|"
    + nested(2, nested(11, filled(nested(2, b"")))),
    "one container with a million CDI devices": b"CreateContainer|" + nested(2, filled(nested(20, b""))),
    "one sandbox with many annotations": b"CreateContainer|"
    + nested(1, b"".join(nested(6, nested(1, b"colocate.dev/%06x" % n)) for n in range(LARGEST // 26))),
    "a million updates that no one asked for": b"StopContainer|" + filled(nested(1, b"")),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_the_largest_requests_cost_a_few_times_their_size(body: bytes, tmp_path: Path) -> None:
    """They are of a broken runtime: nothing that tenants write gets there in such numbers."""
    spent = cost(READ, body, tmp_path)
    assert spent.memory < 24, spent
