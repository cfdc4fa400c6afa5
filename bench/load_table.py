"""The table of node loads at 5000 nodes and 150 000 pods: made, recomputed by new samples, asked by a scheduler.

Making and recomputing it is compared with a plain loop over the same pods that adds up what they request per
node; recomputing it also with tables of a tenth of the size, and a question of 5000 candidates with a dict that
is looked into as often: for a pod like those before, and for one whose demand is new; a mix with oversell, which
reckons most, with balanced alone. New samples are worked in step by step: what the first question after them costs,
and how long one may have to wait for a step, is compared with a question at another time. There are ten small tables,
taken in turn: one alone would stay in the processor's cache.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from bench.measure import Sample, side_by_side
from bench.ratio import Figure, Ratio, Row
from colocate.load.decision import decide
from colocate.load.settings import LoadSettings, mix
from colocate.load.table import LoadTable
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
_END = object()

LOOP = "adding up the pods' requests in a loop"
MADE = Ratio("load table of 5000 nodes, 150 000 pods made", LOOP, 30.0)
RECOMPUTED = Ratio("load table of 5000 nodes, 150 000 pods recomputed", LOOP, 8.0)
LINEAR = Ratio("load table of 5000 nodes recomputed", "one of 500 nodes", 12.0)
ASKED = Ratio("5000 candidates scored, with a record of why", "5000 look-ups in a dict", 5.0)
NEW_DEMAND = Ratio("5000 candidates scored for a demand that is new", "5000 look-ups in a dict", 120.0)
FIRST = Ratio("the first 5000 candidates after new samples", "the same, a moment later", 2.0)
STEP = Ratio("the longest step of working in samples of 5000 nodes", "5000 candidates scored", 25.0)
OVERSOLD = Ratio(
    "5000 candidates scored for a new demand, by balanced and oversell", "by balanced alone", 3.0
)
RATIOS = (MADE, RECOMPUTED, LINEAR, ASKED, NEW_DEMAND, FIRST, STEP, OVERSOLD)


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
        *await _cold(table, large),
    ]


async def _cold(table: LoadTable, large: Cluster) -> list[Row]:
    """What is not like the question before."""
    names = [node.name for node in large.nodes]
    looked_up = dict.fromkeys(names, 50)
    pod = large.pods[0].pod
    demands = itertools.count(1000)

    def question() -> float:
        return _seconds(lambda: decide(table, pod, names, NOW))

    def new_demand(policy: str = "balanced") -> object:
        shape = PodShape((ContainerAsk(PerResource(next(demands), 64 << 20)),))
        return decide(table, msgspec.structs.replace(pod, shape=shape), names, NOW, mix=mix(policy))

    async def after_samples() -> float:
        for _ in table.observing(large.loads, NOW, {}):
            pass
        return question()

    async def longest_step() -> float:
        question()
        steps = table.observing(large.loads, NOW, {})
        return max(_steps(steps))

    async def later() -> float:
        question()
        return question()

    new = await side_by_side(_timed(new_demand), _timed(lambda: [looked_up[name] for name in names]))
    first = await side_by_side(after_samples, later)
    step = await side_by_side(longest_step, later)
    oversold = await side_by_side(_timed(lambda: new_demand("balanced=2,oversell=1")), _timed(new_demand))
    return [
        NEW_DEMAND.row(new.ratio, _ms("scored", new.ours), _ms("looked up", new.theirs)),
        FIRST.row(first.ratio, _ms("first", first.ours), _ms("later", first.theirs)),
        STEP.row(step.ratio, _ms("step", step.ours), _ms("scored", step.theirs)),
        OVERSOLD.row(oversold.ratio, _ms("both", oversold.ours), _ms("balanced", oversold.theirs)),
    ]


def _steps(steps: Iterator[None]) -> Iterator[float]:
    """How long each takes, the last one too."""
    going = True
    while going:
        started = time.perf_counter()
        going = next(steps, _END) is not _END
        yield time.perf_counter() - started


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


def made(facts: Cluster) -> LoadTable:
    table = LoadTable(LoadSettings())
    table.add_nodes(facts.nodes)
    table.observe(facts.loads, NOW)
    for bound in facts.pods:
        table.bind(bound)
    return table


def recomputed(table: LoadTable, facts: Cluster) -> list[int]:
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
        return _seconds(work)

    return sample


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _ms(name: str, seconds: float) -> Figure:
    return Figure(name, 1000 * seconds, "ms")
