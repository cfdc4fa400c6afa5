"""A Prometheus that answers nonsense: it costs little more than its bytes, and holds up nothing."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from colocate.clock import SystemClock
from colocate.cluster.errors import ClusterError, Doing, ServerError
from colocate.cluster.usage import Prometheus, PrometheusSettings, answers, prometheus
from colocate.cluster.usage.answers import Series, Vector, decode
from colocate.model.values import Seconds, Size
from tests.cluster.serving import Scripted
from tests.support.cost import cost

from .fake import CPU, MEMORY, Table, poller

DOING = Doing("query", "prometheus", name="cpu")
BYTES = 8 << 20
HEAD = b'{"status":"success","data":{"resultType":"vector","result":['
TAIL = b"]}}"
SERIES = b'{"metric":{"node":"n%d"},"value":[1,"1"]}'
READ = """
from colocate.cluster.errors import ClusterError, Doing
from colocate.cluster.usage.answers import decode
from colocate.cluster.usage.claims import updated
from colocate.cluster.usage.directory import Directory, KnownNode
from colocate.cluster.usage.node_series import Times, join
from colocate.cluster.usage.node_series import join_pods

nodes = Directory([KnownNode(f"n{number}") for number in range(15_000)])

def read(body):
    try:
        answer = decode(Doing("query", "prometheus", name="cpu"), body)
    except ClusterError as error:
        return error
    times = Times(answer, nodes, ("node", "instance"), 1e6)
    joined = join(answer, nodes, ("node", "instance"), times)
    updated(joined.claims, joined.claims, 1e6, 180.0)
    return (joined.counts.series, joined.counts.joined, join_pods(answer, 1e6).counts.joined)
"""


def repeated(item: bytes, head: bytes = HEAD, tail: bytes = TAIL) -> bytes:
    return head + (item + b",") * (BYTES // (len(item) + 1)) + item + tail


def numbered(item: bytes, head: bytes = HEAD, tail: bytes = TAIL) -> bytes:
    """Every one is another, as a hash table likes them least."""
    count = BYTES // (len(item) + 5)
    return head + b",".join(item.replace(b"%d", b"%d" % number) for number in range(count)) + tail


def sprinkled(garbage: bytes) -> bytes:
    """Nonsense with a series here and there, so that it looks like something."""
    stretch = (garbage + b",") * ((60 << 10) // (len(garbage) + 1))
    return HEAD + (stretch + SERIES % 1 + b",") * (BYTES // (len(stretch) + 40)) + SERIES % 2 + TAIL


HOSTILE = {
    "zeros": repeated(b"0"),
    "empty objects": repeated(b"{}"),
    "empty lists": repeated(b"[]"),
    "zeros with a series here and there": sprinkled(b"0"),
    "empty objects with a series here and there": sprinkled(b"{}"),
    "zeros after the first series": repeated(b"0", HEAD + SERIES % 1 + b"," + SERIES % 2 + b","),
    "one series of a million labels": numbered(b'"%d":""', HEAD + b'{"metric":{', b'},"value":[1,"1"]}' + TAIL),
    "series of thousands of labels": (
        HEAD
        + b",".join(
            [
                b'{"metric":{%b},"value":[1,"1"]}'
                % b",".join(b'"%d":""' % number for number in range(5000))
            ]
            * (BYTES // 43_000)
        )
        + TAIL
    ),
    "series without labels": repeated(b'{"metric":{},"value":[1,"1"]}'),
    "series of one node": repeated(SERIES % 1),
    "series of nodes, each another": numbered(SERIES),
    "series of pods, each another": numbered(b'{"metric":{"namespace":"a","pod":"%d"},"value":[1,"1"]}'),
    "warnings": repeated(b'""', b'{"status":"success","warnings":[', b'],"data":{"resultType":"vector"}}'),
    "another field": repeated(b"0", b'{"status":"success","more":[', b"]}"),
    "data that is a list": repeated(b"0", b'{"status":"success","data":[', b"]}"),
    "nothing but zeros": repeated(b"0", b"[", b"]"),
}  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_nonsense_takes_at_most_five_times_the_memory_of_its_bytes(body: bytes, tmp_path: Path) -> None:
    found = cost(READ, body, tmp_path)
    # The bytes themselves are one.
    assert found.memory + 1 <= 5, found


def test_sixteen_megabytes_of_zeros_are_refused_at_once(tmp_path: Path) -> None:
    found = cost(READ, HEAD + b"0," * (BYTES - 1) + b"0" + TAIL, tmp_path)
    assert found.outcome.startswith(
        "cannot query prometheus cpu: the answer cannot be read: its result is not a list of series: [0,0,0"
    )
    assert found.memory < 0.2
    assert found.passes < 3


def test_fifteen_thousand_nodes_with_all_their_labels_fit_the_default(tmp_path: Path) -> None:
    one = (
        b'{"metric":{"__name__":"node_cpu_usage_avg_5m","container":"node-exporter","endpoint":"http-metrics",'
        b'"instance":"10.12.134.156:9100","job":"node-exporter","namespace":"monitoring","node":"n%d",'
        b'"pod":"kube-prometheus-stack-prometheus-node-exporter-abcde",'
        b'"service":"kube-prometheus-stack-prometheus-node-exporter"},"value":[1731703675.123,"12.345678901234567"]}'
    )
    body = HEAD + b",".join(one % number for number in range(15_000)) + TAIL
    assert len(body) < PrometheusSettings(url="http://x").longest_answer
    assert cost(READ, body, tmp_path).outcome == "(15000, 15000, 1)"


@pytest.mark.parametrize("between", [b",", b" ,\n  "], ids=["as Prometheus writes", "with blanks"])
@pytest.mark.parametrize("odd", [b"0", b"{}", b'{"metric":{},"histogram":[1,{}]}', b'{"value":[1,"2"]}'])
def test_an_odd_series_in_the_midst_of_many_costs_itself_alone(odd: bytes, between: bytes) -> None:
    tricky = b'{"metric":{"text":"},{\\"metric\\":\\"},{\\\\"},"value":[1,"3"]}'
    many = (
        [SERIES % number for number in range(5000)]
        + [odd, tricky]
        + [SERIES % number for number in range(5000)]
    )
    read = list(decode(DOING, HEAD + between.join(many) + TAIL))
    assert len(read) == 10_002
    assert [place for place, one in enumerate(read) if one is None] == [5000]
    assert read[5001] is not None
    assert read[5001].labels == {"text": '},{"metric":"},{\\'}


def test_what_prometheus_says_of_itself_is_cut() -> None:
    with pytest.raises(ServerError) as refused:
        decode(DOING, b'{"status":"error","errorType":"bad","error":"' + b"x" * 100_000 + b'"}')
    assert len(str(refused.value)) < 400
    said = decode(
        DOING, b'{"status":"success","warnings":["' + b"x" * 100_000 + b'"],"data":{"resultType":"vector"}}'
    )
    assert sum(map(len, said.warnings)) < 400


async def test_an_answer_is_read_beside_the_loop_and_some_of_it_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that holds the interpreter for a whole answer holds up all others."""
    body, readers = HOSTILE["series of nodes, each another"], []

    def watched(doing: Doing, body: bytes) -> Vector:
        readers.append(threading.current_thread())
        return decode(doing, body)

    monkeypatch.setattr(prometheus, "decode", watched)
    async with Scripted().running() as server:
        server.say(200, body)
        asked = Prometheus(
            PrometheusSettings(url=server.url, longest_answer=Size(2 * BYTES)), SystemClock(), {}
        )
        try:
            answer = await asked.query("cpu", "up")
        finally:
            await asked.close()
    assert readers
    assert threading.main_thread() not in readers
    reading = asyncio.get_running_loop().run_in_executor(None, lambda: sum(1 for _ in answer))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert reading.result() > 100_000
    assert turns > 10


