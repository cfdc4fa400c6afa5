"""How good a placement was for the cluster: how much of the time nodes were hot, and how far apart they were."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from colocate.replay.load_trace import Floats
from colocate.replay.load_workload import ReplayWorkload

CPU_HOT, MEMORY_HOT = 80.0, 85.0
"""Percents from which on a node is hot."""
_EVERY = 5
"""Minutes that are averaged."""


class PlacementQuality(msgspec.Struct, frozen=True):
    """One policy with one seed. All but the last four in percent."""

    policy: str
    seed: int
    hot: float
    """Of the node-hours, those with CPU beyond 80 % or memory beyond 85 %."""
    cpu_hot: float
    memory_hot: float
    p95: float
    """Of the pressure, which is the greater of CPU and memory, over all nodes and times."""
    p99: float
    spread: float
    """The standard deviation of the pressure over the nodes, in the mean of all times."""
    pod_time_hot: float
    """Of the pods' hours, those on a hot node."""
    episodes: int
    """How often a node became hot."""
    ratio_to_stock: float | None = None
    """Of `hot`, against kube-scheduler alone with the same seed; None where that had none."""
    tie_break: int = 0
    crowded: int = 0
    """Pods for whose requests no node had room."""


class PressureSeries(msgspec.Struct, frozen=True, eq=False):
    """The pressure of nodes over time: how it is distributed over them, and how much of it was hot so far."""

    hours: Floats
    median: Floats
    p95: Floats
    most: Floats
    hot_hours: Floats
    """Node-hours, in all since the beginning."""


def pressure(workload: ReplayWorkload, used: Floats) -> Floats:
    """Percent by resource, node and five minutes, without the warm-up."""
    percent = used[:, :, workload.warm_up :] / workload.size[:, :, None] * 100
    whole = percent.shape[2] // _EVERY * _EVERY
    means: Floats = percent[:, :, :whole].reshape(2, percent.shape[1], -1, _EVERY).mean(3)
    return means


def quality(
    workload: ReplayWorkload,
    used: Floats,
    pods: NDArray[np.int16],
    policy: str,
    seed: int,
    tie_break: int = 0,
    crowded: int = 0,
) -> PlacementQuality:
    cpu, memory = percent = pressure(workload, used)
    greater = percent.max(0)
    hot = (cpu > CPU_HOT) | (memory > MEMORY_HOT)
    there = pods[:, workload.warm_up :]
    there = there[:, : hot.shape[1] * _EVERY].reshape(*hot.shape, _EVERY).mean(2)
    return PlacementQuality(
        policy,
        seed,
        float(hot.mean() * 100),
        float((cpu > CPU_HOT).mean() * 100),
        float((memory > MEMORY_HOT).mean() * 100),
        float(np.percentile(greater, 95)),
        float(np.percentile(greater, 99)),
        float(greater.std(0).mean()),
        float((there * hot).sum() / max(there.sum(), 1e-9) * 100),
        int((hot[:, 1:] & ~hot[:, :-1]).sum() + hot[:, 0].sum()),
        tie_break=tie_break,
        crowded=crowded,
    )


def series(workload: ReplayWorkload, used: Floats) -> PressureSeries:
    cpu, memory = percent = pressure(workload, used)
    greater = percent.max(0)
    hot = ((cpu > CPU_HOT) | (memory > MEMORY_HOT)).sum(0)
    hours = (workload.warm_up + _EVERY * (np.arange(greater.shape[1]) + 1)) / 60
    return PressureSeries(
        hours,
        np.median(greater, axis=0),
        np.percentile(greater, 95, axis=0),
        greater.max(0),
        np.cumsum(hot) * _EVERY / 60,
    )


def against_stock(
    rows: Sequence[PlacementQuality], stock: Sequence[PlacementQuality]
) -> list[PlacementQuality]:
    """Each with its ratio to what kube-scheduler alone had with the same seed, in the mean of its tie-breaks."""
    by_seed: dict[int, list[float]] = {}
    for row in stock:
        by_seed.setdefault(row.seed, []).append(row.hot)
    means = {seed: float(np.mean(hot)) for seed, hot in by_seed.items()}
    return [
        msgspec.structs.replace(row, ratio_to_stock=row.hot / means[row.seed] if means[row.seed] else None)
        for row in rows
    ]
