"""What the poller publishes while Prometheus does well, badly, and not at all."""

import asyncio
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from colocate.clock import ManualClock
from colocate.cluster.usage import (
    KnownNode,
    PrometheusSettings,
    SignalHealth,
    Statistic,
    UsagePoller,
    UsageSettings,
    UsageSnapshot,
    Window,
)
from colocate.model.load import Aggregate, Aggregation, Amount, NodeLoad, PodUsage, Usage
from colocate.model.values import Seconds
from colocate.telemetry import Event
from tests.cluster.serving import Scripted
from tests.support.logs import logged, told
from tests.support.nesting import DEEP
from tests.support.waiting import until

from .fake import CPU, MEMORY, NODES, TIME, Table, contested, passing, poller, vector

START = 1_700_000_000.0


@pytest.fixture
def table(scripted: Scripted) -> Table:
    made = Table(scripted)
    made.say(CPU, vector({"a": 10, "b": 20, "c": 30}))
    made.say(MEMORY, vector({"a": 40, "b": 50, "c": 60}))
    made.say(TIME, vector({"a": START - 5, "b": START - 7, "c": START - 9}))
    return made


def scraped(table: Table, at: float, nodes: str = "abc") -> None:
    """So many seconds after the start, these nodes are scraped."""
    table.say(TIME, vector(dict.fromkeys(nodes, START + at), START + at))


def memory(snapshot: UsageSnapshot) -> dict[str, float]:
    return {name: load.memory.percent for name, load in snapshot.nodes.items() if load.memory}


def health(snapshot: UsageSnapshot, name: str) -> SignalHealth:
    found = snapshot.of(name)
    assert found is not None
    return found


@asynccontextmanager
async def following(table: Table, clock: ManualClock, settings: UsageSettings) -> AsyncIterator[UsagePoller]:
    async with poller(table.url, clock, settings=settings) as made, running(made):
        yield made


