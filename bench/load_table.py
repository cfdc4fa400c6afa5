"""The table of node loads at 5000 nodes and 150 000 pods: made, recomputed by new samples, asked by a scheduler.

Making and recomputing it is compared with a plain loop over the same pods that adds up what they request per
node; recomputing it also with tables of a tenth of the size, and a question of 5000 candidates with a dict that
is looked into as often. There are ten small tables, taken in turn: one alone would stay in the processor's cache.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

import msgspec

from bench.measure import Sample, side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate.load.decision import decide
from colocate.load.settings import Settings, mix
from colocate.load.table import Table
from colocate.model.load import (
    Amount,
    BoundPod,
    ContainerAsk,
    NodeFacts,
    NodeLoad,
    PerResource,
    PodFacts,
    PodShape,
    Usage,
)

NODES, PODS_PER_NODE = 5000, 30
SHAPES = 50
NOW = 1_700_000_000.0

LOOP = "adding up the pods' requests in a loop"
MADE = Ratio("load table of 5000 nodes, 150 000 pods made", LOOP, 30.0)
RECOMPUTED = Ratio("load table of 5000 nodes, 150 000 pods recomputed", LOOP, 8.0)
LINEAR = Ratio("load table of 5000 nodes recomputed", "one of 500 nodes", 12.0)
ASKED = Ratio("5000 candidates scored, with a record of why", "5000 look-ups in a dict", 5.0)
RATIOS = (MADE, RECOMPUTED, LINEAR, ASKED)


class Cluster(msgspec.Struct, frozen=True):
    """Facts of so many nodes."""

    nodes: list[NodeFacts]
    loads: dict[str, NodeLoad]
    pods: list[BoundPod]


def bench() -> list[Row]:
    return asyncio.run(_bench())


async def _bench() -> list[Row]:
    large = cluster(NODES)
    once = await side_by_side(_timed(lambda: made(large)), _timed(lambda: added_up(large)), at_least=5)
    table = made(large)
    again = await side_by_side(_timed(lambda: recomputed(table, large)), _timed(lambda: added_up(large)))
    small = itertools.cycle([(made(facts), facts) for facts in [cluster(NODES // 10) for _ in range(10)]])
    linear = await side_by_side(
        _timed(lambda: recomputed(table, large)), _timed(lambda: recomputed(*next(small)))
    )
    names = [node.name for node in large.nodes]
    looked_up = dict.fromkeys(names, 50)
    pod = large.pods[0].pod
    asked = await side_by_side(
        _timed(lambda: decide(table, pod, names, NOW)), _timed(lambda: [looked_up[name] for name in names])
    )
    return [
        MADE.row(once.ratio, _ms("made", once.ours), _ms("loop", once.theirs)),
        RECOMPUTED.row(again.ratio, _ms("recomputed", again.ours), _ms("loop", again.theirs)),
        LINEAR.row(linear.ratio, _ms("5000 nodes", linear.ours), _ms("500 nodes", linear.theirs)),
        ASKED.row(asked.ratio, _ms("scored", asked.ours), _ms("looked up", asked.theirs)),
    ]


def cluster(nodes: int, names: Sequence[str] = (), now: float = NOW) -> Cluster:
    size = Amount(64_000, 256 << 30)
    names = names or [f"node-{number:05}" for number in range(nodes)]
    shapes = [
        PodShape((ContainerAsk(PerResource(100 + 10 * kind, (64 + kind) << 20)),)) for kind in range(SHAPES)
    ]
    return Cluster(
        [NodeFacts(name, size, size) for name in names],
        {
            name: NodeLoad(Usage(number % 90, now, 5.0), Usage(number % 80, now, 2.0))
            for number, name in enumerate(names)
        },
        [
            # One in thirty is too young for the samples.
            BoundPod(
                PodFacts(
                    f"uid-{number}", f"default/pod-{number}", shapes[number % SHAPES], f"set-{number % 997}"
                ),
                names[number % nodes],
                now - (10 if number < nodes else 600),
            )
            for number in range(nodes * PODS_PER_NODE)
        ],
    )


def made(facts: Cluster) -> Table:
    table = Table(Settings())
    table.add_nodes(facts.nodes)
    table.observe(facts.loads, NOW)
    for bound in facts.pods:
        table.bind(bound)
    return table


def recomputed(table: Table, facts: Cluster) -> list[int]:
    """All that follows from new samples: what the ledger still counts, every node's terms, the scores for a pod."""
    table.observe_pods({})
    table.observe(facts.loads, NOW)
    return table.scores(mix("balanced"), table.demand(facts.pods[0].pod), list(facts.loads))


def added_up(facts: Cluster) -> dict[str, tuple[int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    for bound in facts.pods:
        cpu, memory = sums.get(bound.node, (0, 0))
        for container in bound.pod.shape.containers:
            cpu += container.request.cpu or 0
            memory += container.request.memory or 0
        sums[bound.node] = (cpu, memory)
    return sums


def _timed(work: Callable[[], object]) -> Sample:
    async def sample() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return sample


def _ms(name: str, seconds: float) -> Figure:
    return Figure(name, 1000 * seconds, "ms")
