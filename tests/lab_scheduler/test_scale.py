"""Many nodes and pods: what one pod costs does not grow with how many there are."""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from colocate.clock import ManualClock
from colocate.lab.scheduler.facts import SchedulablePod
from colocate.lab.scheduler.filters import FilterCause
from colocate.lab.scheduler.loop import Scheduler
from colocate.lab.scheduler.queue import Queue
from colocate.lab.scheduler.requests import PodRequests
from colocate.lab.scheduler.search import enough
from tests.support.growth import check_growth

from .lab import Lab

NODES = 500


async def _schedule(lab: Lab, scheduler: Scheduler, first: int, last: int, some: int = 50) -> float:
    """Seconds of CPU for each of some more pods, in the best of many lots: others use this machine, too."""
    costs = []
    for begin in range(first, last, some):
        for number in range(begin, begin + some):
            lab.add_pod(f"p{number}", {"cpu": "50m", "memory": "100Mi"})
        begun = time.process_time()
        await scheduler.settled()
        costs.append((time.process_time() - begun) / some)
    return min(costs)


async def test_2000_pods_on_500_nodes_at_a_flat_cost() -> None:
    lab = Lab(ManualClock())
    for number in range(NODES):
        lab.add_node(f"n{number}", cpu="64", memory="256Gi")
    async with Scheduler(lab.registry, random=Random(1)) as scheduler:
        await _schedule(lab, scheduler, 0, 100)
        early = await _schedule(lab, scheduler, 100, 500)
        await _schedule(lab, scheduler, 500, 1600)
        late = await _schedule(lab, scheduler, 1600, 2000)
    used = Counter(lab.placed().values())
    assert sum(used.values()) == 2000
    assert len(used) > NODES * 0.9
    assert late < early * 2, f"{early * 1e3:.2f} ms for an early pod, {late * 1e3:.2f} ms for a late one"


@pytest.mark.parametrize(
    ("nodes", "percentage", "expected"),
    [(5, 0, 5), (99, 0, 99), (100, 0, 100), (500, 0, 230), (1000, 0, 420), (5000, 0, 500), (10000, 0, 500),
     (1000, 30, 300), (1000, 100, 1000), (200, 10, 100)],
)  # fmt: skip
def test_how_many_nodes_are_compared(nodes: int, percentage: int, expected: int) -> None:
    assert enough(nodes, percentage) == expected


def _through_a_queue(pods: list[SchedulablePod]) -> None:
    queue = Queue()
    for pod in pods:
        queue.put(pod, changed=True, now=0)
    while (waiting := queue.take(0)) is not None:
        queue.put_aside(waiting, FilterCause.RESOURCES, 0)
    queue.happened(FilterCause.RESOURCES, 5)
    while (waiting := queue.take(5)) is not None:
        queue.drop(waiting.pod.uid)


def test_a_queue_of_many_costs_about_as_much_for_each() -> None:
    def pods(count: int) -> Callable[[], None]:
        return partial(
            _through_a_queue, [SchedulablePod("default", "p", str(n), PodRequests()) for n in range(count)]
        )

    check_growth(pods, 500, 10_000, at_most=60)
