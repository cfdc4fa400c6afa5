"""The input of a replay: nodes, and pods in the order of their arrival, with the use of each in every minute.

In a workload from a trace, every machine is an owner, shifted by whole days; its pods are replicas that differ by a
factor and some minutes. Half of the pods arrive alone and half in bursts, as from a deployment; they live for
hours. Nodes are sized so that all pods together use and request the configured shares of the cluster.
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
"""When a trace's workload begins, in seconds since the epoch; an arbitrary time."""
_PODS_PER_NODE = 30
_SHORTEST, _LONGEST = 2.0, 24.0
"""Hours that a pod lives, distributed evenly on a logarithmic scale."""
_PER_SAMPLE = 5
"""Minutes."""


class Requests(StrEnum):
    """How well users know the future use of their pods."""

    HALF = "half"
    """They request the geometric mean of what was provisioned and what is used."""
    BLIND = "blind"
    """They request in proportion to what was provisioned."""


class WorkloadSettings(msgspec.Struct, frozen=True):
    nodes: int = 60
    hours: int = 48
    warm_up: int = 12
    """Hours at the beginning whose pods are placed and not counted."""
    use: float = 0.50
    """The mean use of the cluster, as a share of its size."""
    requested: float = 0.75
    """The mean requests of the cluster, as a share of its size."""
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
    """Its fixed node, if it is not scheduled."""
    among: int = 0
    """The group of nodes that take it, by the numbers in `ReplayWorkload.among`."""


class ReplayWorkload(msgspec.Struct, frozen=True, eq=False):
    """The pods to place, and the nodes."""

    nodes: Sequence[NodeFacts]
    size: Floats
    """CPU and memory by node, in millicores and MiB."""
    pods: Sequence[ReplayPod]
    owners: int
    minutes: int
    warm_up: int
    """Minutes."""
    base: Floats | None = None
    """What nodes use besides their pods, by resource, node and minute."""
    among: Sequence[int] = ()
    """The group of each node: nodes of one group take the same pods. Empty means one group for all."""
    start: float = START
    settings: LoadSettings | None = None
    """The settings with which a recorded cluster was scheduled; None for a trace."""

    def requested(self) -> float:
        """The requested share of the cluster in the highest counted minute."""
        total = np.zeros((2, self.minutes))
        for pod in self.pods:
            total[:, pod.begin : pod.end] += pod.request[:, None]
        return float((total[:, self.warm_up :] / self.size.sum(1)[:, None]).max())


class _Arrival(msgspec.Struct, frozen=True, order=True):
    at: float
    machine: int
    hours: float


def workload_of(trace: MachineTrace, seed: int, settings: WorkloadSettings) -> ReplayWorkload:
    """The workload for a trace and a seed; equal seeds make equal workloads."""
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
    """The arrivals. Pods of the initial state arrive within the first hour, with a part of their lives over."""
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