@asynccontextmanager
async def running(follower: UsagePoller) -> AsyncIterator[None]:
    task = asyncio.create_task(follower.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def counted(metric: str, **labels: str) -> Iterator[list[float]]:
    """By how much a metric has grown, once the block is over."""
    grown: list[float] = []
    before = REGISTRY.get_sample_value(metric, labels) or 0.0
    yield grown
    grown.append((REGISTRY.get_sample_value(metric, labels) or 0.0) - before)


async def test_a_round_asks_each_query_once_for_all_nodes(table: Table, clock: ManualClock) -> None:
    async with poller(table.url, clock) as follower:
        snapshot = await follower.once()
        assert sorted(table.asked) == sorted([CPU, MEMORY, TIME])
        counts = [one.counts for one in snapshot.health]
        assert [(one.joined, one.missing, one.infinite) for one in counts] == [(3, 0, 0)] * 3
        assert snapshot.nodes == {
            "a": NodeLoad(Usage(10, START - 5), Usage(40, START - 5)),
            "b": NodeLoad(Usage(20, START - 7), Usage(50, START - 7)),
            "c": NodeLoad(Usage(30, START - 9), Usage(60, START - 9)),
        }
        assert snapshot.taken == START
        assert snapshot.clock_offset == 0
        assert snapshot is follower.latest
        cpu = health(snapshot, "cpu")
        assert (cpu.query, cpu.last_success, cpu.error, cpu.failures) == (CPU, START, "", 0)
        assert (cpu.counts.joined, cpu.counts.missing) == (3, 0)


async def test_one_signal_that_fails_leaves_the_others_alive(table: Table, clock: ManualClock) -> None:
    async with poller(table.url, clock) as follower:
        await follower.once()
        table.say(CPU, b'{"status":"error","errorType":"execution","error":"many-to-many"}', 422)
        table.say(MEMORY, vector({"a": 90, "b": 50, "c": 60}))
        scraped(table, 15)
        await clock.advance(15)
        with counted("colocate_usage_queries_total", signal="cpu", outcome="refused") as grown:
            snapshot = await follower.once()
        assert grown == [1]
        cpu = health(snapshot, "cpu")
        assert cpu.error == "cannot query prometheus cpu: many-to-many"
        assert (cpu.last_success, cpu.failures) == (START, 1)
        assert memory(snapshot)["a"] == 90
        old = snapshot.nodes["a"].cpu
        assert old == Usage(10, START - 5), "the last good sample stays, with its age"


async def test_without_times_samples_are_as_old_as_the_answer(table: Table, clock: ManualClock) -> None:
    table.say(TIME, b"", 500)
    async with poller(table.url, clock) as follower:
        snapshot = await follower.once()
        assert snapshot.nodes["a"].time == START
        assert "code 500" in health(snapshot, "time").error


async def test_a_node_without_a_series_keeps_its_last_sample_until_it_leaves_the_cluster(
    table: Table, clock: ManualClock
) -> None:
    known = list(NODES)
    async with poller(table.url, clock, nodes=known) as follower:
        await follower.once()
        table.say(MEMORY, vector({"a": 41, "b": 51}))
        scraped(table, 15)
        await clock.advance(15)
        snapshot = await follower.once()
        assert memory(snapshot) == {"a": 41, "b": 51, "c": 60}
        assert health(snapshot, "memory").missing == ("c",)
        assert snapshot.nodes["c"].memory == Usage(60, START - 9)
        del known[2]
        snapshot = await follower.once()
        assert set(snapshot.nodes) == {"a", "b"}


P95, DEVIATION = f"quantile_over_time(0.95, {CPU}[1h])", f"stddev_over_time({CPU}[15m])"


@pytest.mark.parametrize("left", ["ab", ""], ids=["one", "all"])
async def test_a_rule_that_outlives_its_exporter_changes_nothing(
    table: Table, clock: ManualClock, left: str
) -> None:
    windows = (Window(Statistic.P95, Seconds(3600)), Window(Statistic.DEVIATION, Seconds(900)))
    table.say(P95, vector({"c": 35}))
    table.say(DEVIATION, vector({"c": 2}))
    async with poller(table.url, clock, windows=windows) as follower:
        before = (await follower.once()).nodes["c"]
        assert before.cpu == Usage(30, START - 9, 2, (Aggregate(Aggregation.P95, 3600, 35),))
        # Memory goes at once, CPU once the rule's window has passed, and seems busier until then.
        for seconds, busy in ((15, 40), (30, 60), (45, 99)):
            values = dict.fromkeys(left, 11)
            table.say(CPU, vector(values | {"c": busy}))
            table.say(P95, vector(values | {"c": busy}))
            table.say(DEVIATION, vector(values | {"c": busy}))
            table.say(MEMORY, vector(values))
            scraped(table, seconds, left)
            await clock.advance(15)
            snapshot = await follower.once()
            assert snapshot.nodes["c"] == before
            times = health(snapshot, "time")
            assert (times.error, times.counts.missing) == ("", 3 - len(left)), "that is told, too"
        if left:
            assert snapshot.nodes["a"].cpu == Usage(
                11, START + 45, 11, (Aggregate(Aggregation.P95, 3600, 11),)
            )
        # It is back: what it says counts at once.
        table.say(CPU, vector({"c": 33}))
        scraped(table, 60, left + "c")
        await clock.advance(15)
        back = (await follower.once()).nodes["c"].cpu
        assert back is not None
        assert (back.percent, back.time) == (33, START + 60)


@pytest.mark.parametrize(("body", "code"), [(vector({}), 200), (vector({"x": START}), 200), (b"", 500)])
async def test_while_nobody_tells_when_nodes_were_scraped_samples_grow_old(
    table: Table, clock: ManualClock, body: bytes, code: int
) -> None:
    async with poller(table.url, clock) as follower:
        before = await follower.once()
        table.say(TIME, body, code)
        table.say(CPU, vector({"a": 91, "b": 92, "c": 93}))
        with logged() as logs:
            for _ in range(3):
                await clock.advance(15)
                assert (await follower.once()).nodes == before.nodes
        event = Event.USAGE_MISSING if code == 200 else Event.USAGE_FAILED
        assert [one["signal"] for one in told(logs, event)] == ["time"], "told once"


async def test_a_late_answer_about_the_same_scrape_is_no_news(table: Table, clock: ManualClock) -> None:
    async with poller(table.url, clock) as follower:
        for late, busy in ((9, 20), (0, 50), (5, 80)):
            # Asked at the same time, evaluated later: the scrape seems as much older.
            table.say(TIME, vector(dict.fromkeys("abc", START - 5), START + late))
            table.say(CPU, vector({"a": busy}, START + late))
            cpu = (await follower.once()).nodes["a"].cpu
            assert cpu == Usage(20, START - 14)


async def test_a_tenants_series_of_a_full_node_changes_nothing_and_is_told_with_the_matcher(
    table: Table, clock: ManualClock
) -> None:
    async with poller(table.url, clock) as follower:
        with logged() as logs:
            for _ in range(4):
                await clock.advance(15)
                now = clock.time()
                table.say(TIME, vector(dict.fromkeys("abc", now - 5), now))
                table.say(MEMORY, contested("a", 95, 0, now, {"b": 40, "c": 50}))
                snapshot = await follower.once()
                memory = snapshot.nodes["a"].memory
                assert memory is not None
                assert memory.percent == 95
        [collision] = health(snapshot, "memory").collisions
        assert (collision.node, collision.counted, collision.other) == ("a", 95, 0)
        assert health(snapshot, "memory").counts.contested == 1
        [event] = told(logs, Event.USAGE_COLLISION)
        assert event["node"] == "a"
        assert event["other_labels"] == {"node": "a", "job": "tenant"}
        assert 'add job="node-exporter" to usage.matchers' in event["remedy"]
        assert (
            REGISTRY.get_sample_value("colocate_usage_samples", {"signal": "memory", "state": "contested"})
            == 1
        )


async def test_a_tenant_whose_series_has_labels_without_end_fills_no_log_and_no_state(
    table: Table, clock: ManualClock
) -> None:
    labels = {"node": "nobody", "n" * 5000: "", "long": "x" * 100_000} | {f"n{i}": "" for i in range(5000)}
    stranger = json.dumps({"metric": labels, "value": [START, "1"]}).encode()
    table.say(CPU, vector({"a": 10, "b": 20}).replace(b'"result": [', b'"result": [%b, ' % stranger))
    async with poller(table.url, clock) as follower:
        with logged() as logs:
            snapshot = await follower.once()
    cpu = health(snapshot, "cpu")
    assert (cpu.counts.unknown, cpu.missing) == (1, ("c",)), "it is counted, and others are told of"
    [event] = [one for one in told(logs, Event.USAGE_MISSING) if one["signal"] == "cpu"]
    assert event["some_labels"][0]["node"] == "nobody"
    assert len(str(event)) < 20_000
    assert len(str(cpu)) < 20_000


async def test_a_node_that_nobody_measures_is_missing_and_nothing_fails(
    table: Table, clock: ManualClock
) -> None:
    async with poller(table.url, clock, nodes=[*NODES, KnownNode("new")]) as follower:
        snapshot = await follower.once()
        assert set(snapshot.nodes) == {"a", "b", "c"}
        assert health(snapshot, "cpu").missing == ("new",)
        assert REGISTRY.get_sample_value("colocate_usage_samples", {"signal": "cpu", "state": "missing"}) == 1


async def test_ratios_in_the_place_of_percents_are_told_once(table: Table, clock: ManualClock) -> None:
    def say(factor: float) -> None:
        for query in (CPU, MEMORY):
            table.say(query, vector({"a": 0.93 * factor, "b": 0.139 * factor, "c": 0.2 * factor}))

    def flags(snapshot: UsageSnapshot) -> list[bool]:
        return [health(snapshot, name).ratio for name in ("cpu", "memory", "time")]

    async with poller(table.url, clock) as follower:
        say(1)
        with logged() as logs:
            assert flags(await follower.once()) == [True, True, False]
            table.say(MEMORY, b"", 500)
            assert flags(await follower.once()) == [True, True, False], "as long as nothing else is known"
            say(1)
            assert flags(await follower.once()) == [True, True, False]
        [event] = told(logs, Event.USAGE_RATIO)
        assert event["signals"] == ["cpu", "memory"]
        assert "multiply by 100" in event["remedy"]
        say(100)
        assert flags(await follower.once()) == [False, False, False]


async def test_series_that_count_for_nobody_are_counted(table: Table, clock: ManualClock) -> None:
    table.say(CPU, vector({"a": "NaN", "b": "+Inf", "c": "-3", "stranger": 1}))
    async with poller(table.url, clock) as follower:
        with (
            counted("colocate_usage_rejected_series_total", signal="cpu", reason="not_a_number") as nan,
            counted("colocate_usage_rejected_series_total", signal="cpu", reason="unknown") as unknown,
        ):
            snapshot = await follower.once()
        assert nan == unknown == [1]
        assert snapshot.nodes["a"].cpu is None
        assert snapshot.nodes["a"].memory is not None
        assert health(snapshot, "cpu").strangers == ({"node": "stranger"},)


async def test_what_prometheus_warns_of_is_kept(table: Table, clock: ManualClock) -> None:
    table.say(CPU, vector({"a": 1})[:-1] + b', "warnings": ["a store is gone"], "infos": ["gauge?"]}')
    async with poller(table.url, clock) as follower:
        snapshot = await follower.once()
        assert health(snapshot, "cpu").warnings == ("a store is gone", "gauge?")
        assert health(snapshot, "cpu").error == ""


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", 500, "code 500"),
        (b"<html>bad gateway</html>", 502, "code 502: <html>bad gateway</html>"),
        (b"<html>Log in</html>", 200, "the answer cannot be read: JSON is malformed"),
        (vector({"a": 1})[:-30], 200, "the answer cannot be read"),
        (b"", 401, "does not accept the credential"),
        (b"not found", 404, "code 404: not found"),
        (b'{"odd": %b}' % DEEP, 200, "the answer cannot be read"),
        (b'{"status": "success", "data": {"result": %b}}' % DEEP, 200, "the answer cannot be read"),
        (b'{"odd": %b}' % DEEP, 500, "code 500"),
    ],
)
async def test_an_answer_that_is_none_is_a_reason_and_the_next_is_right(
    table: Table, clock: ManualClock, body: bytes, code: int, words: str
) -> None:
    async with poller(table.url, clock) as follower:
        table.say(MEMORY, body, code)
        snapshot = await follower.once()
        assert words in health(snapshot, "memory").error
        assert health(snapshot, "memory").last_success is None
        table.say(MEMORY, vector({"a": 70}))
        assert memory(await follower.once()) == {"a": 70}


