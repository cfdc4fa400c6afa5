"""What each policy prefers, in examples and for any input."""

import math
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from colocate.errors import UserError
from colocate.load.decision import decide
from colocate.load.demand import estimated, taken
from colocate.load.policies import oversell
from colocate.load.policies.balanced import Balanced
from colocate.load.policies.overcommitment import load_risk
from colocate.load.settings import (
    BalancedSettings,
    EstimateSettings,
    LoadAwareSettings,
    LoadSettings,
    MissingScore,
    OversellSettings,
    PackingSettings,
    PolicyName,
    Staleness,
    Weighted,
    mix,
)
from colocate.load.table import LoadTable
from colocate.model.go import go_round
from colocate.model.load import (
    Aggregate,
    Aggregation,
    Amount,
    BoundPod,
    ContainerAsk,
    NodeFacts,
    NodeLoad,
    PerResource,
    PodFacts,
    PodShape,
    PriorityClass,
    Usage,
)
from tests.load.facts import GIB, NOW, SIZE, load, node, pod, table

BALANCED = mix("balanced")


def scores(policy: str, loads: dict[str, NodeLoad], settings: LoadSettings | None = None) -> list[int]:
    made = table(loads, settings)
    return made.scores(mix(policy), made.demand(pod("new")), list(loads))


def by_memory(*percents: float | None) -> list[int]:
    loads = {f"node-{i}": load(50, percent) for i, percent in enumerate(percents)}
    return scores("mem-real-usage", loads)


@pytest.mark.parametrize(
    ("percents", "expected"),
    [
        ((150, 250, 350), [100, 50, 0]),
        ((33, 13, 13), [0, 100, 100]),
        ((20, 20, 20), [0, 0, 0]),
        ((20.9, 20.1), [0, 0]),  # truncated first
        ((10, 13, 20), [100, 70, 0]),
        ((10, 11, 16), [100, 84, 0]),  # 100 − 16, of 16.67
    ],
)
def test_real_usage_is_ranked_from_least_to_most(percents: tuple[float, ...], expected: list[int]) -> None:
    assert by_memory(*percents) == expected


def test_a_candidate_without_a_sample_is_in_the_middle_and_moves_nobody() -> None:
    assert by_memory(33, None, 13) == [0, 50, 100]
    assert by_memory(20, None, 20) == [0, 0, 0]


def test_cpu_and_memory_are_ranked_by_their_own_samples() -> None:
    loads = {"a": load(10, 90), "b": load(90, 10)}
    assert scores("cpu-real-usage", loads) == [100, 0]
    assert scores("mem-real-usage", loads) == [0, 100]


