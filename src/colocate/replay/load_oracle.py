"""An oracle that knows the future use of every pod: the best that is possible."""

import numpy as np

from colocate.replay.load_quality import CPU_HOT, MEMORY_HOT
from colocate.replay.load_stock import Nodes
from colocate.replay.load_trace import Floats
from colocate.replay.load_workload import ReplayPod

_EVERY = 5
"""Minutes."""
_NEAR = 0.75
"""The share of the hot threshold from which load costs more and more."""


def foreseen(used: Floats, size: Floats, pod: ReplayPod, nodes: Nodes) -> Floats:
    """Scores of nodes: the lower the growth of a convex cost of load over the pod's life, the higher."""
    room = size[:, nodes]
    there = used[:, nodes, pod.begin : pod.end : _EVERY] / room[:, :, None]
    added = pod.use[:, None, ::_EVERY] / room[:, :, None]
    growth: Floats = _cost(there) - _cost(there + added)
    return growth


def _cost(share: Floats) -> Floats:
    hot = np.array([CPU_HOT, MEMORY_HOT])[:, None, None] / 100
    beyond = (np.maximum(0, share / hot - _NEAR) ** 2).sum(axis=(0, 2)) * 100
    cost: Floats = beyond + (share * share).sum(axis=(0, 2))
    return cost