ODD = {
    "values that are no numbers": b'{"metric":{},"value":[1,"x"]}',
    "labels that are none": b'{"metric":0,"value":[1,"1"]}',
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_quarter_million_odd_series_are_given_up_early(odd: bytes, tmp_path: Path) -> None:
    assert cost(READ, repeated(odd), tmp_path).passes < 30


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_no_series_of_a_nonsensical_answer_is_read_by_the_loop(
    odd: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first good series tells Prometheus' time; in an answer without any, all of it would be gone through."""
    readers: set[threading.Thread] = set()
    some = answers._some

    def watched(piece: bytes) -> "Iterator[Series | None]":
        readers.add(threading.current_thread())
        return some(piece)

    monkeypatch.setattr(answers, "_some", watched)
    body = HEAD + b",".join([odd] * 5000) + TAIL
    async with Scripted().running() as server:
        table = Table(server)
        table.say(CPU, body)
        table.say(MEMORY, body)
        async with poller(server.url, SystemClock()) as polled:
            snapshot = await polled.once()
    assert [health.counts.malformed for health in snapshot.health if health.counts.series] == [5000, 5000]
    assert readers
    assert threading.main_thread() not in readers


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WITHOUT_END = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, "tiny chunks"),
    "chunks of a byte": (CHUNKED, b"1\r\n \r\n" * 40_000, "tiny chunks"),
    "one chunk's extension": (CHUNKED + b"1;", b"x" * 250_000, "keeps sending"),
}


@pytest.mark.parametrize(("head", "piece", "said"), WITHOUT_END.values(), ids=WITHOUT_END)
async def test_a_prometheus_that_keeps_us_busy_without_an_answer_is_hung_up_on(
    head: bytes, piece: bytes, said: str
) -> None:
    """No deadline ends what leaves the loop no turn: interim answers held up everything, and SIGTERM, for ever."""

    async def go_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            for _ in range(20):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(go_on, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        asked = Prometheus(PrometheusSettings(url=url, timeout=Seconds(3600)), SystemClock(), {})
        try:
            with pytest.raises(ClusterError, match=said):
                await asked.query("cpu", "up")
        finally:
            await asked.close()
