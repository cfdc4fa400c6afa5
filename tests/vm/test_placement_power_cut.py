"""A power cut of a node with a real containerd: no assignment is lost, none is doubled, and none is leaked."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from tests.vm import disk
from tests.vm.disk import Disk
from tests.vm.events import Said
from tests.vm.image import Order
from tests.vm.machine import BOOT_SECONDS, NEEDS, Machine, MachineFailed
from tests.vm.placement_power_cut import MOST_PODS, TOPOLOGY, Seen, number_of

pytestmark = [
    pytest.mark.vm(),
    pytest.mark.needs(*NEEDS, *disk.NEEDS, "containerd", "ctr", "runc", "busybox"),
    pytest.mark.timeout(1200),
]

STEPS = 5


def boot(on: Disk) -> Machine:
    order = Order([sys.executable, "-m", "tests.vm.placement_power_cut"], disk=True)
    return Machine(TOPOLOGY, order, disk=on.next_layer())


def seen(machine: Machine) -> Iterator[Seen]:
    """First what was found, then each step that was finished."""
    for event in machine.events(BOOT_SECONDS + 300):
        if isinstance(event, Said):
            yield msgspec.json.decode(event.text, type=Seen)


def not_doubled(pods: Mapping[str, list[int]]) -> bool:
    cpus = [cpu for own in pods.values() for cpu in own]
    return len(cpus) == len(set(cpus))


def lost(acknowledged: Mapping[str, list[int]], stored: Mapping[str, list[int]]) -> list[str]:
    """What was acknowledged, is not in the file, and cannot have ended since.

    The node went on between the last step that was heard and the cut. It ends its oldest pod, and only once it has
    started one too many: a pod may be missing where the file has one that is so much younger.
    """
    youngest = max(map(number_of, stored), default=-1)
    return [
        f"{pod} had {cpus}, the file says {stored.get(pod, 'nothing')}"
        for pod, cpus in acknowledged.items()
        if stored.get(pod) != cpus and (pod in stored or youngest < number_of(pod) + MOST_PODS)
    ]


@pytest.mark.parametrize(
    ("stored", "missed"),
    [
        ({"pod-0-3": [0], "pod-0-4": [1]}, []),
        ({"pod-0-3": [0], "pod-0-4": [1], "pod-0-5": [2]}, []),
        ({"pod-0-4": [1], "pod-0-5": [2]}, []),
        ({"pod-0-5": [2], "pod-0-6": [0]}, []),
        ({"pod-0-4": [1]}, ["pod-0-3"]),
        ({"pod-0-3": [0], "pod-0-5": [2]}, ["pod-0-4"]),
        ({"pod-0-3": [3], "pod-0-4": [1]}, ["pod-0-3"]),
        ({"pod-0-4": [0], "pod-0-5": [2]}, ["pod-0-4"]),
        ({}, ["pod-0-3", "pod-0-4"]),
    ],
)
def test_a_pod_counts_as_lost_unless_the_node_can_have_ended_it(
    stored: dict[str, list[int]], missed: list[str]
) -> None:
    """Else the test below would prove nothing, or fail where the node is quicker than the cut."""
    assert [line.split()[0] for line in lost({"pod-0-3": [0], "pod-0-4": [1]}, stored)] == missed


def test_what_was_assigned_is_known_after_the_cut_and_free_once_its_pods_are_gone(tmp_path: Path) -> None:
    on = Disk(tmp_path)
    steps: list[Seen] = []
    with boot(on) as machine, contextlib.suppress(MachineFailed):
        for step in seen(machine):
            steps.append(step)
            if len(steps) == 1 + STEPS:
                machine.kill()  # and the loop goes on with what had been said by then
    first, *lived = steps
    assert first == Seen({}, {}, False)
    assert len(lived) >= STEPS
    assert all(not_doubled(step.pods) for step in lived)
    with boot(on) as machine:
        heard = seen(machine)
        found = next(heard)
        assert not found.set_aside
        assert lost(lived[-1].pods, found.stored) == []
        assert not_doubled(found.stored)
        assert found.pods == {}, "the pods went with the power, and so did what they had"
        again = [next(heard) for _ in range(3)]
    assert all(not_doubled(step.pods) for step in again)
    assert all(len(step.pods) >= 1 for step in again)
