"""A node is judged by what the pods that are there now use, and a new pod by what its owner's pods use."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.load.decision import decide
from colocate.load.demand import Calibration, OwnerUse
from colocate.load.filter import sift
from colocate.load.settings import (
    BalancedSettings,
    EstimateSettings,
    FilterSettings,
    LedgerSettings,
    LoadSettings,
)
from colocate.load.table import LoadTable
from colocate.model.load import Amount, BoundPod, PodUsage
from tests.load.facts import GIB, NOW, load, pod, table

WINDOW = 300.0
SETTINGS = LoadSettings(ledger=LedgerSettings(window=WINDOW, least_percent=0))
OLD = NOW - 3600


def measured(cpu: int = 800, at: float = NOW) -> PodUsage:
    return PodUsage(Amount(cpu, GIB), at)


def of(*pods: tuple[str, str, str, int], percent: float = 20, settings: LoadSettings = SETTINGS) -> LoadTable:
    """Two nodes at so many percent, and pods that were there for long: uid, node, owner, millicores."""
    made = table({"a": load(percent, 10), "b": load(percent, 10)}, settings)
    for uid, node, owner, _ in pods:
        made.bind(BoundPod(pod(uid, 1000, owner=owner), node, OLD))
    made.observe_pods({uid: measured(cpu) for uid, _, _, cpu in pods})
    return made


def test_a_pod_that_has_left_no_longer_counts_while_samples_still_show_it() -> None:
    made = of(("stays", "a", "x", 800), ("goes", "a", "y", 800))
    before = made.terms("a").cpu.occupied
    made.end("goes")
    assert before == pytest.approx(20)
    assert made.terms("a").cpu.occupied == pytest.approx(10)
    # The next samples show less and less of it: what the node uses stays the same.
    for minute, percent in ((1, 18), (3, 14), (5, 10)):
        at = NOW + 60 * minute
        made.observe_pods({"stays": measured(at=at)})
        made.observe({"a": load(percent, 10, at=at)}, at)
        assert made.terms("a").cpu.occupied == pytest.approx(10, abs=0.1)


def test_a_pod_that_has_just_come_counts_in_full_once_it_is_measured() -> None:
    made = of(("stays", "a", "x", 800), percent=10)
    made.bind(BoundPod(pod("new", 1000, owner="x"), "a", NOW))
    at = NOW + 60
    made.observe_pods({"stays": measured(at=at), "new": measured(1600, at=at)})
    # A fifth of the window shows the new one.
    made.observe({"a": load(14, 10, at=at)}, at)
    assert made.terms("a").cpu.occupied == pytest.approx(30, abs=0.1)


def test_what_a_node_uses_besides_its_pods_goes_on_counting() -> None:
    made = of(("one", "a", "x", 800), ("two", "a", "x", 800), percent=60)
    assert made.terms("a").cpu.occupied == pytest.approx(60)
    made.end("one")
    assert made.terms("a").cpu.occupied == pytest.approx(50)


def test_without_any_measurement_a_node_is_what_its_samples_say() -> None:
    made = of(("one", "a", "x", 800), percent=37)
    made.observe_pods({})
    assert made.terms("a").cpu.occupied == pytest.approx(37)
    assert made.terms("a").cpu.swing == 0


def test_replicas_of_one_owner_swing_together_and_others_do_not() -> None:
    alike = [(f"p{number}", "a", "same", 400) for number in range(4)]
    mixed = [(f"q{number}", "b", f"own-{number}", 400) for number in range(4)]
    made = of(*alike, *mixed, percent=70)
    together, apart = made.terms("a").cpu.swing, made.terms("b").cpu.swing
    assert together == pytest.approx(2 * apart, rel=0.1)
    new = made.demand(pod("new", 1000))
    first, second = made.scores(SETTINGS.policy, new, ["a", "b"])
    assert first < second
    calm = LoadSettings(balanced=BalancedSettings(pod_deviations=0), ledger=SETTINGS.ledger)
    first, second = of(*alike, *mixed, percent=70, settings=calm).scores(calm.policy, new, ["a", "b"])
    assert first == second


def test_what_an_owners_pods_use_now_is_what_the_next_one_is_taken_to_use() -> None:
    made = of(*((f"p{number}", "a", "web", 100) for number in range(8)))
    estimates = []
    for minute in range(1, 31):
        at = NOW + 60 * minute
        used = 100 if minute < 20 else 900
        made.observe_pods({f"p{number}": measured(used, at) for number in range(8)})
        estimates.append(made.demand(pod("next", 1000, owner="web")).estimate.cpu)
    assert estimates[18] == pytest.approx(100, rel=0.3)
    assert estimates[-1] == pytest.approx(900, rel=0.1)


def test_estimates_stay_as_stated_where_they_are_not_to_be_corrected() -> None:
    settings = LoadSettings(estimate=EstimateSettings(calibrate=False), ledger=SETTINGS.ledger)
    made = of(*((f"p{number}", "a", "web", 100) for number in range(8)), settings=settings)
    assert made.demand(pod("next", 1000, owner="web")).estimate.cpu == 850
    assert made.demand(pod("next", 1000, owner="web")).swing.cpu == 0


def test_of_an_owner_that_nobody_knows_all_pods_together_tell() -> None:
    pods = [(f"p{number}", "a", f"owner-{number % 5}", 85) for number in range(20)]
    assert of(*pods).demand(pod("new", 1000, owner="stranger")).estimate.cpu == pytest.approx(85, rel=0.06)
    assert of(*pods[:19]).demand(pod("new", 1000, owner="stranger")).estimate.cpu == 850, "too few"


@given(
    uses=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**15), st.floats(0, 1e6)), max_size=30)
)
def test_whatever_is_measured_ratios_and_swings_are_bounded(uses: list[tuple[int, int, float]]) -> None:
    calibration, now = Calibration(), NOW
    for cpu, memory, step in uses:
        now += step
        calibration.learn("web", OwnerUse(1, 100, 1 << 20, cpu, memory), now)
        ratio, swing = calibration.ratio("web"), calibration.swing("web")
        assert 0.01 < ratio.cpu < 6
        assert 0.01 < ratio.memory < 6
        assert 0 <= swing.cpu < 6
        assert 0 <= swing.memory < 6


@pytest.mark.parametrize("used", [20, 400, 2000])
@pytest.mark.parametrize("seed", range(3))
def test_a_burst_of_pods_whose_owner_is_known_spreads_evenly(used: int, seed: int) -> None:
    names = [f"n{number:02}" for number in range(20)]
    made = table({name: load(10, 10) for name in names}, SETTINGS)
    for name in names:
        made.bind(BoundPod(pod(f"old-{name}", 400, owner="web"), name, OLD))
    made.observe_pods({f"old-{name}": measured(used) for name in names})
    chance, placed = random.Random(seed), Counter[str]()
    for number in range(200):
        new, now = pod(f"new-{number}", 400, owner="web"), NOW + number * 0.01
        scores = decide(made, new, names, now).scores
        best = [name for name, score in zip(names, scores, strict=True) if score == max(scores)]
        chosen = chance.choice(best)
        placed[chosen] += 1
        made.bind(BoundPod(new, chosen, now))
    assert max(placed.values()) <= 1.3 * 10


@pytest.mark.parametrize("enabled", [False, True])
def test_where_every_node_is_hot_the_coolest_is_best_and_no_pod_waits(enabled: bool) -> None:
    settings = LoadSettings(filter=FilterSettings(enabled=enabled), ledger=SETTINGS.ledger)
    made = table(
        {name: load(percent, 90) for name, percent in zip("abc", (97, 93, 99), strict=True)}, settings
    )
    for name in "abc":
        made.bind(BoundPod(pod(f"busy-{name}", 7000, owner=name), name, OLD))
    made.observe_pods({f"busy-{name}": measured(7400) for name in "abc"})
    new = pod("new", 100)
    passed = sift(made, made.demand(new), list("abc")).passed
    assert sorted(passed) == ["a", "b", "c"]
    scores = dict(zip("abc", decide(made, new, list("abc"), NOW).scores, strict=True))
    assert max(scores, key=lambda name: scores[name]) == "b"
    assert scores["c"] >= 0