def test_balanced_scores_what_is_free_at_busy_times_with_the_pod() -> None:
    made = table({"idle": load(0, 0), "half": load(50, 50), "full": load(100, 100)})
    big = made.demand(pod("big", 8000 * 20 // 100, 32 * GIB * 20 // 100))
    # 85 % of 20 % CPU are 17, 70 % of 20 % memory are 14: their mean is 15.5, the half of their difference
    # towards the greater .75.
    left = LoadSettings(balanced=BalancedSettings(overshoot=0))
    loads = {"idle": load(0, 0), "half": load(50, 50), "full": load(100, 100)}
    assert table(loads, left).scores(BALANCED, big, list(loads)) == [83, 33, 0]
    idle, half, full = made.scores(BALANCED, big, list(loads))
    assert idle == int(100 / (1 + 0.3 * 0.05 * 16.25))
    assert idle > half + 20 > full + 40
    assert 0 < full < 10


def test_an_idle_cpu_does_not_make_up_for_full_memory() -> None:
    lopsided, even = scores("balanced", {"lopsided": load(5, 95), "even": load(50, 50)})
    assert lopsided < 30 < even


def test_balanced_looks_at_the_percentile_where_one_is_wanted() -> None:
    p95 = (Aggregate(Aggregation.P95, 300, 80), Aggregate(Aggregation.P95, 3600, 70))
    spiky = NodeLoad(Usage(20, NOW, aggregates=p95), Usage(20, NOW))
    longest = LoadSettings(balanced=BalancedSettings(Aggregation.P95))
    assert scores("balanced", {"spiky": spiky}, longest) == scores("balanced", {"busy": load(70, 20)})
    five_minutes = LoadSettings(balanced=BalancedSettings(Aggregation.P95, window=300))
    assert scores("balanced", {"spiky": spiky}, five_minutes) == scores("balanced", {"busy": load(80, 20)})


def test_of_two_nodes_with_the_same_average_the_steadier_is_better() -> None:
    wary = LoadSettings(balanced=BalancedSettings(deviations=1))
    steady, wild = scores("balanced", {"steady": load(40, 40), "wild": load(40, 40, deviation=20)}, wary)
    assert steady > wild
    left = LoadSettings(balanced=BalancedSettings(deviations=1, overshoot=0))
    steady, wild = scores("balanced", {"steady": load(40, 40), "wild": load(40, 40, deviation=20)}, left)
    assert steady == wild + 20


def test_what_is_to_be_expected_beyond_hot_counts_more_than_what_is_in_use() -> None:
    loads = {"lopsided": load(92, 30), "even": load(76, 78)}
    lopsided, even = scores("balanced", loads, LoadSettings(balanced=BalancedSettings(overshoot=0)))
    assert lopsided > even
    lopsided, even = scores("balanced", loads)
    assert lopsided < even - 10


@given(lower=st.floats(0, 100), more=st.floats(0, 100), other=st.floats(0, 100), swing=st.floats(0, 50))
def test_more_use_never_makes_a_node_better(lower: float, more: float, other: float, swing: float) -> None:
    settings = LoadSettings(balanced=BalancedSettings(deviations=swing / 10))
    for mirrored in (False, True):
        loads = {"less": (lower, other), "more": (lower + more * (100 - lower) / 100, other)}
        made = {name: load(*(pair[::-1] if mirrored else pair)) for name, pair in loads.items()}
        less_used, more_used = scores("balanced", made, settings)
        assert less_used >= more_used


def test_balanced_ignores_a_resource_that_nobody_measures() -> None:
    assert scores("balanced", {"a": load(20, None)})[0] > scores("balanced", {"a": load(60, None)})[0] > 0


def test_packing_fills_up_to_its_target_first() -> None:
    loads = {"idle": load(0, 0), "near": load(35, 0), "over": load(60, 0), "full": load(99.9, 0)}
    found = scores("target-load-packing", loads, LoadSettings(packing=PackingSettings(40, 1.0, 0)))
    assert found == [41, 93, 26, 0]


def test_load_aware_by_estimates_alone_spreads_a_burst() -> None:
    alone = LoadAwareSettings(aggregation=Aggregation.P95, window=300, estimates_alone=True)
    made = table({f"n{number}": load(20, 20) for number in range(5)}, LoadSettings(load_aware=alone))
    for number, name in enumerate(made.nodes):
        made.bind(
            BoundPod(pod(f"old-{number}", 400 + 400 * number, GIB + number * GIB // 2), name, NOW - 600)
        )
    best = []
    for number in range(5):
        judged = decide(
            made, pod(f"p{number}", 2000, 4 * GIB), list(made.nodes), NOW, mix=mix("load-aware"), keep=1
        )
        best.append(judged.decision.top[0].name)
    assert best == list(made.nodes)


def test_load_aware_goes_by_the_last_value_while_its_percentile_is_missing() -> None:
    by_p95 = LoadSettings(load_aware=LoadAwareSettings(aggregation=Aggregation.P95, window=300))
    loads = {"cool": load(10, 20), "hot": load(95, 97)}
    assert scores("load-aware", loads, by_p95) == scores("load-aware", loads)


def test_load_aware_goes_by_the_estimates_alone_where_that_is_wished() -> None:
    by_p95 = LoadAwareSettings(aggregation=Aggregation.P95, window=300, estimates_alone=True)
    made = table({"hot": load(95, 97), "pods": load(0, 0)}, LoadSettings(load_aware=by_p95))
    made.bind(BoundPod(pod("old", 4000, 16 * GIB), "pods", NOW - 600))
    assert [made.terms(name).aware.score for name in ("hot", "pods")] == [Amount(), Amount(3400, 12025908429)]


@pytest.mark.parametrize(
    ("priority_class", "asked", "expected"),
    [
        (PriorityClass.BATCH, PerResource(), Amount(250, 200 << 20)),
        (PriorityClass.MID, PerResource(), Amount()),
        (PriorityClass.MID, PerResource(1000), Amount(850)),
        (PriorityClass.FREE, PerResource(1000, GIB), Amount()),
    ],
)
def test_classes_without_defaults_are_estimated_by_what_they_ask_alone(
    priority_class: PriorityClass, asked: PerResource, expected: Amount
) -> None:
    facts = PodFacts("new", "", PodShape((ContainerAsk(asked),)), priority_class=priority_class)
    assert estimated(facts, EstimateSettings(defaults_by_class=True)) == expected
    assert min(msgspec.structs.astuple(estimated(facts, EstimateSettings()))) > 0


@pytest.mark.parametrize("deviation", [0.0, 1e-12, 1e-9, 3e-9, 1e-8, 1e-6])
def test_a_load_that_hardly_varies_is_as_risky_as_one_that_does_not(deviation: float) -> None:
    assert load_risk(0.9, deviation, 400, 4000, 4000) == pytest.approx(1, abs=1e-9)
    assert load_risk(0.1, deviation, 3600, 4000, 4000) == pytest.approx(0, abs=1e-9)
    assert load_risk(0.3, deviation, 1600, 2000, 4000) == pytest.approx(0, abs=1e-9)


def test_a_mix_is_the_weighted_mean() -> None:
    loads = {"a": load(10, 60), "b": load(60, 10)}
    packing = scores("target-load-packing", loads)
    ranked = scores("mem-real-usage", loads)
    mixed = scores("target-load-packing=3,mem-real-usage=1", loads)
    assert mixed == [(3 * one + other) // 4 for one, other in zip(packing, ranked, strict=True)]
    assert scores("balanced=2", loads) == scores("balanced", loads)


@pytest.mark.parametrize("text", ["", "fast", "balanced=0", "balanced=x", "balanced,balanced", "balanced=-1"])
def test_what_is_no_mix_is_said_in_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="polic"):
        mix(text)


def test_oversell_shrinks_80_percent_requested_of_which_20_are_used_to_52() -> None:
    made = table({"n": load(20, 20)}, LoadSettings(policy=mix("oversell")))
    made.bind(BoundPod(pod("old", 0, 32 * GIB * 80 // 100), "n", NOW - 600))
    nothing = made.demand(pod("new", 0, 0))
    assert made.scores(mix("oversell"), nothing, ["n"]) == [48]  # 80 / 1.55 is 51.6


def test_oversell_works_out_a_nodes_ratios_once_for_all_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = {f"n-{i}": load(20, 20 + i) for i in range(20)}

    def with_pods(*pods: BoundPod) -> LoadTable:
        made = table(loads)
        for bound in (
            *(BoundPod(pod(f"old-{name}", 4000, 16 * GIB), name, NOW - 600) for name in loads),
            *pods,
        ):
            made.bind(bound)
        return made

    def shown(made: LoadTable, cpu: int) -> list[int]:
        return made.scores(mix("oversell"), made.demand(pod("new", cpu, 0)), list(loads))

    made = with_pods()
    shown(made, 0)
    work_out = Mock(wraps=oversell.overcommit_ratio)
    monkeypatch.setattr(oversell, "overcommit_ratio", work_out)
    shown(made, 100)
    assert work_out.call_count == 0
    coming = BoundPod(pod("coming", 1000, 8 * GIB), "n-7", NOW - 600)
    made.bind(coming)
    found = shown(made, 100)
    assert work_out.call_count == 2, "of CPU and of memory of the node that has another pod now"
    assert found == shown(with_pods(coming), 100)


def test_oversell_is_bounded_and_never_looks_at_what_it_does_not_know() -> None:
    def shown(settings: LoadSettings, of: NodeLoad) -> int:
        made = table({"n": of, "idle": load(5, 5), "idle too": load(5, 5)}, settings)
        made.bind(BoundPod(pod("old", 4000, 16 * GIB), "n", NOW - 1200))
        return made.scores(mix("oversell"), made.demand(pod("new", 0, 0)), ["n"])[0]

    assert shown(LoadSettings(oversell=OversellSettings(most=1.0)), load(0, 0)) == 50
    assert shown(LoadSettings(staleness=Staleness(score=MissingScore.LOWEST)), NodeLoad()) == 50
    for silent in (NodeLoad(), load(0, 0, at=NOW - 200)):
        assert shown(LoadSettings(), silent) == 50, "the others are idle, and this one is unknown"
    assert shown(LoadSettings(), load(0, 0)) > 50


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.5, 1), (1.5, 2), (2.5, 3), (-0.5, -1), (-2.5, -3), (2.49, 2), (0.49999999999999994, 0)],
)
def test_halves_are_rounded_away_from_zero_as_go_does(value: float, rounded: int) -> None:
    assert go_round(value) == rounded


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_what_is_no_measure_gets_into_no_fact(value: float) -> None:
    with pytest.raises(ValueError, match="not a measure"):
        Usage(value, NOW)
    with pytest.raises(ValueError, match="not a measure"):
        Usage(1, NOW, value)
    with pytest.raises(ValueError, match="not a measure"):
        Usage(1, value)
    with pytest.raises(ValueError, match="not a measure"):
        Aggregate(Aggregation.P95, 60, value)


# --- for any input -----------------------------------------------------------------------------------

percent = st.floats(0, 400, allow_nan=False) | st.sampled_from([0.0, 1e-300, 50.0, 100.0, 1e12])
usage = st.builds(
    Usage,
    percent,
    st.floats(NOW - 400, NOW),
    percent,
    st.lists(
        st.builds(Aggregate, st.sampled_from(Aggregation), st.sampled_from([0.0, 60.0]), percent), max_size=2
    ).map(tuple),
)
loads = st.builds(NodeLoad, st.none() | usage, st.none() | usage)
amounts = st.builds(Amount, st.integers(0, 500_000), st.integers(0, 1 << 44))
sizes = st.tuples(amounts, amounts)
policies = st.lists(
    st.builds(Weighted, st.sampled_from(PolicyName), st.integers(1, 5)),
    min_size=1,
    max_size=3,
    unique_by=lambda w: w.policy,
).map(tuple)
requests = st.none() | st.integers(0, 1 << 44)


@given(
    nodes=st.lists(st.tuples(sizes, loads), min_size=1, max_size=5),
    chosen=policies,
    asked=st.tuples(requests, requests),
    missing=st.sampled_from(MissingScore),
    crowd=st.integers(0, 40),
    target=st.integers(1, 99),
)
def test_every_score_is_an_integer_from_0_to_100(
    nodes: list[tuple[tuple[Amount, Amount], NodeLoad]],
    chosen: tuple[Weighted, ...],
    asked: tuple[int | None, int | None],
    missing: MissingScore,
    crowd: int,
    target: int,
) -> None:
    made = LoadTable(LoadSettings(staleness=Staleness(score=missing), packing=PackingSettings(target)))
    names = [f"node-{i}" for i in range(len(nodes))]
    made.add_nodes(
        NodeFacts(name, capacity, room) for name, ((capacity, room), _) in zip(names, nodes, strict=True)
    )
    made.observe({name: of for name, (_, of) in zip(names, nodes, strict=True)}, NOW)
    for i in range(crowd):
        made.bind(BoundPod(pod(f"old-{i}", *asked), names[i % len(names)], NOW))
    found = made.scores(chosen, made.demand(pod("new", *asked)), [*names, "never heard of"])
    assert all(type(score) is int and 0 <= score <= 100 for score in found)


@given(
    before=st.tuples(st.floats(0, 150), st.floats(0, 150), st.floats(0, 50)),
    more=st.tuples(st.floats(0, 50), st.floats(0, 50), st.floats(0, 50)),
    policy=st.sampled_from(["balanced", "load-variation-risk-balancing", "load-aware"]),
    asked=st.tuples(requests, requests),
)
def test_more_load_or_more_variation_is_never_better(
    before: tuple[float, float, float],
    more: tuple[float, float, float],
    policy: str,
    asked: tuple[int | None, int | None],
) -> None:
    cpu, memory, deviation = before
    hotter = load(cpu + more[0], memory + more[1], deviation=deviation + more[2])
    made = table({"cooler": load(cpu, memory, deviation=deviation), "hotter": hotter})
    cool, hot = made.scores(mix(policy), made.demand(pod("new", *asked)), ["cooler", "hotter"])
    assert hot <= cool


@given(
    cpu=st.integers(0, 100),
    memory=st.integers(0, 95),
    room=st.sampled_from([100, 95, 90]),
    asked=st.tuples(requests, requests),
    crowd=st.integers(0, 40),
)
@example(cpu=93, memory=88, room=90, asked=(None, None), crowd=2)
def test_of_two_nodes_for_a_pod_of_any_size_the_measurably_cooler_is_better(
    cpu: int, memory: int, room: int, asked: tuple[int | None, int | None], crowd: int
) -> None:
    made = LoadTable(LoadSettings())
    pods_have = Amount(SIZE.cpu * room // 100, SIZE.memory * room // 100)
    made.add_nodes(NodeFacts(name, SIZE, pods_have) for name in ("cooler", "hotter"))
    made.observe({"cooler": load(cpu, memory), "hotter": load(cpu, memory + 5)}, NOW)
    for number in range(crowd):
        for name in made.nodes:
            made.bind(BoundPod(pod(f"{name}-{number}", 1000, GIB, limit=PerResource(*asked)), name, NOW))
    new = made.demand(pod("new", 50, limit=PerResource(*asked)))
    cooler, hotter = (Balanced(BalancedSettings()).pressure(made.terms(name), new) for name in made.nodes)
    # Of the 5 %, a quarter counts beyond what pods can have, a quarter of that beside any estimate, and memory by a
    # quarter where CPU is the greater: 0.07 of at least 90 % of the node.
    assert cooler < hotter - 5 * 0.9 / 4 / 4 / 4 + 1e-9


@pytest.mark.parametrize("limit", [(None, 16 * GIB), (None, 32 * GIB), (8000, 32 * GIB), (10**6, 1 << 50)])
def test_balanced_tells_70_from_90_from_98_percent_for_a_pod_that_may_fill_the_node(
    limit: tuple[int | None, int],
) -> None:
    made = table({f"at-{percent}": load(10, percent) for percent in (20, 70, 90, 98)})
    found = made.scores(BALANCED, made.demand(pod("new", limit=PerResource(*limit))), list(made.nodes))
    assert found == sorted(set(found), reverse=True)


@given(free=st.floats(0.01, 100), more=st.floats(0.01, 50), estimated=st.floats(0, 1e6))
def test_estimates_take_more_the_greater_they_are_and_never_all_that_is_free(
    free: float, more: float, estimated: float
) -> None:
    assert taken(free, estimated) <= taken(free, estimated + more) <= free * 3 / 4
    assert free + more - taken(free + more, estimated) >= free - taken(free, estimated) + more / 4 - 1e-9
    assert taken(free, free / 4) == free / 4


@given(
    loads=st.lists(loads, min_size=1, max_size=8),
    chosen=policies,
    data=st.data(),
)
def test_the_order_of_candidates_changes_no_score(
    loads: list[NodeLoad], chosen: tuple[Weighted, ...], data: st.DataObject
) -> None:
    made = table({f"node-{i}": each for i, each in enumerate(loads)})
    names = list(made.nodes)
    asked = made.demand(pod("new"))
    found = dict(zip(names, made.scores(chosen, asked, names), strict=True))
    shuffled = data.draw(st.permutations(names))
    assert dict(zip(shuffled, made.scores(chosen, asked, shuffled), strict=True)) == found


@given(
    loads=st.lists(loads, min_size=2, max_size=8),
    policy=st.sampled_from([name for name in PolicyName if not name.endswith("real-usage")]),
)
def test_a_node_has_the_same_score_whoever_else_is_a_candidate(
    loads: list[NodeLoad], policy: PolicyName
) -> None:
    made = table({f"node-{i}": each for i, each in enumerate(loads)})
    names = list(made.nodes)
    asked = made.demand(pod("new"))
    together = made.scores((Weighted(policy),), asked, names)
    assert together == [made.scores((Weighted(policy),), asked, [name])[0] for name in names]


def test_a_node_larger_than_its_allocatable_is_judged_by_what_pods_can_have() -> None:
    made = LoadTable(LoadSettings())
    made.add_nodes([NodeFacts("n", Amount(8000, 32 * GIB), Amount(4000, 16 * GIB)), node("whole")])
    made.observe({"n": load(25, 25), "whole": load(50, 50)}, NOW)
    asked = made.demand(pod("new", 0, 0))
    ours, whole = made.scores(BALANCED, asked, ["n", "whole"])
    assert abs(ours - whole) <= 3  # the default estimate of the pod is a little more of the smaller room
