"""Containers with CPUs of their own come and go on five machines: what they cross needlessly, beside the kubelet's.

The histories and the kubelet's answers (1.36, with prefer-align-cpus-by-uncorecache) are recorded. Needless is what
an empty machine would not have needed. The goal for L3s was 0.45; docs/cpus.md says what was tried and what remains.
"""

import time
from pathlib import Path

from bench.ratio import Figure, Ratio, Row
from colocate.replay.cpu_histories import read_histories
from colocate.replay.cpu_replay import OURS, added, replay

HISTORIES = Path(__file__).parents[1] / "tests" / "data" / "conformance" / "cpu_churn.json.gz"
THEIRS = "kubelet_uncore"
_KUBELET = "by kubelet 1.36, L3 aligned"
SOCKETS = Ratio("sockets crossed needlessly while containers come and go", _KUBELET, 0.22)
NODES = Ratio("NUMA nodes crossed needlessly while containers come and go", _KUBELET, 0.27)
L3S = Ratio("L3 caches crossed needlessly while containers come and go", _KUBELET, 0.54)
RATIOS = (SOCKETS, NODES, L3S)


def bench() -> list[Row]:
    machines, histories = read_histories(HISTORIES)
    started = time.process_time()
    replays = [replay(machines[history.machine], history) for history in histories]
    spent = time.process_time() - started
    found = added(replays)
    ours, theirs = found[OURS], found[THEIRS]
    containers = sum(one.containers for one in replays)
    figures = (
        Figure("containers", containers),
        Figure("one container, counted", spent / containers * 1e3, "ms"),
    )
    return [
        ratio.row(one / other, Figure("ours", one), Figure("kubelet", other), *figures)
        for ratio, one, other in (
            (SOCKETS, ours.sockets, theirs.sockets),
            (NODES, ours.nodes, theirs.nodes),
            (L3S, ours.l3s, theirs.l3s),
        )
    ]