async def test_a_redirect_is_not_followed_and_says_where_to(table: Table, clock: ManualClock) -> None:
    to = f"http://someone:secret@127.0.0.1:{table.url.rpartition(':')[2]}/login?token=secret"
    table.say(CPU, b"", 302, Location=to)
    async with poller(table.url, clock) as follower:
        error = health(await follower.once(), "cpu").error
        assert "redirects (code 302) to http://127.0.0.1:" in error
        assert error.endswith("/login; give the address that answers without a redirect")
        assert "secret" not in error
        assert len(table.asked) == 3


async def test_a_slow_prometheus_is_given_up_after_the_timeout(table: Table, clock: ManualClock) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    table.do(CPU, hang)
    async with poller(table.url, clock) as follower:
        work = asyncio.create_task(follower.once())
        await until(lambda: len(table.asked) == 3, "all queries")
        snapshot = await passing(clock, work)
        assert "has not answered within 10 s" in health(snapshot, "cpu").error
        assert clock.monotonic() >= 10


async def test_a_hundred_megabytes_are_not_taken_in(table: Table, clock: ManualClock) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b" " * (1 << 20))
            sent += 1 << 20
        return response

    table.do(CPU, flood)
    async with poller(table.url, clock, longest_answer=4 << 20) as follower:
        tracemalloc.start()
        snapshot = await follower.once()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert health(snapshot, "cpu").error.endswith(
            "the answer cannot be read: it is longer than 4 MiB (usage.prometheus.longestAnswer)"
        )
        assert peak < 32 << 20
        assert sent < 50 << 20
        assert memory(snapshot) == {"a": 40, "b": 50, "c": 60}


