"""Lives of a process, each killed at a later side effect, until one comes to its end; and what no death may do."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from colocate.lab.device_table import DeviceTable
from colocate.wire import deviceplugin_pb2 as dp

_LONGEST = 500
_LEAST_DEATHS = 5


class Lives:
    """The lives of one of several tests, to which the deaths are dealt out."""

    def __init__(self, start: int, stride: int, folder: Path) -> None:
        self._ways_to_die = range(start + 1, _LONGEST, stride)
        self._folder = folder
        self._survived = False
        self.deaths = 0
        self.points: set[str] = set()
        """The side effects of all lives."""

    def __iter__(self) -> Iterator[tuple[int, Path]]:
        """For each life the number of the side effect to die at, and the log that it writes them to."""
        for crash_at in self._ways_to_die:
            yield crash_at, self._folder / f"points-{crash_at}"
            if self._survived:
                return
        pytest.fail("no life came to its end")

    def over(self, log: Path, *, survived: bool) -> None:
        self.points.update(line.split(maxsplit=1)[1] for line in log.read_text().splitlines())
        self._survived = survived
        self.deaths += not survived

    def tell(self, record_property: Callable[[str, object], None]) -> None:
        assert self.deaths >= _LEAST_DEATHS
        record_property("deaths", self.deaths)
        record_property("crash points", sorted(self.points))


class Violations:
    """Watches every list that reaches a kubelet: an id that a pod holds must be in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[str] = []
        replace = DeviceTable.replace

        def watched(table: DeviceTable, resource: str, devices: Iterable[dp.Device]) -> None:
            listed = {device.ID for device in devices}
            running = [held for held in table.held.values() if held.resource == resource]
            self.found += [
                f"{held.pod_uid} lost {held.ids - listed}" for held in running if held.ids - listed
            ]
            holders = [id for held in running for id in held.ids]
            self.found += [f"{id} is held twice" for id in set(holders) if holders.count(id) > 1]
            replace(table, resource, devices)

        monkeypatch.setattr(DeviceTable, "replace", watched)
