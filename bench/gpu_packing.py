"""Ten replays of a public trace: how many GPUs our policy leaves unallocated against the better of best-fit and fgd.

Needs the trace in ../shared/traces/openb; without it, a cluster in its proportions, of a quarter of its size, stands
in. The seconds of one replay are told beside.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path

from bench.ratio import Figure, Ratio, Row
from colocate.gpus.packing import GpuState, NodeState, PackingPolicy, PackRequest
from colocate.replay.gpu_replay import replay
from colocate.replay.gpu_trace import read_nodes, read_pods

TRACES = Path(__file__).parents[2] / "shared" / "traces" / "openb"
SEEDS = range(1, 11)
THEIRS = (PackingPolicy.BEST_FIT, PackingPolicy.FGD)
BETTER = "the better of best-fit and fgd, by the mean of ten replays"
LISTS = {
    "default": Ratio("GPUs left unallocated by ours, default pods", BETTER, 0.99),
    "gpushare40": Ratio("GPUs left unallocated by ours, more shares", BETTER, 0.99),
}
LOST = Ratio("replays in which ours does not leave the fewest", "all twenty", 0.25)
RATIOS = (*LISTS.values(), LOST)

_SHAPES = [
    (96_000, 393_216, 8, 137),
    (104_000, 524_288, 2, 97),
    (16_000, 122_880, 2, 27),
    (128_000, 786_432, 8, 10),
]
_KINDS = [
    (3152, 5600, 1, 810, 128),
    (11_300, 49_152, 1, 1000, 170),
    (3152, 5600, 1, 1000, 58),
    (11_908, 47_104, 1, 470, 48),
    (12_500, 57_344, 0, 0, 45),
    (8000, 30_517, 1, 470, 44),
    (32_000, 49_152, 0, 0, 35),
    (18_708, 64_512, 1, 1000, 31),
    (11_908, 47_104, 1, 650, 29),
    (9810, 41_560, 1, 1000, 80),
    (4000, 22_888, 1, 320, 40),
    (4000, 15_258, 1, 160, 10),
    (88_000, 300_000, 8, 1000, 5),
]


def bench() -> list[Row]:
    rows, lost = [], 0
    for name, ratio in LISTS.items():
        nodes, pods = _trace(name)
        left: dict[PackingPolicy, list[float]] = {}
        started = time.perf_counter()
        for policy in (*THEIRS, PackingPolicy.OURS):
            left[policy] = [replay(nodes, pods, policy, seed)[0].gpus_unallocated for seed in SEEDS]
        seconds = (time.perf_counter() - started) / (3 * len(SEEDS))
        ours = left[PackingPolicy.OURS]
        lost += sum(one >= min(left[policy][n] for policy in THEIRS) for n, one in enumerate(ours))
        means = {policy: sum(found) / len(found) for policy, found in left.items()}
        figures = [Figure(str(policy), mean, "GPUs") for policy, mean in means.items()]
        better = min(means[policy] for policy in THEIRS)
        rows.append(
            ratio.row(means[PackingPolicy.OURS] / better, *figures, Figure("one replay", seconds, "s"))
        )
    return [*rows, LOST.row(lost / (2 * len(SEEDS)), Figure("lost", float(lost)))]


def _trace(name: str) -> tuple[Sequence[NodeState], Sequence[PackRequest]]:
    if TRACES.exists():
        nodes = read_nodes(TRACES / "openb_node_list_gpu_node.csv.gz")
        return nodes, read_pods(TRACES / f"openb_pod_list_{name}.csv.gz")
    shapes = [(cpu, memory, gpus) for cpu, memory, gpus, count in _SHAPES for _ in range(count)]
    nodes = [
        NodeState(
            name=f"{number}",
            cpu=cpu,
            memory=memory,
            free_cpu=cpu,
            free_memory=memory,
            gpus=(GpuState(1000, 1000),) * gpus,
        )
        for number, (cpu, memory, gpus) in enumerate(shapes)
    ]
    more = 2 if name == "gpushare40" else 1
    pods = [
        PackRequest(cpu, memory, gpus, part)
        for cpu, memory, gpus, part, count in _KINDS
        for _ in range(count * more if 0 < part < 1000 else count)
    ]
    random.Random(1).shuffle(pods)
    return nodes, pods
