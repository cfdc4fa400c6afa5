"""Scores are what the formulas in docs/load-policies.md say, to the point: none is lost in floats."""

import math
from fractions import Fraction
from statistics import NormalDist

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from colocate.load.policies.real_usage import MemRealUsage
from colocate.load.settings import (
    BalancedSettings,
    EstimateSettings,
    LoadSettings,
    OversellSettings,
    PackingSettings,
    mix,
)
from colocate.load.table import LoadTable
from colocate.model.load import Amount, BoundPod, NodeFacts
from tests.load.facts import EXACT, NOW, load, pod

AS_ASKED = EstimateSettings(cpu_percent=100, memory_percent=100, default_cpu=0, default_memory=0)
"""A pod is estimated at what it requests."""
HAIR = Fraction(1, 10**9)
"""Pods that are not measured."""

rooms = st.sampled_from([1000, 1900, 4000, 6000, 8000, 96_000, 3 << 30, 32 << 30]) | st.integers(1, 1 << 40)
percents = st.integers(0, 110)
permilles = st.integers(0, 1000)
"""Of a room."""


class Case:
    """One node, as large in CPU as in memory, with a pod that is there and one to come."""

    def __init__(
        self, room: int, cpu: int, memory: int, requested: int, asked: int, spare: int = 0, **more: object
    ) -> None:
        """Loads in percent of what the node has, `spare` percent more than pods can have; the rest in permille."""
        self.room = room
        self.capacity = room + room * spare // 100
        self.requested = room * requested // 1000
        self.asked = room * asked // 1000
        self.loads = cpu, memory
        self.settings = msgspec.structs.replace(LoadSettings(ledger=EXACT, estimate=AS_ASKED), **more)

    def table(self, *, bound_at: float = NOW - 600) -> LoadTable:
        made = LoadTable(self.settings)
        size, whole = Amount(self.room, self.room), Amount(self.capacity, self.capacity)
        made.add_nodes([NodeFacts("n", whole, size)])
        made.observe({"n": load(*self.loads)}, NOW)
        made.bind(BoundPod(pod("old", self.requested, self.requested), "n", bound_at))
        return made

    def pressure(self, peak: int) -> Fraction:
        """By balanced, with the pod to come, of a resource of which so much is in use."""
        beyond = 100 - Fraction(100 - peak, 4) * Fraction(self.room, self.capacity)
        occupied = min(Fraction(peak * self.capacity, self.room), beyond, Fraction(100))
        return occupied + taken(100 - occupied, Fraction(100 * self.asked, self.room))

    def score(self, policy: str) -> int:
        made = self.table()
        return made.scores(mix(policy), made.demand(pod("new", self.asked, self.asked)), ["n"])[0]


