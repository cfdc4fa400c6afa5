"""Follows the use of nodes: asks every signal once a round, keeps the last good samples, publishes what is known.

A signal that fails does not affect the others, and its last samples stay, with their time, so that decisions see
their age. The last samples of a node that is no longer scraped stay, too, even if recording rules still produce
values. A node without news from Prometheus is filled in from the metrics API, if that is configured. Nothing here
judges a node; samples are dropped only when their node leaves the cluster.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import msgspec

from colocate import telemetry
from colocate.aio import Watched
from colocate.backoff import BackOff, Random
from colocate.clock import Clock
from colocate.cluster.errors import ClusterError
from colocate.cluster.usage.answers import Vector
from colocate.cluster.usage.claims import Claims, Sample, collisions, counting, disagreeing, updated
from colocate.cluster.usage.directory import Directory, KnownNode
from colocate.cluster.usage.metrics_api import MetricsApi
from colocate.cluster.usage.node_series import (
    LATEST,
    Joined,
    Times,
    join,
    join_pods,
    node_loads,
    pod_usages,
)
from colocate.cluster.usage.presets import TIME, Queries, queries
from colocate.cluster.usage.prometheus import Prometheus
from colocate.cluster.usage.record import Record
from colocate.cluster.usage.settings import UsageSettings
from colocate.cluster.usage.signals import POD_CPU, POD_MEMORY, Measured, Signal, Statistic, ratios
from colocate.cluster.usage.snapshot import UsageSnapshot
from colocate.errors import UserError
from colocate.telemetry import Event

_USES = tuple(Signal(measured) for measured in Measured)
METRICS_API = "metrics-api"
"""The name of what is asked of the metrics API, among those of signals."""


_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0
"""Seconds between rounds while nothing answers: doubled from the first to the last, and up to twice as long by
chance."""
_FILL_AFTER = 60.0
"""Seconds after which a node without a newer sample is filled in from the metrics API."""
EXPIRY = 180.0
"""Seconds for which a series counts, unless the caller states another time."""


class UsagePoller:
    """The use of nodes, kept up to date by `run`."""

    def __init__(
        self,
        settings: UsageSettings,
        nodes: Callable[[], Iterable[KnownNode]],
        clock: Clock,
        prometheus: Prometheus | None = None,
        metrics_api: MetricsApi | None = None,
        random: Random = random.random,
        *,
        expiry: float = EXPIRY,
    ) -> None:
        """Of several series of a node the highest counts while it is younger than `expiry` seconds."""
        wanted = self._queries = queries(settings)
        self._nodes = nodes
        self._clock = clock
        self._prometheus = prometheus
        self._metrics_api = metrics_api
        self._settings = settings
        self._expiry = expiry
        self._random = random
        self._samples: dict[Signal, Mapping[str, Sample]] = {}
        """The last good samples of each signal from Prometheus, of nodes and pods."""
        self._claims: dict[Signal, Claims] = {}
        """By signal of nodes, the claims that the samples were chosen from."""
        self._filled: dict[Signal, dict[str, Sample]] = {}
        """Samples from the metrics API, of nodes without news from Prometheus."""
        self._times: Times | None = None
        """When nodes were last scraped, by all answers so far."""
        self._offset: float | None = None
        self._asked_pods = float("-inf")
        """When pods were last asked for, by the monotonic clock."""
        asked: dict[str, str] = {}
        if prometheus is not None:
            asked = {str(query.signal): query.promql for query in wanted.signals}
            asked |= {TIME: wanted.time} if wanted.time else {}
        if metrics_api is not None:
            asked[METRICS_API] = "list nodes.metrics.k8s.io"
        self._record = Record(asked, clock)
        self.latest = UsageSnapshot()
        self.changed = Watched()
        """Counts the rounds."""

    async def run(self) -> NoReturn:
        """Ask until cancelled, whatever happens to Prometheus, and whatever it answers."""
        settings = self._settings
        back_off = BackOff(min(_FIRST_PAUSE, settings.interval), _LAST_PAUSE, self._random)
        while True:
            broke_off = False
            try:
                await self.once()
            except Exception as error:  # noqa: BLE001 -- whatever it is, the next round must be tried
                broke_off = True
                telemetry.logger().error(Event.USAGE_FAILED, exc_info=error)
                # The samples stay, and followers are told that a round is over.
                self.changed.changed()
            if broke_off or self._record.all_failed:
                pause = back_off.pause()
            else:
                back_off.reset()
                pause = settings.interval * (1 + 0.1 * self._random())
            await self._clock.sleep(pause)

    async def once(self) -> UsageSnapshot:
        """One round. It does not fail: the snapshot's health says what did."""
        directory = Directory(self._nodes())
        for signal, claims in self._claims.items():
            samples = self._samples[signal]
            self._claims[signal] = {node: claims[node] for node in claims if node in directory.nodes}
            self._samples[signal] = {node: samples[node] for node in samples if node in directory.nodes}
        if self._prometheus is not None:
            await self._ask_prometheus(self._prometheus, directory)
        if self._metrics_api is not None:
            await self._fill_in(self._metrics_api, directory)
        await self._publish(directory)
        return self.latest

    async def _ask_prometheus(self, prometheus: Prometheus, directory: Directory) -> None:
        asked = self._clock.time()
        due = self._due()
        # Times first: a scrape in between then makes a value seem old until the next round, and never an old one new.
        wanted = [(TIME, due.time, False)] if due.time else []
        wanted += [
            (str(query.signal), query.promql, query.signal.statistic is Statistic.POD)
            for query in due.signals
        ]
        answers = dict(await asyncio.gather(*(self._ask(prometheus, *one) for one in wanted)))
        scraped = answers.get(TIME)
        # In a thread, as all that follows: thousands of series would block the event loop.
        times = await asyncio.to_thread(
            Times, scraped or (), directory, due.labels, asked, before=self._times
        )
        self._times = times
        if scraped is not None:
            # Joined only for the counts: they report nodes that are missing here, too.
            counted = await asyncio.to_thread(join, scraped, directory, due.labels, times, LATEST)
            self._record.succeeded(TIME, counted, scraped)
        recorded: dict[Signal, list[float]] = {}
        for query in due.signals:
            answer = answers[str(query.signal)]
            if answer is None:
                continue
            joined = await asyncio.to_thread(self._take, query.signal, answer, directory, times, asked)
            evaluated = await asyncio.to_thread(_evaluated, answer)
            if query.recorded:
                recorded[query.signal] = [sample.value for sample in joined.samples.values()]
            self._record.succeeded(str(query.signal), joined, answer)
            self._offset = self._offset if evaluated is None else evaluated - asked
        self._record.looked_at_units({str(signal): so for signal, so in ratios(recorded).items()})

    def _due(self) -> Queries:
        """The queries of this round: those about pods only when their interval has passed."""
        now = self._clock.monotonic()
        # Rounds come up to a tenth late: ask a little early rather than a round late.
        if now >= self._asked_pods + self._settings.pods_interval - self._settings.interval / 2:
            self._asked_pods = now
            return self._queries
        signals = tuple(
            query for query in self._queries.signals if query.signal.statistic is not Statistic.POD
        )
        return msgspec.structs.replace(self._queries, signals=signals)

    async def _ask(
        self, prometheus: Prometheus, name: str, promql: str, pods: bool
    ) -> tuple[str, Vector | None]:
        begun = self._clock.monotonic()
        try:
            answer = await prometheus.query(name, promql, pods=pods)
        except (ClusterError, UserError) as error:
            self._record.failed(name, error)
            return name, None
        finally:
            self._record.took(name, self._clock.monotonic() - begun)
        return name, answer

    def _take(
        self, signal: Signal, answer: Vector, directory: Directory, times: Times, asked: float
    ) -> Joined:
        """Replace the samples of a signal by those of an answer."""
        if signal.statistic is Statistic.POD:
            of_pods = join_pods(answer, asked)
            self._samples[signal] = of_pods.samples
            return of_pods
        labels, expiry = self._queries.labels, self._expiry
        joined = join(answer, directory, labels, times)
        claims = updated(self._claims.get(signal), joined.claims, asked, expiry)
        self._claims[signal] = claims
        self._samples[signal] = {node: counting(claims[node], asked, expiry) for node in claims}
        disputes = list(disagreeing(claims, joined.claims, asked))
        if not disputes:
            return joined
        return msgspec.structs.replace(
            joined,
            counts=msgspec.structs.replace(joined.counts, contested=len(disputes)),
            collisions=collisions(disputes, answer, directory, labels),
        )

    async def _fill_in(self, metrics_api: MetricsApi, directory: Directory) -> None:
        now = self._clock.time()
        wanted = {signal: self._without_news(signal, directory, now) for signal in _USES}
        found: Mapping[Measured, Joined] = {}
        if any(wanted.values()):
            begun = self._clock.monotonic()
            try:
                found = await metrics_api.nodes(directory, now)
                self._record.succeeded(METRICS_API, found[Measured.MEMORY])
            except (ClusterError, UserError) as error:
                self._record.failed(METRICS_API, error)
            finally:
                self._record.took(METRICS_API, self._clock.monotonic() - begun)
        for signal, nodes in wanted.items():
            known = dict(self._filled.get(signal, {}))
            if signal.measured in found:
                known |= found[signal.measured].samples
            self._filled[signal] = {node: known[node] for node in nodes if node in known}

    def _without_news(self, signal: Signal, directory: Directory, now: float) -> list[str]:
        """Nodes without a sample from Prometheus, or with an old one."""
        samples = self._samples.get(signal, {})
        fresh = now - _FILL_AFTER
        return [
            node for node in directory.nodes if (sample := samples.get(node)) is None or sample.time < fresh
        ]

    async def _publish(self, directory: Directory) -> None:
        samples = {**self._samples}
        filled: dict[str, None] = {}
        for signal, by_node in self._filled.items():
            of_prometheus = self._samples.get(signal, {})
            newer = {
                node: sample
                for node, sample in by_node.items()
                if node not in of_prometheus or sample.time > of_prometheus[node].time
            }
            samples[signal] = {**of_prometheus, **newer}
            filled |= dict.fromkeys(newer)
        self.latest = UsageSnapshot(
            taken=self._clock.time(),
            nodes=await asyncio.to_thread(node_loads, samples),
            pods=await asyncio.to_thread(pod_usages, samples.get(POD_CPU, {}), samples.get(POD_MEMORY, {})),
            filled=tuple(filled),
            health=self._record.health,
            ambiguous=tuple(sorted(directory.ambiguous)),
            clock_offset=self._offset,
        )
        self.changed.changed()


def _evaluated(answer: Vector) -> float | None:
    """When Prometheus evaluated the query, on its clock; None where no series can be read."""
    return next((series.time for series in answer if series is not None), None)
