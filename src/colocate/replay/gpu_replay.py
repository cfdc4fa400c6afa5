"""Fills a cluster with pods by a packing policy, and counts the GPUs that stay unallocated.

Arrivals are drawn with replacement from a list of pods until they request 130 % of the cluster's GPUs; a pod that
fits nowhere is dropped. A policy that looks ahead may know how often each kind of pod is in the list, but not which
comes next; `learned` knows only the pods that have arrived so far.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from colocate.gpus.packing import (
    Fleet,
    LearnedMix,
    NodeState,
    Packer,
    PackingPolicy,
    PackRequest,
    kinds_of,
    mix_of,
)
from colocate.replay.gpu_trace import WHOLE

ASKED = 1.3
"""The GPUs requested in all, as a share of the cluster's GPUs."""
STEPS = 130
"""Points of a curve."""

Progress = Callable[[float], None]
"""Called with the share of one replay that is done, from 0 to 1."""


class GpuReplay(msgspec.Struct, frozen=True):
    """The result of one replay."""

    policy: PackingPolicy
    seed: int
    gpus_total: int
    gpus_requested: float
    gpus_allocated: float
    gpus_unallocated: float


class GpuCurve(msgspec.Struct, frozen=True):
    """The unallocated GPUs after each hundredth of the cluster's GPUs was requested."""

    policy: PackingPolicy
    seed: int
    unallocated: Sequence[float]


def replay(
    nodes: Sequence[NodeState],
    pods: Sequence[PackRequest],
    policy: PackingPolicy,
    seed: int,
    *,
    learned: bool = False,
    progress: Progress | None = None,
) -> tuple[GpuReplay, GpuCurve]:
    """Run one replay of a policy with a seed."""
    fleet = Fleet(nodes)
    mix = LearnedMix()
    packer = Packer(fleet, policy, None if learned else mix_of(kinds_of(pods)))
    random = np.random.default_rng(seed)
    total = fleet.total()
    asked, allocated = 0, 0
    curve: list[float] = []
    while asked < ASKED * total * WHOLE:
        pod = pods[int(random.integers(len(pods)))]
        asked += pod.gpus * pod.gpu_memory
        if learned and mix.see(pod):
            packer.expect(mix.latest)
        ranking = packer.rank(pod)
        row = ranking.best()
        if row is not None:
            fleet.take(row, pod, ranking.gpus[row])
            allocated += pod.gpus * pod.gpu_memory
        while len(curve) < STEPS and asked >= (len(curve) + 1) * ASKED / STEPS * total * WHOLE:
            curve.append(total - allocated / WHOLE)
            if progress is not None:
                progress(len(curve) / STEPS)
    result = GpuReplay(policy, seed, total, asked / WHOLE, allocated / WHOLE, round(fleet.unallocated(), 3))
    return result, GpuCurve(policy, seed, curve)
