"""NRI's mux and ttrpc: frames survive any cut, lengths that lie cost nothing, and requests are answered in order."""

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.nri_runtime import NriRuntime, PluginConnection, recorded

from colocate.errors import Unavailable
from colocate.wire import mux, ttrpc_pb2
from colocate.wire.mux import GarbledStream, MuxReader
from colocate.wire.ttrpc import CallRefused, Frame, FrameKind, FrameReader, StatusCode, encode_frame
from colocate.wire.ttrpc_link import TtrpcLink

frames = st.lists(
    st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 2**32 - 1), st.binary(max_size=9000)), max_size=5
)


def read(stream: bytes, cuts: list[int]) -> list[tuple[int, Frame]]:
    """The frames of a stream that arrives cut at these places."""
    reader, by_connection = MuxReader(), {number: FrameReader() for number in (1, 2, 3)}
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [
        (connection, frame)
        for start, end in itertools.pairwise(places)
        for connection, part in reader.feed(stream[start:end])
        for frame in by_connection[connection].feed(part)
    ]


@given(sent=frames, cuts=st.lists(st.integers(0, 60_000), max_size=20))
def test_frames_arrive_whole_wherever_the_stream_is_cut(
    sent: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(
        mux.pieces(connection, encode_frame(number, FrameKind.REQUEST, body))
        for connection, number, body in sent
    )
    assert read(stream, cuts) == [
        (connection, Frame(number, FrameKind.REQUEST, body)) for connection, number, body in sent
    ]


@given(sent=frames.filter(bool), bytewise=st.integers(1, 40))
def test_pieces_of_connections_may_be_interleaved(sent: list[tuple[int, int, bytes]], bytewise: int) -> None:
    """Each connection's bytes are in order; those of others may come between any two of them."""
    streams = dict.fromkeys((1, 2, 3), b"")
    for connection, number, body in sent:
        streams[connection] += encode_frame(number, FrameKind.RESPONSE, body)
    mixed = b""
    while any(streams.values()):
        for connection, left in streams.items():
            mixed += mux.pieces(connection, left[: bytewise * connection]) if left else b""
            streams[connection] = left[bytewise * connection :]
    assert sorted(read(mixed, []), key=lambda found: found[0]) == sorted(
        ((connection, Frame(number, FrameKind.RESPONSE, body)) for connection, number, body in sent),
        key=lambda found: found[0],
    )


def test_recorded_frames_are_read_and_written_as_they_were(recordings: Path) -> None:
    for one in recorded(recordings, "lifecycle") + recorded(recordings, "synchronize-and-resize"):
        frame = Frame(one.stream, one.type, one.body)
        assert list(FrameReader().feed(one.raw)) == [frame]
        assert encode_frame(one.stream, FrameKind(one.type), one.body) == one.raw
        kind = ttrpc_pb2.Request if one.type == FrameKind.REQUEST else ttrpc_pb2.Response
        assert kind.FromString(one.body).SerializeToString() == one.body


@pytest.mark.parametrize("length", [mux.LONGEST_PIECE + 1, 2**31, 2**32 - 1])
def test_a_piece_that_is_announced_too_long_is_refused_at_its_header(length: int) -> None:
    with pytest.raises(GarbledStream, match=str(length)):
        list(MuxReader().feed(struct.pack(">II", 1, length)))


@pytest.mark.parametrize("length", [(4 << 20) + 1, 2**31, 2**32 - 1])
def test_a_frame_that_is_announced_too_long_is_refused_at_its_header(length: int) -> None:
    with pytest.raises(GarbledStream, match=str(length)):
        list(FrameReader().feed(struct.pack(">IIBB", length, 1, 1, 0)))


def test_the_largest_frame_is_read_in_one_piece() -> None:
    """As runtimes send it."""
    frame = encode_frame(1, FrameKind.REQUEST, bytes(4 << 20))
    stream = struct.pack(">II", 1, len(frame)) + frame
    assert read(stream, [8, 9, 100_000]) == [(1, Frame(1, FrameKind.REQUEST, bytes(4 << 20)))]


class Handler:
    """Answers with what it was asked, and waits where it is told to."""

    request_timeout = 2.0

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held = asyncio.Event()
        self.held.set()
        self.let_go: list[str] = []
        self.errors: list[Exception] = []

    async def handle(self, service: str, method: str, payload: bytes) -> bytes:
        await self.held.wait()
        self.asked.append(method)
        if method == "Refuse":
            raise CallRefused(StatusCode.FAILED_PRECONDITION, "no room")
        if method == "Fail":
            raise RuntimeError("a fault")
        return payload

    def fallback(self, method: str) -> bytes:
        self.let_go.append(method)
        return b"fallback"

    def failed(self, method: str, error: Exception) -> bytes:
        self.errors.append(error)
        return b"failed"


class Linked:
    """A link and what is at its ends."""

    def __init__(self, link: TtrpcLink, runtime: PluginConnection, handler: Handler) -> None:
        self.link = link
        self.runtime = runtime
        self.handler = handler


@pytest.fixture
async def linked(tmp_path: Path) -> AsyncIterator[Linked]:
    handler = Handler()
    async with NriRuntime(tmp_path / "nri.sock").listening() as runtime:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: TtrpcLink(handler), str(runtime.socket))
        running = asyncio.create_task(link.run())
        yield Linked(link, await runtime.connection(), handler)
        handler.held.set()
        link.close("the test is over")
        await running