def test_oversell_at_every_permille_of_what_is_requested() -> None:
    as_they_are = OversellSettings(most=1.0)
    found = [
        Case(1000, 0, 0, permille, 0, oversell=as_they_are).score("oversell") for permille in range(1001)
    ]
    assert found == [(1000 - permille) // 10 for permille in range(1001)]


@given(
    room=rooms,
    cpu=percents,
    memory=percents,
    requested=permilles,
    asked=permilles,
    target=st.integers(0, 100),
    floor=st.integers(1, 100),
    most=st.integers(10, 40),
)
@example(room=1000, cpu=20, memory=0, requested=800, asked=0, target=60, floor=40, most=20)
@example(room=1000, cpu=20, memory=20, requested=800, asked=0, target=84, floor=80, most=20)
def test_oversell_is_its_formula(
    room: int, cpu: int, memory: int, requested: int, asked: int, target: int, floor: int, most: int
) -> None:
    settings = OversellSettings(target / 100, target / 100, floor / 100, floor / 100, most / 10)
    case = Case(room, cpu, memory, requested, asked, oversell=settings)

    def left(percent: int) -> Fraction:
        used = Fraction(percent * room, 100)
        ratio = Fraction(1)
        if case.requested:
            share = max(min(used / case.requested, Fraction(1)), Fraction(floor, 100))
            ratio = ((room * Fraction(target, 100) - used) / share + case.requested) / room
        ratio = min(max(ratio, Fraction(1)), Fraction(most, 10))
        return 100 * (1 - (case.requested + case.asked) / (room * ratio))

    assert case.score("oversell") == max(math.floor(min(left(cpu), left(memory))), 0)


def taken(free: Fraction, estimated: Fraction) -> Fraction:
    if free <= 0:
        return Fraction(0)
    return estimated if estimated <= free / 2 else free * 3 / 4 - free * free / (8 * estimated)


@given(
    room=rooms,
    cpu=percents,
    memory=percents,
    asked=permilles,
    spare=st.integers(0, 20),
    dominant=st.integers(0, 100),
)
@example(room=1000, cpu=27, memory=53, asked=184, spare=0, dominant=20)
@example(room=8000, cpu=37, memory=21, asked=214, spare=0, dominant=20)
def test_balanced_is_its_formula(
    room: int, cpu: int, memory: int, asked: int, spare: int, dominant: int
) -> None:
    settings = BalancedSettings(dominant_percent=dominant)
    case = Case(room, cpu, memory, 0, asked, spare, balanced=settings)
    both = case.pressure(cpu), case.pressure(memory)
    # No pod is measured, so a node's use swings by the least that it does.
    beyond = sum(
        mean_above(hot, NormalDist(float(level), 6)) for hot, level in zip((80, 85), both, strict=True)
    )
    exact = 100 / (1 + 0.3 * (beyond + 0.05 * float(of_both(both, dominant))))
    assert math.floor(exact - 1e-6) <= case.score("balanced") <= math.floor(exact + 1e-6)


@given(
    room=rooms,
    cpu=percents,
    memory=percents,
    asked=permilles,
    spare=st.integers(0, 20),
    dominant=st.integers(0, 100),
)
@example(room=1000, cpu=27, memory=53, asked=184, spare=0, dominant=20)
@example(room=8000, cpu=37, memory=21, asked=214, spare=0, dominant=20)
def test_balanced_without_overshoot_is_what_is_left_of_the_pressure(
    room: int, cpu: int, memory: int, asked: int, spare: int, dominant: int
) -> None:
    settings = BalancedSettings(dominant_percent=dominant, overshoot=0)
    case = Case(room, cpu, memory, 0, asked, spare, balanced=settings)
    exact = 100 - of_both((case.pressure(cpu), case.pressure(memory)), dominant)
    assert math.floor(exact) <= case.score("balanced") <= math.floor(exact + HAIR)


def of_both(pressures: tuple[Fraction, Fraction], dominant: int) -> Fraction:
    share = Fraction(dominant, 100)
    return share * max(pressures) + (1 - share) * sum(pressures) / 2


def mean_above(hot: float, use: NormalDist) -> float:
    """How far the use lies above hot in the mean, where what lies below counts as nothing."""
    return use.variance * use.pdf(hot) + (use.mean - hot) * (1 - use.cdf(hot))


@given(room=rooms, memory=percents, unseen=permilles)
@example(room=1000, memory=52, unseen=270)
def test_real_usage_is_its_formula(room: int, memory: int, unseen: int) -> None:
    case = Case(room, 0, memory, unseen, 0)
    exact = memory + taken(Fraction(100 - memory), Fraction(100 * case.requested, room))
    found = MemRealUsage().value(case.table(bound_at=NOW).terms("n"))
    assert found is not None
    assert math.floor(exact) <= found <= math.floor(exact + HAIR)


@given(room=rooms, cpu=percents, memory=percents, asked=permilles)
def test_load_aware_is_its_formula(room: int, cpu: int, memory: int, asked: int) -> None:
    case = Case(room, cpu, memory, 0, asked)

    def free(percent: int) -> int:
        used = math.floor(Fraction(percent * room, 100) + Fraction(1, 2)) + case.asked
        return (room - used) * 100 // room if used <= room else 0

    assert case.score("load-aware") == (free(cpu) + free(memory)) // 2


@given(room=rooms, cpu=percents, asked=permilles, target=st.integers(1, 99))
def test_packing_is_its_formula_rounded_as_go_does(room: int, cpu: int, asked: int, target: int) -> None:
    case = Case(room, cpu, 0, 0, asked, packing=PackingSettings(target, 1.0, 0))
    expected = Fraction(100 * case.asked, room) + cpu
    exact = (100 - target) * expected / target + target
    if expected > target:
        exact = target * (100 - expected) / (100 - target)
    if expected > 100:
        exact = Fraction(0)
    # Go's own floats decide where it is a half, and where it is the very target or all of the node.
    if min(abs(expected - target), abs(expected - 100)) > HAIR:
        assert abs(case.score("target-load-packing") - exact) <= Fraction(1, 2) + HAIR


@given(room=rooms, cpu=percents, memory=percents, asked=permilles)
def test_risk_is_its_formula_rounded_as_go_does(room: int, cpu: int, memory: int, asked: int) -> None:
    case = Case(room, cpu, memory, 0, asked)
    most = min(Fraction(min(max(cpu, memory), 100), 100) + Fraction(case.asked, room), Fraction(1))
    found = case.score("load-variation-risk-balancing")
    assert abs(found - 100 * (1 - most / 2)) <= Fraction(1, 2) + HAIR
