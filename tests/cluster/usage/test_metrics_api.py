"""The metrics API, for nodes that Prometheus says nothing of."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

from colocate.clock import ManualClock
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.usage import METRICS_API, KnownNode, MetricsApi, UsagePoller, UsageSettings
from colocate.cluster.usage.directory import NODE_ADDRESSES
from colocate.lab.api.resources import NODES
from colocate.lab.api.server import ApiServer
from colocate.model.load import Amount, NodeLoad, Usage
from tests.cluster.serving import Scripted, connect
from tests.support.nesting import DEEP

from .fake import CPU, MEMORY, TIME, Table, passing, poller, vector

START = 1_700_000_000.0


def listed(*nodes: tuple[str, str, str], time: float = START - 20) -> bytes:
    stamp = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = [
        {
            "metadata": {"name": name, "creationTimestamp": stamp},
            "timestamp": stamp,
            "window": "20.052s",
            "usage": {"cpu": cpu, "memory": memory},
        }
        for name, cpu, memory in nodes
    ]
    return json.dumps(
        {"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}
    ).encode()


async def test_it_serves_alone_where_there_is_no_prometheus(scripted: Scripted, clock: ManualClock) -> None:
    scripted.say(200, listed(("a", "1000m", "512Mi"), ("b", "123456789n", "1Gi"), ("gone", "1", "1")))
    known = [KnownNode(name, (), Amount(4000, 1 << 30)) for name in "abc"]
    async with connect(scripted.url, clock) as client:
        alone = UsagePoller(UsageSettings(), lambda: known, clock, metrics_api=MetricsApi(client))
        snapshot = await alone.once()
    time = START - 20
    assert scripted.seen[0].path == "/apis/metrics.k8s.io/v1beta1/nodes"
    assert snapshot.nodes == {
        "a": NodeLoad(Usage(25, time), Usage(50, time)),
        "b": NodeLoad(Usage(3.1, time), Usage(100, time)),
    }
    assert snapshot.filled == ("a", "b")
    [health] = snapshot.health
    assert health.name == METRICS_API
    assert (health.counts.joined, health.counts.unknown, health.missing) == (2, 1, ("c",))


async def test_the_embedded_clusters_is_understood(
    server: ApiServer, client: Client, clock: ManualClock
) -> None:
    used = {"a": ("1", "512Mi"), "b": ("123456789n", "1Gi"), "c": ("none", "1Gi")}
    for name, (cpu, memory) in used.items():
        told = {"lab.colocate.dev/usage-cpu": cpu, "lab.colocate.dev/usage-memory": memory}
        capacity = {"cpu": "4", "memory": "1Gi"}
        body = {"metadata": {"name": name, "annotations": told}, "status": {"capacity": capacity}}
        server.registry.create(NODES, "", body)
    known = [node.known for node in await client.list(NODE_ADDRESSES)]
    alone = UsagePoller(UsageSettings(), lambda: known, clock, metrics_api=MetricsApi(client))
    snapshot = await alone.once()
    assert snapshot.nodes == {
        "a": NodeLoad(Usage(25, START), Usage(50, START)),
        "b": NodeLoad(Usage(3.1, START), Usage(100, START)),
    }
    [health] = snapshot.health
    assert (health.error, health.counts.joined, health.missing) == ("", 2, ("c",))


@pytest.mark.parametrize(
    ("cpu", "reason"),
    [
        ("lots", "malformed"),
        ("-1Gi", "negative"),
        ("-1e400", "infinite"),
        ("999999999999E", "infinite"),
        ("1e400", "infinite"),
    ],
)
async def test_a_use_that_is_none_is_left_out_and_counted(
    scripted: Scripted, clock: ManualClock, cpu: str, reason: str
) -> None:
    scripted.say(200, listed(("a", cpu, "1Gi"), ("b", "1", cpu)))
    known = [KnownNode(name, (), Amount(4000, 1 << 30)) for name in "ab"]
    known.append(KnownNode("without capacity"))
    async with connect(scripted.url, clock) as client:
        alone = UsagePoller(UsageSettings(), lambda: known, clock, metrics_api=MetricsApi(client))
        snapshot = await alone.once()
    assert snapshot.nodes == {
        "a": NodeLoad(None, Usage(100, START - 20)),
        "b": NodeLoad(Usage(25, START - 20), None),
    }
    [health] = snapshot.health
    assert getattr(health.counts, reason) == 1


@pytest.mark.parametrize(
    ("stamp", "time"),
    [
        ("2023-11-14T22:13:00Z", START - 20),
        ("2023-11-14T22:13:00", START - 20),
        ("0001-01-01T00:00:00", 0),
        ("9999-12-31T23:59:59-14:00", START),
    ],
)
async def test_no_time_is_too_odd(scripted: Scripted, clock: ManualClock, stamp: str, time: float) -> None:
    item = {"metadata": {"name": "a"}, "timestamp": stamp, "usage": {"cpu": "1", "memory": "1Gi"}}
    scripted.say(200, json.dumps({"metadata": {}, "items": [item]}).encode())
    known = [KnownNode("a", (), Amount(4000, 1 << 30))]
    async with connect(scripted.url, clock) as client:
        alone = UsagePoller(UsageSettings(), lambda: known, clock, metrics_api=MetricsApi(client))
        assert (await alone.once()).nodes["a"].time == time


async def test_an_answer_that_is_too_deep_is_a_reason(scripted: Scripted, clock: ManualClock) -> None:
    scripted.say(200, b'{"metadata":{},"items":[{"metadata":{"name":"a"},"odd":%b}]}' % DEEP)
    known = [KnownNode("a", (), Amount(4000, 1 << 30))]
    async with connect(scripted.url, clock) as client:
        alone = UsagePoller(UsageSettings(), lambda: known, clock, metrics_api=MetricsApi(client))
        [health] = (await alone.once()).health
    assert "list nodes.metrics.k8s.io: the answer cannot be read" in health.error


async def test_an_answer_that_would_fill_the_memory_is_not_read_to_its_end(
    scripted: Scripted, clock: ManualClock
) -> None:
    scripted.say(200, b'{"metadata":{},"items":[' + b" " * (33 << 20) + b"]}")
    known = [KnownNode("a", (), Amount(4000, 1 << 30))]
    async with connect(scripted.url, clock) as client:
        alone = UsagePoller(UsageSettings(), lambda: known, clock, metrics_api=MetricsApi(client))
        [health] = (await alone.once()).health
    assert health.error.endswith("the answer cannot be read: it is longer than 32 MiB")


async def test_it_fills_in_what_prometheus_does_not_know(scripted: Scripted, clock: ManualClock) -> None:
    table = Table(scripted)
    table.say(CPU, vector({"a": 10, "b": 20}))
    table.say(MEMORY, vector({"a": 40, "b": 50}))
    table.say(TIME, vector({"a": START - 5, "b": START - 300}))
    async with (
        Scripted().running() as api,
        connect(api.url, clock) as client,
        poller(table.url, clock, MetricsApi(client)) as both,
    ):
        api.say(200, listed(("a", "4", "1Gi"), ("b", "2", "256Mi"), ("c", "1", "0")))
        snapshot = await both.once()
        time = START - 20
        assert snapshot.nodes == {
            "a": NodeLoad(Usage(10, START - 5), Usage(40, START - 5)),
            "b": NodeLoad(Usage(50, time), Usage(25, time)),
            "c": NodeLoad(Usage(25, time), Usage(0, time)),
        }
        assert snapshot.filled == ("b", "c")

        # Prometheus knows all of them again: the metrics API is not asked.
        asked = len(api.seen)
        table.say(CPU, vector({"a": 10, "b": 21, "c": 31}))
        table.say(MEMORY, vector({"a": 40, "b": 51, "c": 61}))
        table.say(TIME, vector(dict.fromkeys("abc", START)))
        snapshot = await both.once()
        assert (snapshot.filled, len(api.seen)) == ((), asked)
        assert snapshot.nodes["c"] == NodeLoad(Usage(31, START), Usage(61, START))


async def test_a_silent_metrics_api_does_not_hold_up_the_rounds(
    scripted: Scripted, clock: ManualClock
) -> None:
    scripted.hang()
    known = [KnownNode("a", (), Amount(4000, 1 << 30))]
    async with connect(scripted.url, clock) as client:
        alone = UsagePoller(UsageSettings(), lambda: known, clock, metrics_api=MetricsApi(client))
        work = asyncio.create_task(alone.once())
        await scripted.asked.wait()
        snapshot = await passing(clock, work)
    [health] = snapshot.health
    assert health.error == "cannot list nodes.metrics.k8s.io: no answer within 10 s"
    assert clock.monotonic() >= 10


async def test_where_it_fails_too_the_last_samples_stay(scripted: Scripted, clock: ManualClock) -> None:
    scripted.say(200, listed(("a", "1000m", "512Mi")))
    scripted.say(404, b'{"message": "the server could not find the requested resource", "code": 404}')
    known = [KnownNode("a", (), Amount(4000, 1 << 30))]
    async with connect(scripted.url, clock, settings=ClientSettings(attempts=1)) as client:
        alone = UsagePoller(UsageSettings(), lambda: known, clock, metrics_api=MetricsApi(client))
        good = await alone.once()
        bad = await alone.once()
    assert bad.nodes == good.nodes
    assert bad.filled == ("a",)
    [health] = bad.health
    assert (
        "list nodes.metrics.k8s.io: this cluster serves no metrics API; install metrics-server"
        in health.error
    )
