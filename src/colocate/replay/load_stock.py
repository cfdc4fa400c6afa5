"""kube-scheduler by itself: which nodes have room for a pod's requests, and what its own plugins say for each.

NodeResourcesFit (least allocated) and NodeResourcesBalancedAllocation at weight 1, PodTopologySpread at weight 2 over
a pod's owner, as kube-scheduler has them when nothing is configured; the others say the same for every node here.
TaintToleration counts where nodes carry taints.
"""

import math

import numpy as np
from numpy.typing import NDArray

from colocate.replay.load_trace import Floats
from colocate.replay.load_workload import ReplayPod, ReplayWorkload

_SPREAD = 2
_TAINTS = 3
Nodes = NDArray[np.intp]
"""Numbers of nodes."""


class StockScheduler:
    """What is requested of every node, and which owner's pods are where."""

    def __init__(self, workload: ReplayWorkload) -> None:
        self._size = workload.size
        self._among = np.array(workload.among or [0] * len(workload.nodes))
        self._requested: Floats = np.zeros_like(workload.size)
        self._pods = np.zeros((workload.owners, len(workload.nodes)), int)
        self.crowded = 0
        """Pods for whose requests no node had room: they would have waited, and are placed all the same."""

    def place(self, pod: ReplayPod, node: int) -> None:
        self._requested[:, node] += pod.request
        self._pods[pod.owner, node] += 1

    def end(self, pod: ReplayPod, node: int) -> None:
        self._requested[:, node] -= pod.request
        self._pods[pod.owner, node] -= 1

    def feasible(self, pod: ReplayPod) -> Nodes:
        """The nodes with room; where there is none, the one that lacks least."""
        after = self._requested + pod.request[:, None]
        ours = self._among == pod.among
        fits = np.flatnonzero((after <= self._size).all(0) & ours)
        if not len(fits):
            self.crowded += 1
            over = np.where(ours, (after / self._size).max(0), np.inf)
            fits = np.argsort(over)[:1]
        return fits

    def scores(self, pod: ReplayPod, nodes: Nodes) -> Floats:
        """The weighted sum of the plugins' scores."""
        share = (self._requested[:, nodes] + pod.request[:, None]) / self._size[:, nodes]
        least = np.floor(np.floor((1 - np.minimum(share, 1)) * 100).mean(0))
        balanced = np.floor((1 - np.abs(share[0] - share[1]) / 2) * 100)
        alike = self._pods[pod.owner, nodes] * math.log(self._size.shape[1] + 2) + 2
        spread = np.floor(100 * (alike.max() + alike.min() - alike) / alike.max())
        total: Floats = least + balanced + _SPREAD * spread
        return total


def taint_scores(levels: NDArray[np.int_]) -> Floats:
    """What TaintToleration says for nodes with so many taints, with its weight."""
    most = levels.max()
    if not most:
        return np.full(len(levels), 100.0 * _TAINTS)
    scores: Floats = _TAINTS * (100 - np.floor(100 * levels / most))
    return scores