@pytest.mark.parametrize("code", [200, 500])
async def test_a_gzip_bomb_stays_packed(table: Table, clock: ManualClock, code: int) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()
    table.say(CPU, bomb, code, Content_Encoding="gzip")
    async with poller(table.url, clock) as follower:
        tracemalloc.start()
        snapshot = await follower.once()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        words = "it is compressed (gzip), although that was not asked for" if code == 200 else "code 500"
        assert words in health(snapshot, "cpu").error
        assert peak < 8 << 20


async def test_pods_are_measured_where_that_is_wished(table: Table, clock: ManualClock) -> None:
    def pods(*values: tuple[str, str, float]) -> bytes:
        series = [f'{{"metric":{{"namespace":"{n}","pod":"{p}"}},"value":[1,"{v}"]}}' for n, p, v in values]
        text = f'{{"status":"success","data":{{"resultType":"vector","result":[{",".join(series)}]}}}}'
        return text.encode()

    async with poller(table.url, clock, pods=True) as follower:
        by_name = {query.name: query.query for query in (await follower.once()).health}
        table.say(by_name["pod.cpu"], pods(("x", "p", 250.4), ("x", "q", 5), ("", "r", 1), ("x", "s", -9)))
        table.say(by_name["pod.memory"], pods(("x", "p", 1 << 20), ("x", "s", 7)))
        snapshot = await follower.once()
        assert snapshot.pods == {"x/p": PodUsage(Amount(250, 1 << 20), START)}
        counts = health(snapshot, "pod.cpu").counts
        assert (counts.joined, counts.unknown, counts.negative) == (2, 1, 1)
        table.say(by_name["pod.cpu"], pods())
        assert (await follower.once()).pods == {}, "pods that are gone are not remembered"


