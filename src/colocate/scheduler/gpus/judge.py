"""Judges nodes by their GPUs: which have one that fits, which is best, whose eviction would free one. No I/O.

What is best is held for the pod for a moment, as if it had been bound there: kube-scheduler looks for a place for
the next pod while this one is still on its way.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from colocate import telemetry
from colocate.clock import Clock
from colocate.gpus.packing import GpuDemand
from colocate.gpus.packing.cluster_book import ClusterBook
from colocate.gpus.packing.objects import PackedPod
from colocate.scheduler.server.judge import Sieved
from colocate.wire.extender_questions import Asked, MetaVictims, Preemption

_LEAST_BOUND = 10_000
_MOST_VICTIMS = 1000
_SECOND = 94
"""Points of a node that is as good as the best: far enough below it for `kube-config`'s weight."""


class GpuCluster(Protocol):
    """The cluster as the book follows it."""

    book: ClusterBook

    def pod(self, namespace: str, name: str, uid: str) -> PackedPod | None:
        """The pod with this name and uid, as the API server has shown it; None where it has not."""

    def unready(self) -> Sequence[str]:
        """Why the book is not the cluster's yet, a sentence each."""


class GpuJudge:
    """Decides for the server, beside the judge of loads."""

    def __init__(self, cluster: GpuCluster, clock: Clock, *, hold: float) -> None:
        self._cluster = cluster
        self._book = cluster.book
        self._clock = clock
        self._hold = hold

    def most_candidates(self) -> int:
        return max(_LEAST_BOUND, 2 * len(self._book.fleet.rows))

    def filter(self, asked: Asked, caller: str) -> Sieved:
        pod = asked.pod(PackedPod)
        self._book.expire(self._clock.monotonic())
        # Where it goes is open again.
        self._book.release(pod.uid, waiting=True)
        demand = self._book.demand(pod)
        if demand is None:
            return Sieved()
        if isinstance(demand, str):
            return Sieved(unresolvable=dict.fromkeys(asked.names, demand))
        if node := self._book.settled_on(pod.uid):
            others = [name for name in asked.names if name != node]
            return Sieved(dict.fromkeys(others, f"its bind to {node} may still come through"))
        fits = np.isfinite(self._book.scores(demand, asked.names)).tolist()
        failed: dict[str, str] = {}
        never: dict[str, str] = {}
        for name, fit in zip(asked.names, fits, strict=True):
            if not fit:
                reason, for_good = self._book.why_not(demand, name)
                (never if for_good else failed)[name] = reason
        if sum(fits) == 1:
            # Of a single node kube-scheduler asks for no score.
            self._keep(pod, asked.names[fits.index(True)])
        elif not any(fits):
            # A pod that fits nowhere waits for something to change, and kube-scheduler does not hear of a broken
            # promise: the pod had better try, and try again.
            for node in self._book.promised_nodes(demand, failed):
                del failed[node]
        return Sieved(failed, never)

    def prioritize(self, asked: Asked, caller: str) -> Sequence[int]:
        pod = asked.pod(PackedPod)
        self._book.release(pod.uid, waiting=True)
        demand = self._book.demand(pod)
        if not isinstance(demand, GpuDemand) or not asked.names or self._book.settled_on(pod.uid):
            return [0] * len(asked.names)
        found = self._book.scores(demand, asked.names)
        scores = as_points(found)
        best = int(np.argmin(found))
        if np.isfinite(found[best]):
            self._keep(pod, asked.names[best])
        return scores

    def _keep(self, pod: PackedPod, node: str) -> None:
        """Only for a pod that the API server shows, and as much as it says: a caller may make up both."""
        shown = self._cluster.pod(pod.metadata.namespace, pod.metadata.name, pod.uid)
        if shown is not None:
            self._book.reserve(shown, node, self._clock.monotonic() + self._hold)

    def preempt(self, asked: Preemption) -> Mapping[str, MetaVictims]:
        """Of what kube-scheduler would evict, what frees GPUs that fit."""
        pod = asked.pod(PackedPod)
        demand = self._book.demand(pod)
        if demand is None:
            return asked.victims
        if isinstance(demand, str):
            return {}
        named = {
            node: victims
            for node, victims in asked.victims.items()
            if self._book.fits_without(
                demand, node, [one.uid for one in (victims.pods or ())[:_MOST_VICTIMS]]
            )
        }
        telemetry.GPU_PREEMPTIONS_REFUSED.inc(len(asked.victims) - len(named))
        return named

    def unready(self) -> Sequence[str]:
        return self._cluster.unready()


def as_points(found: NDArray[np.float64]) -> list[int]:
    """Points for kube-scheduler from scores of which the least is best: 100 for the best, and no other near it, so
    that the pod gets the node whose GPU is kept for it.

    They are relative to the candidates: packing asks which of them, and no node is good or bad by itself.
    """
    fits = np.isfinite(found)
    if not fits.any():
        return [0] * len(found)
    least, most = float(found[fits].min()), float(found[fits].max())
    points = np.zeros(len(found))
    if most > least:
        points[fits] = np.floor(_SECOND * (most - found[fits]) / (most - least))
    else:
        points[fits] = _SECOND
    points[int(np.argmin(found))] = 100
    whole: list[int] = points.astype(int).tolist()
    return whole
