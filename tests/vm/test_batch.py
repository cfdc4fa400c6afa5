"""A VM that hangs before it is up is booted again; whatever happens later is told as it is."""

from collections.abc import Iterator

import pytest

from tests.vm import batch
from tests.vm.batch import BOOTS, Batch, Lost
from tests.vm.events import Event, Exited, Ready, Reported, Started
from tests.vm.machine import MachineFailed, MachineSilent

TEST = "tests/a.py::test_a"
PASSED: list[Event] = [Ready(), Started(TEST), Reported({"nodeid": TEST, "when": "teardown"}), Exited(0)]


class Pretended:
    """A VM that tells this, or fails with it."""

    started = 0.0

    def __init__(self, *told: Event | MachineFailed) -> None:
        self._told = told

    def __enter__(self) -> "Pretended":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def kill(self) -> None:
        pass

    def console(self) -> str:
        return "nothing"

    def events(self, silence: float, boot: float) -> Iterator[Event]:
        for told in self._told:
            if isinstance(told, MachineFailed):
                raise told
            yield told


def run(monkeypatch: pytest.MonkeyPatch, *machines: Pretended) -> tuple[Batch, list[str]]:
    """The tests of one boot in these VMs, the next where one is not enough; and what was reported."""
    coming = iter(machines)
    monkeypatch.setattr(batch, "Machine", lambda *_: next(coming))
    made = Batch("mini", [TEST], 1, [])
    made.start()
    try:
        return made, [report["when"] for report in made.reports(TEST)]
    except Lost as lost:
        return made, [str(lost)]


def test_a_vm_that_hangs_before_it_is_up_is_booted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, reported = run(monkeypatch, Pretended(MachineSilent("hangs")), Pretended(*PASSED))
    assert reported == ["teardown"]
    made.join()
    assert made.boots == 2


@pytest.mark.parametrize(
    ("machines", "reason"),
    [
        ([Pretended(MachineSilent("it hangs"))] * BOOTS, "it hangs, before its first"),
        ([Pretended(MachineFailed("it ended"))], "it ended, before its first"),
        ([Pretended(Ready(), MachineSilent("it hangs"))], "it hangs, before its first"),
        ([Pretended(Ready(), Started(TEST), MachineSilent("it hangs"))], "this test was running, it hangs"),
    ],
)  # fmt: skip
def test_but_not_for_ever_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, machines: list[Pretended], reason: str
) -> None:
    made, (reported,) = run(monkeypatch, *machines)
    assert reason in reported
    assert made.boots == len(machines)
