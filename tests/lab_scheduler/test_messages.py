"""Words, as recorded."""

import pytest

from colocate.lab.scheduler import messages

from .lab import recorded

INSUFFICIENT = "Insufficient test.com/colocation-memory"


def test_the_recorded_message() -> None:
    preemption = messages.preemption_failed(1000, [messages.NOT_HELPFUL] * 1000)
    said = messages.failed(1000, [INSUFFICIENT] * 1000, preemption)
    assert said == recorded("events-unschedulable.json")["items"][0]["message"]
    assert said == recorded("pod-unschedulable.json")["status"]["conditions"][0]["message"]


@pytest.mark.parametrize(
    ("reasons", "listed"),
    [
        (["b", "a", "b"], " 1 a, 2 b."),
        (["a"] * 10 + ["b"] * 2, " 10 a, 2 b."),
        (["Insufficient x", "node(s) y"], " 1 Insufficient x, 1 node(s) y."),
        ([], ""),
    ],
)
def test_reasons_are_counted_and_sorted_as_text(reasons: list[str], listed: str) -> None:
    assert messages.unavailable(12, reasons) == f"0/12 nodes are available:{listed}"


def test_a_preemption_that_succeeded_is_not_spoken_of() -> None:
    assert messages.failed(1, ["Insufficient cpu"]) == "0/1 nodes are available: 1 Insufficient cpu."


def test_the_other_events() -> None:
    assert messages.scheduled("default", "s1", "n1") == "Successfully assigned default/s1 to n1"
    assert messages.preempted("u1", "n1") == "Preempted by pod u1 on node n1"
