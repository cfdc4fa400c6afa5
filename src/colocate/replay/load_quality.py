"""Measures a placement: how long nodes were hot, and how much their pressure differed."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from colocate.replay.load_trace import Floats
from colocate.replay.load_workload import ReplayWorkload

CPU_HOT, MEMORY_HOT = 80.0, 85.0
"""Percentages above which a node is hot."""
_EVERY = 5
"""Minutes that are averaged into one value."""


class PlacementQuality(msgspec.Struct, frozen=True):
    """The quality of one policy with one seed. All but the last four fields are in percent."""

    policy: str
    seed: int
    hot: float
    """The share of node-hours with CPU above 80 % or memory above 85 %."""
    cpu_hot: float
    memory_hot: float
    p95: float
    """The 95th percentile of the pressure, the greater of CPU and memory, over all nodes and times."""
    p99: float
    spread: float
    """The standard deviation of the pressure over the nodes, averaged over time."""
    pod_time_hot: float
    """The share of pod-hours on a hot node."""
    episodes: int
    """How often a node became hot."""
    ratio_to_stock: float | None = None
    """`hot` divided by that of kube-scheduler alone with the same seed; None where that was 0."""
    tie_break: int = 0
    crowded: int = 0
    """Pods whose requests fitted on no node."""


class PressureSeries(msgspec.Struct, frozen=True, eq=False):
    """The pressure of nodes over time: its distribution over the nodes, and the hot node-hours so far."""

    hours: Floats
    median: Floats
    p95: Floats
    most: Floats
    hot_hours: Floats
    """Hot node-hours since the beginning."""


def pressure(workload: ReplayWorkload, used: Floats) -> Floats:
    """The use in percent, by resource, node and five minutes, without the warm-up."""
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
    """Add the ratio to kube-scheduler alone with the same seed, averaged over its tie-breaks."""
    by_seed: dict[int, list[float]] = {}
    for row in stock:
        by_seed.setdefault(row.seed, []).append(row.hot)
    means = {seed: float(np.mean(hot)) for seed, hot in by_seed.items()}
    return [
        msgspec.structs.replace(row, ratio_to_stock=row.hot / means[row.seed] if means[row.seed] else None)
        for row in rows
    ]