async def test_pods_are_asked_for_less_often_where_that_is_wished(table: Table, clock: ManualClock) -> None:
    settings = UsageSettings(interval=Seconds(15), pods_interval=Seconds(60))
    async with poller(table.url, clock, pods=True, settings=settings) as follower:
        asked = []
        for _ in range(9):
            before = health(follower.latest, "pod.cpu").last_success if follower.latest.health else None
            after = health(await follower.once(), "pod.cpu").last_success
            asked.append(after != before)
            await clock.advance(15)
        assert asked == [True, *[False] * 3, True, *[False] * 3, True]


async def test_rounds_follow_each_other_and_are_announced(table: Table, clock: ManualClock) -> None:
    async with following(table, clock, UsageSettings(interval=Seconds(15))) as follower:
        await follower.changed.beyond(0)
        first = follower.latest
        table.say(MEMORY, vector({"a": 99}))
        scraped(table, 15)
        await clock.until_someone_sleeps()
        await clock.advance(15)
        await follower.changed.beyond(1)
        assert follower.latest is not first
        assert memory(first)["a"] == 40, "what was published does not change"
        assert memory(follower.latest)["a"] == 99


class NotingClock(ManualClock):
    """Notes for how long the poller pauses; a query's deadline is none of that."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds != PrometheusSettings(url="").timeout:
            self.pauses.append(seconds)
        await super().sleep(seconds)

    async def end_pause(self, number: int) -> None:
        await until(lambda: len(self.pauses) == number, f"pause {number}")
        await self.advance(self.pauses[-1])


async def test_while_nothing_answers_the_pauses_grow_and_the_samples_stay(table: Table) -> None:
    clock = NotingClock()
    settings = UsageSettings(interval=Seconds(15))
    async with following(table, clock, settings) as follower:
        await follower.changed.beyond(0)
        good = follower.latest
        for query in (CPU, MEMORY, TIME):
            table.say(query, b"", 503)
        for number in range(1, 8):
            await clock.end_pause(number)
        await follower.changed.beyond(7)
        assert follower.latest.nodes == good.nodes
        assert health(follower.latest, "cpu").failures == 7
        table.say(CPU, vector({"a": 11}))
        await clock.end_pause(8)
        await follower.changed.beyond(8)
        assert health(follower.latest, "cpu").failures == 0
        await until(lambda: len(clock.pauses) == 9, "the pause after the recovery")
        assert clock.pauses == [15, 1, 2, 4, 8, 16, 30, 30, 15]


async def test_a_series_that_is_too_deep_leaves_the_others_alive(table: Table, clock: ManualClock) -> None:
    good = vector({"a": 70})
    odd = b'{"metric": {"node": "b"}, "value": [1, "2"], "odd": [[]]}'.replace(b"[]", b"[" * 900 + b"]" * 900)
    table.say(MEMORY, good.replace(b'"result": [', b'"result": [%b, ' % odd))
    async with poller(table.url, clock) as follower:
        assert memory(await follower.once())["a"] == 70


async def test_a_round_that_breaks_off_ends_nothing(table: Table, clock: ManualClock) -> None:
    faults = [ValueError("an odd node")]

    def nodes() -> list[KnownNode]:
        if faults:
            raise faults.pop()
        return NODES

    async with poller(table.url, clock, nodes=nodes) as follower:
        with logged() as logs:
            async with running(follower):
                await follower.changed.beyond(0)
                assert follower.latest.nodes == {}, "nothing is known, and followers are told so"
                await clock.until_someone_sleeps()
                await clock.advance(1)
                await follower.changed.beyond(1)
                assert memory(follower.latest) == {"a": 40, "b": 50, "c": 60}
        [said] = told(logs, Event.USAGE_FAILED)
        assert str(said["exc_info"]) == "an odd node"


async def test_times_are_asked_for_first(table: Table) -> None:
    async with poller(table.url, ManualClock(START)) as made:
        await made.once()
    assert table.asked[0] == TIME
