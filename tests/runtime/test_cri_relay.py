"""Every call through the relay has the result that it has without it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import grpc.aio
import pytest
from tests.support import cri_runtime
from tests.support.cri_runtime import Ended, Pairs, Requests, call_stream, call_unary
from tests.support.waiting import until

from colocate.runtime import cri_relay
from colocate.wire.cri_methods import IMAGE, RUNTIME, UNARY

MIB = 1 << 20
STATUS = f"{RUNTIME}Status"
REFUSED = "/runtime.v9.NewService/Refused"
UNKNOWN = "/runtime.v9.NewService/Brand_New"


class Runtime:
    """Does what the first byte of a request says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[bytes, ...]]] = []
        self.metadata: list[Pairs] = []
        self.remaining: list[float | None] = []
        self.held = 0
        self.cancelled = 0

    async def serve(self, path: str, requests: Requests, context: grpc.aio.ServicerContext) -> None:
        self.metadata.append(tuple((key, value) for key, value in context.invocation_metadata()))
        self.remaining.append(context.time_remaining())
        if path == REFUSED:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "without a look at the request")
        got = []
        async for request in requests:
            got.append(request)
            if request.startswith(b"each"):
                await context.write(request)
            if request.startswith(b"early"):
                break
        self.asked.append((path, tuple(got)))
        last = got[-1] if got else b""
        match last[:4]:
            case b"meta":
                await context.send_initial_metadata((("first", "ä".encode().hex()), ("raw-bin", b"\x00\xff")))
                await context.write(last)
                context.set_trailing_metadata((("last", "1"), ("last", "2"), ("more-bin", b"\x01")))
            case b"fail":
                await context.send_initial_metadata((("first", "x"),))
                trailers = (("grpc-status-details-bin", b"\x08\x05\x12\x01x"), ("why", "so"))
                await context.abort(grpc.StatusCode.NOT_FOUND, "nö such\ncontainer", trailers)
            case b"unim":
                await context.abort(
                    grpc.StatusCode.UNIMPLEMENTED, f"unknown method {path.rpartition('/')[2]}"
                )
            case b"half":
                await context.write(b"one")
                await context.abort(grpc.StatusCode.DATA_LOSS, "in the middle")
            case b"many":
                for number in range(100):
                    await context.write(b"%d" % number)
            case b"none":
                pass
            case b"hold":
                await context.send_initial_metadata((("held", "yes"),))
                await self._hold()
            case b"each":
                pass
            case _:
                await context.write(b"" if last == b"empty" else last)

    async def _hold(self) -> None:
        self.held += 1
        try:
            await cri_runtime.never()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.held -= 1


class Pair:
    """A runtime, reached directly and through the relay."""

    def __init__(self, runtime: Runtime, direct: grpc.aio.Channel, relayed: grpc.aio.Channel) -> None:
        self.runtime = runtime
        self.direct = direct
        self.relayed = relayed

    async def unary(self, path: str, request: bytes, metadata: Pairs = ()) -> Ended:
        """What both see; it is the same."""
        without = await call_unary(self.direct, path, request, metadata)
        within = await call_unary(self.relayed, path, request, metadata)
        assert within == without
        self._same_question()
        return within

    async def stream(self, path: str, *requests: bytes, metadata: Pairs = ()) -> Ended:
        without = await call_stream(self.direct, path, requests, metadata)
        within = await call_stream(self.relayed, path, requests, metadata)
        assert within == without
        self._same_question()
        return within

    def _same_question(self) -> None:
        if self.runtime.asked:
            assert self.runtime.asked[-1] == self.runtime.asked[-2]
            within, without = (
                sorted(
                    pair for pair in said if pair[0] != "user-agent"
                )  # every HTTP/2 connection has its own
                for said in self.runtime.metadata[-2:]
            )
            assert within == without


@asynccontextmanager
async def relayed(folder: Path, runtime: Runtime) -> AsyncIterator[Pair]:
    behind, before = folder / "runtime.sock", folder / "relay.sock"
    async with cri_runtime.serving(behind, runtime.serve), cri_relay.connect(behind) as onward:
        server = cri_relay.server(cri_relay.Relay(onward))
        server.add_insecure_port(f"unix:{before}")
        await server.start()
        try:
            async with cri_runtime.client(behind) as direct, cri_runtime.client(before) as within:
                yield Pair(runtime, direct, within)
        finally:
            await server.stop(None)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    with TemporaryDirectory(prefix="relay") as folder:
        async with relayed(Path(folder), Runtime()) as pair:
            yield pair


KINDS = [
    b"plain",
    b"empty",
    b"",
    b"meta",
    b"fail",
    b"unimplemented",
    b"\xff\xff\xff\xff garbage \x00",
]


@pytest.mark.parametrize("path", [STATUS, f"{IMAGE}PullImage", UNKNOWN])
@pytest.mark.parametrize("request_", KINDS)
async def test_a_unary_call_ends_as_without_the_relay(pair: Pair, path: str, request_: bytes) -> None:
    metadata: Pairs = (
        ("traceparent", "00-11-22-01"),
        ("twice", "a"),
        ("twice", "b"),
        ("raw-bin", b"\x00\xfe"),
    )
    await pair.unary(path, request_, metadata)


async def test_every_known_unary_method_gets_there_under_its_own_name(pair: Pair) -> None:
    for path in sorted(UNARY):
        assert (await pair.unary(path, path.encode())).answers == (path.encode(),)


