"""A power cut of a node with a real containerd: no assignment is lost, none is doubled, and none is leaked."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.vm import disk
from tests.vm.disk import Disk
from tests.vm.events import Said
from tests.vm.image import Order
from tests.vm.machine import BOOT_SECONDS, NEEDS, Machine, MachineFailed
from tests.vm.placement_power_cut import TOPOLOGY, Seen

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


def not_doubled(step: Seen) -> bool:
    cpus = [cpu for own in step.pods.values() for cpu in own]
    return len(cpus) == len(set(cpus))


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
    assert all(not_doubled(step) for step in lived)
    with boot(on) as machine:
        heard = seen(machine)
        found = next(heard)
        assert not found.set_aside
        kept = {pod: cpus for pod, cpus in lived[-1].pods.items() if pod in found.stored}
        assert kept == lived[-1].pods, "what was acknowledged is in the file"
        assert found.pods == {}, "the pods went with the power, and so did what they had"
        again = [next(heard) for _ in range(3)]
    assert all(not_doubled(step) for step in again)
    assert all(len(step.pods) >= 1 for step in again)
