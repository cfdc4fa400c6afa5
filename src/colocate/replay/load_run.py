"""One run: places a workload's pods one by one, by one contender.

`load` gets the same input as from the scheduler's process: every minute samples that average the last five minutes,
and every binding and end as it happens. It answers with scores, and with the nodes that its filter leaves;
kube-scheduler's own scores are added, and the best node is taken, at random among equals.
"""

import heapq
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from colocate.load import Heat, HeatSettings, LoadTable, decide, heats, pressures, sift
from colocate.model.load import Aggregate, Aggregation, Amount, BoundPod, NodeLoad, PodUsage, Usage
from colocate.replay.load_contenders import Contender, ContenderKind
from colocate.replay.load_oracle import foreseen
from colocate.replay.load_stock import Nodes, StockScheduler, taint_scores
from colocate.replay.load_trace import Floats
from colocate.replay.load_workload import MIB, ReplayPod, ReplayWorkload

_AVERAGE = 5
"""Minutes that a sample averages."""
_PERCENTILE, _DEVIATION = 60, 15
"""Minutes over which the percentile and the deviation are computed."""
_TIE_BREAK = 1000
_HEAT_PERIOD = 5.0
"""Seconds between two updates of the heat."""


class ReplayedLoad(msgspec.Struct, frozen=True, eq=False):
    """The result of a run."""

    used: Floats
    """Use by resource, node and minute, in millicores and MiB."""
    pods: NDArray[np.int16]
    """The number of pods, by node and minute."""
    placed: NDArray[np.intp]
    """The number of each pod's node, by pod."""
    crowded: int
    """Pods whose requests fitted on no node."""


class LoadRun:
    """Places all pods of a workload once."""

    def __init__(self, workload: ReplayWorkload, contender: Contender, seed: int, tie_break: int = 0) -> None:
        self._workload = workload
        self._contender = contender
        self._stock = StockScheduler(workload)
        shape = (2, len(workload.nodes), workload.minutes)
        self._used = (
            np.zeros(shape, np.float32) if workload.base is None else workload.base.astype(np.float32)
        )
        self._count = np.zeros(shape[1:], np.int16)
        self._placed = np.full(len(workload.pods), -1)
        self._chance = np.random.default_rng(seed + 99 + _TIE_BREAK * tie_break)
        self._names = [node.name for node in workload.nodes]
        self._ending: list[tuple[int, int]] = []
        """A heap of the minute of a pod's end, and the pod's number."""
        self._table = LoadTable(contender.settings)
        self._table.add_nodes(workload.nodes)
        self._judged = contender.kind in (ContenderKind.EXTENDER, ContenderKind.TAINTS)
        self._samples = _NodeSamples(workload, self._used, statistics=contender.statistics)
        self._pod_samples = _PodSamples(workload)
        self._heats: dict[str, Heat] = {}
        self._levels = np.zeros(len(self._names), int)
        self._heated_at = float("-inf")

    def run(self, step: Callable[[int], None] = lambda minute: None) -> ReplayedLoad:
        """Place all pods; `step` is called after every minute."""
        pods = self._workload.pods
        first = 0
        for minute in range(self._workload.minutes):
            self._begin(minute)
            until = 60 * (minute + 1)
            while first < len(pods) and pods[first].at < until:
                self._place(first)
                first += 1
            step(minute)
        return ReplayedLoad(self._used, self._count, self._placed, self._stock.crowded)

    def _begin(self, minute: int) -> None:
        """End the pods whose time is over, and take new samples."""
        while self._ending and self._ending[0][0] <= minute:
            _, number = heapq.heappop(self._ending)
            pod = self._workload.pods[number]
            self._stock.end(pod, int(self._placed[number]))
            if self._judged and self._contender.ledger:
                self._table.end(pod.facts.uid)
        if not self._judged:
            return
        now = self._workload.start + 60 * minute
        if self._contender.pods:
            running = [number for _, number in self._ending]
            self._table.observe_pods(self._pod_samples.at(minute, running, now))
        self._table.observe(self._samples.at(minute, now), now)
        if self._contender.kind is ContenderKind.TAINTS:
            self._heat(now)

    def _place(self, number: int) -> None:
        pod = self._workload.pods[number]
        node = self._choose(pod) if pod.node is None else pod.node
        self._placed[number] = node
        self._stock.place(pod, node)
        self._used[:, node, pod.begin : pod.end] += pod.use
        self._count[node, pod.begin : pod.end] += 1
        heapq.heappush(self._ending, (pod.end, number))
        if self._judged and self._contender.ledger:
            self._table.bind(BoundPod(pod.facts, self._names[node], self._workload.start + pod.at))

    def _choose(self, pod: ReplayPod) -> int:
        nodes = self._stock.feasible(pod)
        now = self._workload.start + pod.at
        match self._contender.kind:
            case ContenderKind.STOCK:
                scores = self._stock.scores(pod, nodes)
            case ContenderKind.ORACLE:
                scores = foreseen(self._used, self._workload.size, pod, nodes)
            case ContenderKind.TAINTS:
                if now - self._heated_at >= _HEAT_PERIOD:
                    self._heat(now)
                scores = self._stock.scores(pod, nodes) + taint_scores(self._levels[nodes])
            case ContenderKind.EXTENDER:
                nodes, scores = self._judge(pod, nodes, now)
        best = nodes[np.flatnonzero(scores >= scores.max() - 1e-9)]
        return int(best[self._chance.integers(len(best))])

    def _judge(self, pod: ReplayPod, nodes: Nodes, now: float) -> tuple[Nodes, Floats]:
        contender, table = self._contender, self._table
        stock = self._stock.scores(pod, nodes)
        if contender.settings.filter.enabled:
            table.advance(now)
            names = [self._names[node] for node in nodes]
            passed = set(sift(table, table.demand(pod.facts), names).passed)
            if passed and len(passed) < len(names):
                left = [place for place, name in enumerate(names) if name in passed]
                nodes, stock = nodes[left], stock[left]
        names = [self._names[node] for node in nodes]
        answer = decide(table, pod.facts, names, now, mix=contender.mix, assume=contender.ledger)
        return nodes, stock + contender.points * np.array(answer.scores)

    def _heat(self, now: float) -> None:
        self._table.advance(now)
        self._heated_at = now
        self._heats = heats(pressures(self._table), self._heats, HeatSettings())
        self._levels = np.array([self._heats[name].level for name in self._names])


