"""Whether the default policy keeps nodes cool: a short replay of a generated trace, against kube-scheduler alone.

Three workloads of eight hours that count, on 24 nodes, placed by the code that schedules. The figures of the first
row are the same on every machine; the second tells what a minute of a replayed cluster costs.
"""

import time

from bench.ratio import Figure, Ratio, Row
from colocate.replay.load_contenders import contenders
from colocate.replay.load_quality import quality
from colocate.replay.load_run import LoadRun
from colocate.replay.load_trace import generated_trace
from colocate.replay.load_workload import WorkloadSettings, workload_of

SETTINGS = WorkloadSettings(nodes=24, hours=12, warm_up=4, use=0.6)
SEEDS = (1, 2, 3)
HOT = Ratio("hot node-hours of a replay, by the default policy", "by kube-scheduler alone", 0.5)
MINUTE = Ratio("a minute of a replay, by the default policy", "by kube-scheduler alone", None)
RATIOS = (HOT, MINUTE)


def bench() -> list[Row]:
    trace = generated_trace(seed=1)
    hot, spent = {"stock": 0.0, "default": 0.0}, {"stock": 0.0, "default": 0.0}
    for seed in SEEDS:
        workload = workload_of(trace, seed, SETTINGS)
        for contender in contenders("stock,default"):
            begun = time.process_time()
            ran = LoadRun(workload, contender, seed).run()
            spent[contender.name] += time.process_time() - begun
            hot[contender.name] += quality(workload, ran.used, ran.pods, contender.name, seed).hot / len(
                SEEDS
            )
    minutes = len(SEEDS) * SETTINGS.hours * 60
    return [
        HOT.row(
            hot["default"] / hot["stock"],
            Figure("default", hot["default"], "%"),
            Figure("stock", hot["stock"], "%"),
        ),
        MINUTE.row(
            spent["default"] / spent["stock"],
            Figure("default", 1000 * spent["default"] / minutes, "ms"),
            Figure("stock", 1000 * spent["stock"] / minutes, "ms"),
        ),
    ]