class TestLink:
    async def test_requests_are_answered_in_their_order(self, linked: Linked) -> None:
        linked.runtime.send(linked.runtime.request("One", b"1") + linked.runtime.request("Two", b"2"))
        assert (await linked.runtime.ask("Three", b"3")).payload == b"3"
        assert linked.handler.asked == ["One", "Two", "Three"]

    async def test_an_error_of_the_handler_is_an_answer(self, linked: Linked) -> None:
        refused = await linked.runtime.ask("Refuse")
        assert (refused.status.code, refused.status.message) == (9, "no room")
        assert (await linked.runtime.ask("Fail")).payload == b"failed"
        assert [str(error) for error in linked.handler.errors] == ["a fault"]

    async def test_a_slow_answer_is_let_go_in_time_and_order_is_kept(self, linked: Linked) -> None:
        linked.handler.held.clear()
        assert (await linked.runtime.ask("Slow", b"s", timeout=0.02)).payload == b"fallback"
        assert (await linked.runtime.ask("Next", b"n", timeout=0.02)).payload == b"fallback"
        assert (linked.handler.let_go, linked.handler.asked) == (["Slow", "Next"], [])
        linked.handler.held.set()
        assert (await linked.runtime.ask("Last", b"l")).payload == b"l"
        assert linked.handler.asked == ["Slow", "Next", "Last"]

    async def test_a_runtime_that_floods_is_not_read_until_some_are_answered(self, linked: Linked) -> None:
        linked.handler.held.clear()
        flood = b"".join(linked.runtime.request("Flood", bytes(100_000)) for _ in range(300))
        linked.runtime.send(flood)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await linked.runtime.drain()
        linked.handler.held.set()
        await linked.runtime.drain()
        assert len((await linked.runtime.answer_to_last()).payload) == 100_000
        assert len(linked.handler.asked) == 300

    async def test_a_call_of_ours_gets_its_answer_or_its_error(self, linked: Linked) -> None:
        first = asyncio.create_task(
            linked.link.call("nri.pkg.api.v1alpha1.Runtime", "UpdateContainers", b"a", 5)
        )
        second = asyncio.create_task(
            linked.link.call("nri.pkg.api.v1alpha1.Runtime", "UpdateContainers", b"b", 5)
        )
        streams = [await linked.runtime.called("UpdateContainers") for _ in range(2)]
        assert [(stream, request.payload) for stream, request in streams] == [(1, b"a"), (3, b"b")]
        linked.runtime.answer(3, ttrpc_pb2.Response(payload=b"yes"))
        linked.runtime.answer(1, ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=2, message="some failed")))
        assert await second == b"yes"
        with pytest.raises(CallRefused, match="some failed"):
            await first

    async def test_a_call_that_is_not_answered_ends_in_time(self, linked: Linked) -> None:
        with pytest.raises(Unavailable, match=r"UpdateContainers within 0.01 s"):
            await linked.link.call("nri.pkg.api.v1alpha1.Runtime", "UpdateContainers", b"", 0.01)

    async def test_a_call_ends_when_the_runtime_hangs_up(self, linked: Linked) -> None:
        call = asyncio.create_task(
            linked.link.call("nri.pkg.api.v1alpha1.Runtime", "UpdateContainers", b"", 5)
        )
        await linked.runtime.called("UpdateContainers")
        await linked.runtime.hang_up()
        with pytest.raises(Unavailable, match="hung up"):
            await call
        assert await linked.link.ended() == "it closed the connection"
        with pytest.raises(Unavailable, match="hung up"):
            await linked.link.call("nri.pkg.api.v1alpha1.Runtime", "UpdateContainers", b"", 5)

    @pytest.mark.parametrize(
        ("garbage", "reason"),
        [
            (struct.pack(">II", 1, 2**32 - 1), "a piece of 4294967295 bytes"),
            (mux.pieces(1, struct.pack(">IIBB", 2**30, 1, 1, 0)), "a frame of 1073741824 bytes"),
            (mux.pieces(1, encode_frame(1, FrameKind.REQUEST, b"\xff\xff")), ""),
            (mux.pieces(1, encode_frame(2, FrameKind.REQUEST, b"")), "stream 2"),
        ],
        ids=["piece", "frame", "request", "stream"],
    )
    async def test_garbage_ends_the_link_and_says_why(
        self, linked: Linked, garbage: bytes, reason: str
    ) -> None:
        linked.runtime.send(garbage)
        assert reason in await linked.link.ended()
        await linked.runtime.end()

    async def test_a_stream_cannot_be_used_again(self, linked: Linked) -> None:
        linked.runtime.send(linked.runtime.request("One", b"") * 2)
        assert "stream 1 after 1" in await linked.link.ended()

    async def test_frames_of_other_kinds_and_connections_are_passed_over(self, linked: Linked) -> None:
        linked.runtime.send(
            mux.pieces(77, b"for another connection")
            + mux.pieces(1, struct.pack(">IIBB", 3, 9, 3, 0) + b"abc")
            + mux.pieces(2, struct.pack(">IIBB", 3, 9, 1, 0) + b"abc")
            + mux.pieces(2, struct.pack(">IIBB", 0, 99, 2, 0))
        )
        assert (await linked.runtime.ask("Next", b"n")).payload == b"n"