class _NodeSamples:
    """The measured use of every node, averaged over the last minutes."""

    def __init__(self, workload: ReplayWorkload, used: Floats, *, statistics: bool) -> None:
        self._used = used
        self._size = workload.size
        self._names = [node.name for node in workload.nodes]
        self._statistics = statistics
        self._percents = np.zeros((*used.shape[:2], workload.minutes + 1), np.float32)

    def at(self, minute: int, now: float) -> dict[str, NodeLoad]:
        if minute:
            window = self._used[:, :, max(0, minute - _AVERAGE) : minute]
            self._percents[:, :, minute] = np.minimum(100, window.mean(2) / self._size * 100)
        percents = self._percents[:, :, minute].astype(float).tolist()
        if not self._statistics:
            return {
                name: NodeLoad(Usage(cpu, now), Usage(memory, now))
                for name, cpu, memory in zip(self._names, *percents, strict=True)
            }
        span = np.sort(self._percents[:, :, max(0, minute - _PERCENTILE + 1) : minute + 1], axis=2)
        high = span[:, :, round(0.95 * (span.shape[2] - 1))].astype(float).tolist()
        recent = self._percents[:, :, max(0, minute - _DEVIATION + 1) : minute + 1]
        deviations = recent.std(2).astype(float).tolist()
        loads = {}
        for number, name in enumerate(self._names):
            cpu, memory = (
                Usage(
                    percents[resource][number],
                    now,
                    deviations[resource][number],
                    (Aggregate(Aggregation.P95, 60.0 * _PERCENTILE, high[resource][number]),),
                )
                for resource in (0, 1)
            )
            loads[name] = NodeLoad(cpu, memory)
        return loads


class _PodSamples:
    """The measured use of every pod, averaged over the last minutes of its life."""

    def __init__(self, workload: ReplayWorkload) -> None:
        pods = workload.pods
        lengths = np.array([pod.end - pod.begin for pod in pods], int)
        self._begin = np.array([pod.begin for pod in pods], int)
        self._offset = np.concatenate([[0], np.cumsum(lengths + 1)])[:-1].astype(int)
        # Cumulative sums over each pod's life: the mean of any minutes is then a difference.
        self._sums = np.zeros((2, int((lengths + 1).sum())))
        for pod, offset, length in zip(pods, self._offset, lengths, strict=True):
            np.cumsum(pod.use, axis=1, out=self._sums[:, offset + 1 : offset + 1 + length])
        self._uids = [pod.facts.uid for pod in pods]

    def at(self, minute: int, running: list[int], now: float) -> dict[str, PodUsage]:
        numbers = np.array(running, int)
        lived = minute - self._begin[numbers]
        numbers, lived = numbers[lived > 0], lived[lived > 0]
        since = np.maximum(0, lived - _AVERAGE)
        offset = self._offset[numbers]
        means = (self._sums[:, offset + lived] - self._sums[:, offset + since]) / (lived - since)
        cpu, memory = means[0].astype(int).tolist(), (means[1] * MIB).astype(int).tolist()
        return {
            self._uids[number]: PodUsage(Amount(millicores, size), now)
            for number, millicores, size in zip(numbers.tolist(), cpu, memory, strict=True)
        }
