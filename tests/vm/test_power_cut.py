"""A power cut at any moment: what was acknowledged as written is there afterwards, and every file is whole."""

import contextlib
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.vm import disk
from tests.vm.disk import Disk
from tests.vm.events import Said
from tests.vm.image import Order
from tests.vm.machine import BOOT_SECONDS, NEEDS, Machine, MachineFailed
from tests.vm.power_cut_writer import FILES, Version
from tests.vm.topology import TOPOLOGIES

pytestmark = [pytest.mark.vm(), pytest.mark.needs(*NEEDS, *disk.NEEDS), pytest.mark.timeout(900)]

CUTS = 2
WRITES = 20
SECONDS_OF_A_WRITE = 0.05


def said(machine: Machine) -> Iterator[list[Version]]:
    """First what the writer found, then each write that it has finished."""
    for event in machine.events(BOOT_SECONDS):
        if isinstance(event, Said):
            yield msgspec.json.decode(event.text, type=list[Version])


def boot(on: Disk, how: str) -> Machine:
    order = Order([sys.executable, "-m", "tests.vm.power_cut_writer", how], disk=True)
    return Machine(TOPOLOGIES["mini"], order, disk=on.next_layer())


def write_until_the_power_is_cut(
    on: Disk, how: str, chance: random.Random
) -> tuple[list[Version], dict[str, int]]:
    """What was found on the disk, and by file the last version that was acknowledged."""
    acknowledged: dict[str, int] = {}
    with boot(on, how) as machine:
        heard = said(machine)
        found = next(heard)
        countdown = chance.randint(WRITES, 2 * WRITES)
        with contextlib.suppress(MachineFailed):
            for (version,) in heard:
                acknowledged[version.file] = version.number
                countdown -= 1
                if countdown == 0:
                    # Not for anything to happen: the cut is to come at any moment of a write.
                    time.sleep(chance.uniform(0, SECONDS_OF_A_WRITE))
                    machine.kill()  # and the loop goes on with what had been said by then
    return found, acknowledged


def lost(acknowledged: dict[str, int], found: list[Version]) -> list[str]:
    """What was acknowledged and is not there; a later version may be, whose acknowledgement was cut off."""
    there = {version.file: version for version in found}
    broken = [f"{version.file} is not whole" for version in found if not version.whole]
    return broken + [
        f"{file} was {number}, is {there[file].number if file in there else 'missing'}"
        for file, number in acknowledged.items()
        if file not in there or (there[file].whole and there[file].number < number)
    ]


def found_on(disk: Disk) -> list[Version]:
    with boot(disk, "atomically") as machine:
        return next(said(machine))


def test_what_was_acknowledged_survives_and_every_file_is_whole(tmp_path: Path) -> None:
    disk, chance = Disk(tmp_path), random.Random()
    expected: dict[str, int] = {}
    for _ in range(CUTS):
        found, acknowledged = write_until_the_power_is_cut(disk, "atomically", chance)
        assert lost(expected, found) == []
        expected |= acknowledged
        assert len(acknowledged) == FILES
    assert lost(expected, found_on(disk)) == []


def test_a_program_that_does_not_flush_loses_what_it_acknowledged(tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    disk = Disk(tmp_path)
    _, acknowledged = write_until_the_power_is_cut(disk, "carelessly", random.Random())
    assert lost(acknowledged, found_on(disk)) != []
