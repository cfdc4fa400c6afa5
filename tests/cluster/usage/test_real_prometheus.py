"""A real Prometheus with real node-exporters, asked as in production."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from colocate.clock import SystemClock
from colocate.cluster.usage import (
    Preset,
    Prometheus,
    PrometheusSettings,
    Statistic,
    UsagePoller,
    UsageSettings,
    UsageSnapshot,
    Window,
)
from colocate.model.load import NodeLoad
from colocate.model.values import Seconds
from tests.support.prometheus import WINDOW, Metrics, free_port

pytestmark = pytest.mark.needs("prometheus", "node-exporter")


@asynccontextmanager
async def polling(metrics: Metrics, settings: UsageSettings | None = None) -> AsyncIterator[UsagePoller]:
    clock = SystemClock()
    prometheus = Prometheus(PrometheusSettings(url=metrics.url), clock)
    try:
        yield UsagePoller(settings or UsageSettings(), metrics.known, clock, prometheus)
    finally:
        await prometheus.close()


async def polled_until(poller: UsagePoller, holds: Callable[[UsageSnapshot], bool]) -> UsageSnapshot:
    async with asyncio.timeout(30):
        while not holds(snapshot := await poller.once()):  # noqa: ASYNC110 -- Prometheus announces nothing
            await asyncio.sleep(0.05)
    return snapshot


def memory(snapshot: UsageSnapshot) -> dict[str, float]:
    return {name: load.memory.percent for name, load in snapshot.nodes.items() if load.memory}


def cpu(snapshot: UsageSnapshot) -> dict[str, float]:
    return {name: load.cpu.percent for name, load in snapshot.nodes.items() if load.cpu}


def near(percent: float) -> object:
    return pytest.approx(percent, abs=8)


async def test_the_seeds_rules_say_which_node_is_busy(metrics: Metrics) -> None:
    await metrics.node("a", memory_percent=90, cpu_percent=5)
    await metrics.node("b", memory_percent=15, cpu_percent=70)
    await metrics.settled()
    async with polling(metrics) as poller:
        snapshot = await polled_until(poller, lambda seen: cpu(seen) == {"a": near(5), "b": near(70)})
        assert memory(snapshot) == {"a": near(90), "b": near(15)}
        assert [health.error for health in snapshot.health] == ["", "", ""]
        assert snapshot.clock_offset == pytest.approx(0, abs=5)
        times = [load.time for load in snapshot.nodes.values()]
        assert all(time is not None and snapshot.taken - 10 < time <= snapshot.taken for time in times)

        await metrics.node("a", memory_percent=30)
        snapshot = await polled_until(poller, lambda seen: memory(seen)["a"] < 35)
        assert memory(snapshot) == {"a": near(30), "b": near(15)}


async def test_the_seeds_rules_keep_each_label_that_may_say_the_node(tmp_path: Path) -> None:
    async with Metrics(tmp_path / "metrics", node_label="kubernetes_node") as metrics:
        await metrics.node("a", memory_percent=60, cpu_percent=30, labels={"instance": "elsewhere:9100"})
        async with polling(metrics) as poller:
            await polled_until(
                poller, lambda seen: (memory(seen), cpu(seen)) == ({"a": near(60)}, {"a": near(30)})
            )


async def test_a_node_whose_exporter_is_gone_keeps_its_last_sample_and_its_age(metrics: Metrics) -> None:
    await metrics.node("a")
    await metrics.node("b", memory_percent=50)
    await metrics.settled()
    async with polling(metrics) as poller:
        before = (await poller.once()).nodes["b"].memory
        assert before is not None
        await metrics.exporter("b").stop()

        def is_missing(seen: UsageSnapshot) -> bool:
            health = seen.of("memory")
            return health is not None and health.missing == ("b",)

        def is_older(seen: UsageSnapshot) -> bool:
            last, fresh = seen.nodes["b"].memory, seen.nodes["a"].memory
            return is_missing(seen) and last is not None and fresh is not None and last.time < fresh.time

        snapshot = await polled_until(poller, is_older)
        last = snapshot.nodes["b"].memory
        assert last is not None
        assert last.percent == near(50)
        await metrics.exporter("b").start()
        await polled_until(poller, lambda seen: not is_missing(seen))


@pytest.mark.parametrize("left", ["a", ""], ids=["one", "all"])
async def test_a_node_whose_exporter_is_gone_does_not_seem_busier(metrics: Metrics, left: str) -> None:
    for name in "ab":
        await metrics.node(name, cpu_percent=20)
    await metrics.settled()
    raw = UsageSettings(preset=Preset.NODE_EXPORTER, average=Seconds(WINDOW))
    async with polling(metrics) as seed, polling(metrics, raw) as node_exporter:
        pollers = (seed, node_exporter)
        steady = pytest.approx({"a": 20, "b": 20}, abs=15)
        asked = [(await polled_until(one, lambda seen: cpu(seen) == steady)).of("cpu") for one in pollers]
        for name in set("ab") - set(left):
            await metrics.exporter(name).stop()
        said = [{"b": 20.0}]
        async with asyncio.timeout(30):
            while any("b" in busy for busy in said[-len(asked) :]):
                for poller in pollers:
                    assert cpu(await poller.once()) == steady
                said += [await metrics.query(one.query) for one in asked if one is not None]
                await asyncio.sleep(0.1)
        assert max(busy.get("b", 0) for busy in said) > 50, "Prometheus itself takes it for busy"
        for poller in pollers:
            last = poller.latest.nodes["b"].cpu
            assert last is not None
            assert last.time < poller.latest.taken - WINDOW / 2


async def test_prometheus_may_die_and_come_back(metrics: Metrics) -> None:
    await metrics.node("a", memory_percent=60)
    await metrics.settled()
    async with polling(metrics) as poller:
        before = await poller.once()
        await metrics.stop()
        dead = await poller.once()
        assert dead.nodes == before.nodes
        assert all("no connection" in health.error for health in dead.health)
        await metrics.node("a", memory_percent=10)
        await metrics.start()
        await polled_until(poller, lambda seen: memory(seen)["a"] < 15)


def is_steady(load: NodeLoad) -> bool:
    """Whether what is said of a window agrees with what is said of now."""
    return all(
        usage is not None
        and usage.deviation < 5
        and {aggregate.kind for aggregate in usage.aggregates} == {"avg", "p50", "p95"}
        and all(abs(aggregate.percent - usage.percent) < 8 for aggregate in usage.aggregates)
        for usage in (load.cpu, load.memory)
    )


def is_as_set(seen: UsageSnapshot) -> bool:
    """Whether two nodes are as busy as these tests make them, and have been for a while."""
    busy = memory(seen) == {"a": near(80), "b": near(10)} and cpu(seen) == {"a": near(60), "b": near(20)}
    return busy and all(map(is_steady, seen.nodes.values()))


WINDOWS = tuple(
    Window(statistic, Seconds(4))
    for statistic in (Statistic.DEVIATION, Statistic.AVERAGE, Statistic.P50, Statistic.P95)
)


async def test_raw_node_exporter_without_labels_joins_by_address(tmp_path: Path) -> None:
    settings = UsageSettings(preset=Preset.NODE_EXPORTER, average=Seconds(WINDOW), windows=WINDOWS)
    async with Metrics(tmp_path / "metrics", node_label="") as metrics:
        await metrics.node("a", memory_percent=80, cpu_percent=60)
        await metrics.node("b", memory_percent=10, cpu_percent=20)
        await metrics.settled()
        async with polling(metrics, settings) as poller:
            snapshot = await polled_until(poller, is_as_set)
            assert [health.error for health in snapshot.health] == [""] * len(snapshot.health)
            # A deviation appears as soon as the node's use changes.
            await metrics.node("b", memory_percent=70)
            await polled_until(
                poller, lambda seen: (use := seen.nodes["b"].memory) is not None and use.deviation > 5
            )


async def test_the_rules_of_kube_prometheus_stack_serve_as_they_are(tmp_path: Path) -> None:
    idle = f'rate(node_cpu_seconds_total{{mode="idle"}}[{WINDOW:g}s])'
    recorded = {
        "instance:node_cpu_utilisation:rate5m": f"1 - avg without (cpu, mode) ({idle})",
        "instance:node_memory_utilisation:ratio": "1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes",
    }
    settings = UsageSettings(preset=Preset.KUBE_PROMETHEUS_STACK, average=Seconds(WINDOW), windows=WINDOWS)
    async with Metrics(tmp_path / "metrics", node_label="", more_rules=recorded) as metrics:
        await metrics.node("a", memory_percent=80, cpu_percent=60)
        # As some installations relabel it: the node's name in place of its address.
        await metrics.node("b", memory_percent=10, cpu_percent=20, labels={"instance": "b"})
        async with polling(metrics, settings) as poller:
            snapshot = await polled_until(poller, is_as_set)
            assert [health.error for health in snapshot.health] == [""] * len(snapshot.health)


async def test_one_query_that_is_wrong_leaves_the_others_alive(metrics: Metrics) -> None:
    await metrics.node("a")
    await metrics.settled()
    settings = UsageSettings(queries={"cpu": "rate(", "time": "node_memory_MemTotal_bytes[5m]"})
    async with polling(metrics, settings) as poller:
        snapshot = await poller.once()
        assert memory(snapshot) == {"a": near(20)}
        refused, confused = snapshot.of("cpu"), snapshot.of("time")
        assert refused is not None
        assert "parse error" in refused.error
        assert confused is not None
        assert "must not end in a range" in confused.error


async def test_a_node_label_that_names_nobody_is_shown_to_whoever_asks_why(metrics: Metrics) -> None:
    exporter = await metrics.node("a", labels={"node": "renamed", "instance": "elsewhere:9100"})
    async with polling(metrics) as poller:

        def strange(seen: UsageSnapshot) -> bool:
            health = seen.of("memory")
            return health is not None and health.counts.unknown == 1

        snapshot = await polled_until(poller, strange)
        health = snapshot.of("memory")
        assert health is not None
        assert health.missing == (exporter.name,)
        assert dict(health.strangers[0]).items() >= {"node": "renamed", "instance": "elsewhere:9100"}.items()
        assert snapshot.nodes == {}


@asynccontextmanager
async def cadvisor(**containers: float) -> AsyncIterator[str]:
    """The address of one that tells of a pod's containers, by the cores that they use; each has a GiB of memory. It
    speaks as through a pair of Prometheus' replicas."""

    async def tell(_: web.Request) -> web.Response:
        lines = []
        for replica in "ab":
            for name, cores in containers.items():
                labels = (
                    f'namespace="d",pod="p",container="{name}",id="/{name}",prometheus_replica="{replica}"'
                )
                lines.append(f"container_cpu_usage_seconds_total{{{labels}}} {time.monotonic() * cores}")
                lines.append(f"container_memory_working_set_bytes{{{labels}}} {1 << 30}")
        return web.Response(text="\n".join([*lines, ""]))

    app = web.Application()
    app.router.add_get("/metrics", tell)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port("127.0.0.1")
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def test_what_a_pair_of_replicas_tells_of_a_pod_counts_once(metrics: Metrics) -> None:
    settings = UsageSettings(pods=True, pods_interval=Seconds(0), average=Seconds(WINDOW))
    async with cadvisor(main=0.5, sidecar=0.25) as address, polling(metrics, settings) as poller:
        metrics.scrape("cadvisor", address, {})
        snapshot = await polled_until(
            poller, lambda seen: "d/p" in seen.pods and seen.pods["d/p"].amount.cpu > 700
        )
        used = snapshot.pods["d/p"].amount
        assert used.cpu == pytest.approx(750, abs=50)
        assert used.memory == 2 << 30
