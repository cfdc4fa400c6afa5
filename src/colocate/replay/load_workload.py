"""What a replay has to place: nodes, and pods in the order of their arrival, with what each will use every minute.

A workload of a trace: every machine is an owner, at a shift of whole days; its pods are replicas, which differ by a
factor and by some minutes. Half of the pods come alone and half in bursts, as a deployment's do; they live for hours;
nodes are sized so that all of them together use, and request, so much of the cluster.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np

from colocate.load import LoadSettings
from colocate.model.load import (
    Amount,
    ContainerAsk,
    NodeFacts,
    PerResource,
    PodFacts,
    PodShape,
)
from colocate.replay.load_trace import DAY, Floats, MachineTrace

MIB = 1 << 20
START = 1_700_000_000.0
"""Seconds since the epoch at which a trace's workload begins: any time would do."""
_PODS_PER_NODE = 30
_SHORTEST, _LONGEST = 2.0, 24.0
"""Hours that a pod lives, evenly in logarithms."""
_PER_SAMPLE = 5
"""Minutes."""


class Requests(StrEnum):
    """How much users know of what their pods will use."""

    HALF = "half"
    """Half of it, in logarithms: the geometric mean of what was provisioned and what is used."""
    BLIND = "blind"
    """Nothing: they request in proportion to what was provisioned."""


class WorkloadSettings(msgspec.Struct, frozen=True):
    nodes: int = 60
    hours: int = 48
    warm_up: int = 12
    """Hours at the beginning that are placed and not counted."""
    use: float = 0.50
    """Of the cluster, in the mean."""
    requested: float = 0.75
    """The same."""
    requests: Requests = Requests.HALF


class ReplayPod(msgspec.Struct, frozen=True, eq=False):
    """One pod. Times are minutes since the start, `at` is in seconds."""

    facts: PodFacts
    owner: int
    at: float
    begin: int
    end: int
    use: Floats
    """CPU and memory, in millicores and MiB, for every minute from `begin` to `end`."""
    request: Floats
    node: int | None = None
    """Where it is, if no scheduler has a say in that."""
    among: int = 0
    """Which nodes take it: those of this number."""


class ReplayWorkload(msgspec.Struct, frozen=True, eq=False):
    """All that a run places, and on what."""

    nodes: Sequence[NodeFacts]
    size: Floats
    """Of CPU and memory, by node, in millicores and MiB."""
    pods: Sequence[ReplayPod]
    owners: int
    minutes: int
    warm_up: int
    """Minutes."""
    base: Floats | None = None
    """What nodes use besides their pods: by resource, node and minute."""
    among: Sequence[int] = ()
    """By node, the number of the nodes that take the same pods; all of them the same where it is empty."""
    start: float = START
    settings: LoadSettings | None = None
    """By which the cluster was scheduled, where it was recorded."""

    def requested(self) -> float:
        """Of the cluster, at the worst minute that counts."""
        total = np.zeros((2, self.minutes))
        for pod in self.pods:
            total[:, pod.begin : pod.end] += pod.request[:, None]
        return float((total[:, self.warm_up :] / self.size.sum(1)[:, None]).max())


class _Arrival(msgspec.Struct, frozen=True, order=True):
    at: float
    machine: int
    hours: float


def workload_of(trace: MachineTrace, seed: int, settings: WorkloadSettings) -> ReplayWorkload:
    """The same seed makes the same workload."""
    chance = np.random.default_rng(seed)
    shift = chance.integers(0, 28, trace.machines) * DAY
    cpu_request, memory_request = _wishes(trace, settings.requests)
    cpu_request *= chance.lognormal(0, 0.3, trace.machines)
    memory_request *= chance.lognormal(0, 0.3, trace.machines)
    minutes = settings.hours * 60
    drawn = []
    for arrival in _arrivals(chance, trace.machines, settings):
        begin = int(arrival.at // 60) + 1
        end = min(minutes, begin + int(arrival.hours * 60))
        if begin < minutes:
            factor, off = chance.uniform(0.8, 1.2), int(chance.integers(-6, 7))
            times = (np.arange(begin, end) // _PER_SAMPLE + shift[arrival.machine] + off) % trace.samples
            use = np.stack([trace.cpu[arrival.machine, times], trace.memory[arrival.machine, times]])
            drawn.append((arrival, begin, end, use.astype(np.float32) * np.float32(factor)))
    total, asked = np.zeros((2, minutes)), np.zeros((2, minutes))
    for arrival, begin, end, use in drawn:
        total[:, begin:end] += use
        asked[0, begin:end] += cpu_request[arrival.machine]
        asked[1, begin:end] += memory_request[arrival.machine]
    counted = settings.warm_up * 60
    size = total[:, counted:].mean(1) / settings.use / settings.nodes
    scale = settings.requested * size * settings.nodes / asked[:, counted:].mean(1)
    wishes = np.stack([cpu_request, memory_request], axis=1)
    pods = []
    for number, (arrival, begin, end, use) in enumerate(drawn):
        request = np.maximum(1, np.minimum(wishes[arrival.machine] * scale, size * 0.3)).astype(int)
        pods.append(
            ReplayPod(
                _facts(number, arrival.machine, request),
                arrival.machine,
                arrival.at,
                begin,
                end,
                use,
                request,
            )
        )
    amount = Amount(int(size[0]), int(size[1]) * MIB)
    nodes = [NodeFacts(f"n{number}", amount, amount) for number in range(settings.nodes)]
    sizes = np.repeat(size[:, None], settings.nodes, axis=1)
    return ReplayWorkload(nodes, sizes, pods, trace.machines, minutes, counted)


def _facts(number: int, machine: int, request: Floats) -> PodFacts:
    asked = ContainerAsk(PerResource(int(request[0]), int(request[1]) * MIB))
    return PodFacts(f"p{number}", f"d/p{number}", PodShape((asked,)), owner=f"d/Deployment/{machine}")


def _wishes(trace: MachineTrace, requests: Requests) -> tuple[Floats, Floats]:
    if requests is Requests.BLIND:
        return trace.cpu_size.copy(), trace.memory_size.copy()
    return (
        np.sqrt(trace.cpu_size * np.maximum(trace.cpu.mean(1), 5)),
        np.sqrt(trace.memory_size * np.maximum(trace.memory.mean(1), 50)),
    )


def _arrivals(chance: np.random.Generator, machines: int, settings: WorkloadSettings) -> list[_Arrival]:
    """Those that are there at first come within the first hour, with part of their lives behind them."""
    arrivals: list[_Arrival] = []
    live = settings.nodes * _PODS_PER_NODE
    mean_life = (_LONGEST - _SHORTEST) / math.log(_LONGEST / _SHORTEST)
    rate = live / mean_life

    def group(at: float, pods: int, *, lived: bool = False) -> None:
        machine = int(chance.integers(machines))
        hours = math.exp(chance.uniform(math.log(_SHORTEST), math.log(_LONGEST)))
        if lived:
            hours = max(0.5, hours * chance.uniform(0, 1))
        for number in range(pods):
            arrivals.append(_Arrival(at + number * 0.15, machine, hours * chance.uniform(0.85, 1.15)))

    def size() -> int:
        return int(chance.integers(10, 31)) if chance.random() < 1 / 21 else 1

    left = live
    while left > 0:
        pods = size()
        group(chance.uniform(60, 3600), pods, lived=True)
        left -= pods
    at = 1800.0
    groups = rate / 2 + rate / 2 / 20
    while True:
        at += chance.exponential(3600 / groups)
        if at >= (settings.hours - 0.1) * 3600:
            return sorted(arrivals)
        group(at, size())
