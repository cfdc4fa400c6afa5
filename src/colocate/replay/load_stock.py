"""kube-scheduler alone: which nodes have room for a pod's requests, and the scores of its own plugins.

NodeResourcesFit (least allocated) and NodeResourcesBalancedAllocation at weight 1, PodTopologySpread at weight 2 over
a pod's owner, as in kube-scheduler's default configuration; other plugins score all nodes alike here.
TaintToleration counts where nodes have taints.
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
    """Tracks the requests on every node, and which owner's pods are where."""

    def __init__(self, workload: ReplayWorkload) -> None:
        self._size = workload.size
        self._among = np.array(workload.among or [0] * len(workload.nodes))
        self._requested: Floats = np.zeros_like(workload.size)
        self._pods = np.zeros((workload.owners, len(workload.nodes)), int)
        self.crowded = 0
        """Pods whose requests fitted on no node. They would have waited; the replay still places them."""

    def place(self, pod: ReplayPod, node: int) -> None:
        self._requested[:, node] += pod.request
        self._pods[pod.owner, node] += 1

    def end(self, pod: ReplayPod, node: int) -> None:
        self._requested[:, node] -= pod.request
        self._pods[pod.owner, node] -= 1

    def feasible(self, pod: ReplayPod) -> Nodes:
        """The nodes with room; where there is none, the node that lacks least."""
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
    """The weighted scores of TaintToleration for nodes with these numbers of taints."""
    most = levels.max()
    if not most:
        return np.full(len(levels), 100.0 * _TAINTS)
    scores: Floats = _TAINTS * (100 - np.floor(100 * levels / most))
    return scores
