"""What the filter refused is kept in bounds: all of the youngest pods', a few of the oldest's."""

import gc
import weakref
from pathlib import Path

import pytest

from colocate.load import LoadSettings, LoadTable, Refusal, Sifted, refused_everywhere
from colocate.load.filter import RefusalCause
from colocate.model.load import PodFacts
from colocate.scheduler.loop import refusal_log
from colocate.scheduler.loop.decision_log import DecisionLog
from colocate.scheduler.loop.refusal_log import AllRefusals
from colocate.scheduler.sections import Decisions

MANY = {f"n{number}": Refusal(RefusalCause.NEVER) for number in range(50)}


def test_of_any_refused_node_the_reason_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_log, "_REFUSALS_IN_ALL", 120)
    kept = AllRefusals(most=10)
    for number in range(4):
        kept.add(f"p{number}", MANY)
    assert [kept.of(f"p{number}", "n49").count > 0 for number in range(4)] == [False, False, True, True]
    oldest, youngest = kept.get("p0"), kept.get("p3")
    assert (len(oldest.some), oldest.count) == (20, 50)
    assert (len(youngest.some), youngest.count) == (20, 50)
    assert (len(oldest.all_kept), len(youngest.all_kept)) == (20, 50)


def test_what_was_refused_before_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_log, "_REFUSALS_IN_ALL", 120)
    kept = AllRefusals(most=10)
    kept.add("first", MANY)
    for _ in range(5):
        kept.add("again", MANY)
    assert kept.of("first", "n49").count == 1
    kept.add("again", {})
    assert kept.get("again").count == 0


def test_the_pods_are_bounded_too() -> None:
    kept = AllRefusals(most=2)
    for number in range(3):
        kept.add(f"p{number}", MANY)
    assert [kept.get(f"p{number}").count > 0 for number in range(3)] == [False, True, True]


def test_what_waits_for_the_disk_is_short(tmp_path: Path) -> None:
    class Watched(dict[str, Refusal]):
        """One of which can be seen that it is gone."""

    log = DecisionLog(Decisions(file=tmp_path / "decisions.jsonl"), LoadSettings(), shadow=False)
    refused = Watched(MANY)
    gone = weakref.ref(refused)
    log.sifted("p", Sifted([], refused))
    log.refused(
        refused_everywhere(
            LoadTable(LoadSettings()), PodFacts("p", "default/p"), len(MANY), 0.0, LoadSettings().policy
        )
    )
    log.sifted("p", Sifted(["n1"], {}))
    del refused
    gc.collect()
    assert gone() is None, "though nothing of it is written yet"
