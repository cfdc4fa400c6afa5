"""Runs a replay: every contender with every seed and tie-break, compared with kube-scheduler alone with the same
seed."""

import itertools
from collections.abc import Callable, Sequence

import msgspec

from colocate.replay.load_contenders import STOCK, Contender, ContenderKind
from colocate.replay.load_quality import PlacementQuality, PressureSeries, against_stock, quality, series
from colocate.replay.load_run import LoadRun
from colocate.replay.load_workload import ReplayWorkload

WorkloadOf = Callable[[int], ReplayWorkload]
Progress = Callable[[float, str], None]
"""Called with the share that is done, and the contender that runs."""
_TOLD_EVERY = 30
"""Minutes of a run between two calls of `Progress`."""


class ReplayResult(msgspec.Struct, frozen=True, eq=False):
    """The figures, and the pressure of each contender with the first seed."""

    rows: list[PlacementQuality]
    series: dict[str, PressureSeries]


def replay(
    workload_of: WorkloadOf,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    tie_breaks: int = 1,
    progress: Progress = lambda done, contender: None,
) -> ReplayResult:
    everyone = list(contenders)
    asked_for_stock = any(one.kind is ContenderKind.STOCK for one in everyone)
    if not asked_for_stock:
        everyone.insert(0, STOCK)
    rows: list[PlacementQuality] = []
    over_time: dict[str, PressureSeries] = {}
    runs = len(everyone) * len(seeds) * tie_breaks
    for seed in seeds:
        workload = workload_of(seed)
        for contender, tie_break in itertools.product(everyone, range(tie_breaks)):
            tell = _teller(progress, len(rows), runs, contender.name, workload.minutes)
            ran = LoadRun(workload, contender, seed, tie_break).run(tell)
            rows.append(quality(workload, ran.used, ran.pods, contender.name, seed, tie_break, ran.crowded))
            if contender.name not in over_time:
                over_time[contender.name] = series(workload, ran.used)
    progress(1.0, "")
    rows = against_stock(rows, [row for row in rows if row.policy == STOCK.name])
    if not asked_for_stock:
        rows = [row for row in rows if row.policy != STOCK.name]
        del over_time[STOCK.name]
    return ReplayResult(rows, over_time)


def _teller(progress: Progress, done: int, runs: int, contender: str, minutes: int) -> Callable[[int], None]:
    def tell(minute: int) -> None:
        if minute % _TOLD_EVERY == 0:
            progress((done + minute / minutes) / runs, contender)

    return tell


class PolicySummary(msgspec.Struct, frozen=True):
    """One contender over all seeds and tie-breaks. `lowest` and `highest` are ratios of single seeds."""

    policy: str
    ratio: float | None
    lowest: float | None
    highest: float | None
    hot: float
    cpu_hot: float
    memory_hot: float
    p95: float
    p99: float
    spread: float
    pod_time_hot: float
    episodes: float
    crowded: float


def summaries(rows: Sequence[PlacementQuality]) -> list[PolicySummary]:
    """Summaries, best first. The ratio is all hot hours divided by those of kube-scheduler alone; seeds without
    heat have none."""
    by_policy: dict[str, list[PlacementQuality]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)
    found = [_summary(policy, of_policy) for policy, of_policy in by_policy.items()]
    return sorted(found, key=lambda one: one.hot)


def _summary(policy: str, rows: Sequence[PlacementQuality]) -> PolicySummary:
    compared = [(row, row.ratio_to_stock) for row in rows if row.ratio_to_stock is not None]
    of_stock = sum(row.hot / ratio for row, ratio in compared if ratio) or None
    ratio = sum(row.hot for row, _ in compared) / of_stock if of_stock else None
    of_seed: dict[int, list[float]] = {}
    for row, one in compared:
        of_seed.setdefault(row.seed, []).append(one)
    means = [sum(ratios) / len(ratios) for ratios in of_seed.values()]

    def mean(field: str) -> float:
        return sum(float(getattr(row, field)) for row in rows) / len(rows)

    return PolicySummary(
        policy,
        ratio,
        min(means, default=None),
        max(means, default=None),
        *(mean(field) for field in PolicySummary.__struct_fields__[4:]),
    )