async def test_what_the_runtime_does_not_implement_stays_unimplemented(pair: Pair) -> None:
    ended = await pair.unary(f"{RUNTIME}RuntimeConfig", b"unimplemented")
    assert (ended.code, ended.details) == ("UNIMPLEMENTED", "unknown method RuntimeConfig")


async def test_a_call_that_is_refused_while_it_is_sent_has_the_runtimes_status(pair: Pair) -> None:
    ended = [await call_unary(pair.relayed, REFUSED, b"x") for _ in range(200)]
    assert {(each.code, each.details) for each in ended} == {
        ("UNIMPLEMENTED", "without a look at the request")
    }


async def test_an_end_without_a_message_is_no_empty_message(pair: Pair) -> None:
    assert (await pair.unary(UNKNOWN, b"none")).answers == (None,)
    assert (await call_unary(pair.relayed, STATUS, b"none")).code == "INTERNAL"


async def test_details_and_trailers_of_an_error_arrive(pair: Pair) -> None:
    ended = await pair.unary(STATUS, b"fail")
    assert (ended.code, ended.details) == ("NOT_FOUND", "nö such\ncontainer")
    assert ("grpc-status-details-bin", b"\x08\x05\x12\x01x") in ended.trailing


@pytest.mark.parametrize("path", [f"{RUNTIME}GetContainerEvents", UNKNOWN])
@pytest.mark.parametrize(
    "requests",
    [
        [b"many"],
        [b"a", b"b", b"c"],
        [b"each 1", b"each 2", b"each 3"],
        [b"half"],
        [b"fail"],
        [b"each 1", b"early"],
        [],
    ],
    ids=["server", "client", "both", "half", "fails", "early", "nothing"],
)
async def test_a_streaming_call_ends_as_without_the_relay(
    pair: Pair, path: str, requests: list[bytes]
) -> None:
    await pair.stream(path, *requests)


async def test_messages_of_16_mib_pass_and_larger_ones_are_refused_by_the_runtime_itself(pair: Pair) -> None:
    whole = b"x" * (16 * MIB - 5)
    for path in (STATUS, UNKNOWN):
        assert (await pair.unary(path, whole)).answers == (whole,)
        assert (await pair.unary(path, b"x" * (16 * MIB + 1))).code == "RESOURCE_EXHAUSTED"


async def test_a_thousand_calls_at_once_are_answered_each_with_its_own(pair: Pair) -> None:
    async def ask(number: int) -> None:
        body = b"%d" % number
        path = STATUS if number % 2 else UNKNOWN
        assert (await call_unary(pair.relayed, path, body)).answers == (body,)

    held = [_held(pair.relayed) for _ in range(20)]
    for call in held:
        await call.initial_metadata()
    await asyncio.gather(*(ask(number) for number in range(1000)))
    assert pair.runtime.held == 20
    for call in held:
        assert not call.done()
        call.cancel()
    await until(lambda: pair.runtime.held == 0, "the end of streams held open")


async def test_a_cancelled_call_is_cancelled_at_the_runtime(pair: Pair) -> None:
    call = pair.relayed.unary_unary(STATUS)(b"hold")
    waiting = asyncio.ensure_future(_answer(call))
    await until(lambda: pair.runtime.held == 1, "the call at the runtime")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: pair.runtime.cancelled == 1, "its cancellation there")


async def test_the_deadline_travels_with_the_call(pair: Pair) -> None:
    for path in (STATUS, UNKNOWN):
        await call_unary(pair.relayed, path, b"plain", timeout=30)
        remaining = pair.runtime.remaining[-1]
        assert remaining is not None
        assert 20 < remaining < 31
        ended = await call_unary(pair.relayed, path, b"hold", timeout=0.2)
        assert ended.code == "DEADLINE_EXCEEDED"
        await until(lambda: pair.runtime.held == 0, "the end at the runtime")
    await pair.relayed.unary_unary(STATUS)(b"plain")
    assert pair.runtime.remaining[-1] is None


async def test_a_runtime_that_is_away_is_unavailable_and_is_found_again(tmp_path: Path) -> None:
    with TemporaryDirectory(prefix="relay") as folder:
        behind, before = Path(folder, "runtime.sock"), Path(folder, "relay.sock")
        async with cri_relay.connect(behind) as onward:
            server = cri_relay.server(cri_relay.Relay(onward))
            server.add_insecure_port(f"unix:{before}")
            await server.start()
            async with cri_runtime.client(before) as within:
                for path in (STATUS, UNKNOWN):
                    assert (await call_unary(within, path, b"plain")).code == "UNAVAILABLE"
                for _ in range(2):
                    runtime = Runtime()
                    async with cri_runtime.serving(behind, runtime.serve):
                        await _answered(within)
                    assert (await call_unary(within, STATUS, b"plain")).code == "UNAVAILABLE"
            await server.stop(None)


async def _answered(channel: grpc.aio.Channel) -> None:
    async with asyncio.timeout(20):
        while (await call_unary(channel, STATUS, b"plain")).code != "OK":  # noqa: ASYNC110 -- gRPC's own back-off
            await asyncio.sleep(0.02)


async def _answer(call: grpc.aio.UnaryUnaryCall) -> bytes:
    answer: bytes = await call
    return answer


def _held(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamCall:
    return channel.unary_stream(UNKNOWN)(b"hold")
