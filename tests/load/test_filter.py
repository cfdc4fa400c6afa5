"""Which candidates are refused, why, and what happens when all of them are hot."""

import pytest

from colocate.load.filter import RefusalCause, sift
from colocate.load.settings import AllHot, FilterSettings, LoadSettings, MissingFilter, Staleness
from colocate.model.load import (
    Aggregation,
    BoundPod,
    NodeFacts,
    NodeLoad,
    PerResource,
    PodFacts,
    PodShape,
    UsageThresholds,
)
from tests.load.facts import GIB, NOW, SIZE, load, pod, table

LOADS = {"cool": load(10, 10), "cpu-hot": load(80, 10), "memory-hot": load(10, 96)}
ENABLED = FilterSettings(enabled=True)


def settings(
    all_hot: AllHot = ENABLED.all_hot,
    thresholds: UsageThresholds = ENABLED.thresholds,
    staleness: Staleness | None = None,
) -> LoadSettings:
    chosen = FilterSettings(enabled=True, thresholds=thresholds, all_hot=all_hot)
    return LoadSettings(filter=chosen, staleness=staleness or Staleness())


def test_nothing_is_refused_unless_that_is_wished() -> None:
    made = table(LOADS)
    assert sift(made, made.demand(pod("new")), list(LOADS)).passed == list(LOADS)


def test_hot_nodes_are_refused_with_the_reason() -> None:
    made = table(LOADS, settings())
    sifted = sift(made, made.demand(pod("new")), list(LOADS))
    assert sifted.passed == ["cool"]
    assert str(sifted.refused["cpu-hot"]) == "its cpu would be at 81 %, more than the threshold of 65 %"
    assert sifted.refused["memory-hot"].resource == "memory"


def test_a_pod_that_would_make_a_node_hot_is_refused_there() -> None:
    made = table({"half": load(50, 10)}, settings(all_hot=AllHot.REFUSE))
    assert sift(made, made.demand(pod("small", 100)), ["half"]).passed == ["half"]
    assert sift(made, made.demand(pod("large", 4000)), ["half"]).passed == []


def test_when_all_are_hot_all_are_let_through() -> None:
    made = table({"hot": load(80, 10), "hotter": load(90, 10)}, settings())
    sifted = sift(made, made.demand(pod("new")), ["hot", "hotter"])
    assert sifted.passed == ["hot", "hotter"]
    assert sifted.all_hot
    assert str(sifted.hot["hotter"]) == "its cpu would be at 91 %, more than the threshold of 65 %"
    assert sifted.refused == {}


def test_when_all_are_hot_all_are_refused_where_that_is_wished() -> None:
    made = table({"hot": load(80, 10)}, settings(all_hot=AllHot.REFUSE))
    sifted = sift(made, made.demand(pod("new")), ["hot"])
    assert sifted.passed == []
    assert sifted.all_hot
    assert not sifted.hot


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (MissingFilter.OPEN, ["expired", "never"]),
        (MissingFilter.CLOSE_EXPIRED, ["never"]),
        (MissingFilter.CLOSED, []),
    ],
)
def test_a_node_without_a_fresh_sample_is_open_or_closed_as_declared(
    missing: MissingFilter, expected: list[str]
) -> None:
    loads = {"expired": load(10, 10, at=NOW - 180), "never": NodeLoad()}
    made = table(loads, settings(staleness=Staleness(filter=missing)))
    sifted = sift(made, made.demand(pod("new")), list(loads))
    assert sifted.passed == expected
    assert {refusal.cause for refusal in sifted.refused.values()} <= {
        RefusalCause.EXPIRED,
        RefusalCause.NEVER,
    }


def test_a_node_is_judged_by_its_last_sample_where_that_is_declared() -> None:
    old = NOW - 1000
    loads = {
        "cool": load(10, 10, at=old),
        "hot": load(90, 10, at=old),
        "half": load(None, 96, at=old),
        "never": NodeLoad(),
    }
    made = table(loads, settings(staleness=Staleness(filter=MissingFilter.LAST_SAMPLE)))
    sifted = sift(made, made.demand(pod("new")), list(loads))
    assert sifted.passed == ["cool", "never"]
    assert [refusal.resource for refusal in sifted.refused.values()] == ["cpu", "memory"]


def test_a_supposed_load_refuses_nobody() -> None:
    made = table({"hot": load(90, 90), "hot too": load(91, 90), "silent": NodeLoad()}, settings())
    assert sift(made, made.demand(pod("new")), list(made.nodes)).passed == ["silent"]


def test_no_node_is_refused_for_the_number_of_its_new_pods() -> None:
    made = table({"many": load(45, 40), "none": load(45, 40)}, settings())
    for number in range(25):
        made.bind(BoundPod(pod(f"p-{number}", 10, 20 << 20), "many", NOW))
    assert sift(made, made.demand(pod("new", 10, 20 << 20)), list(made.nodes)).passed == ["many", "none"]


def test_a_refusal_names_what_no_sample_shows_yet() -> None:
    made = table({"full": load(45, 40), "none": load(45, 40)}, settings())
    made.bind(BoundPod(pod("large", 4000), "full", NOW))
    refused = sift(made, made.demand(pod("new", 100)), list(made.nodes)).refused
    assert {name: str(refusal) for name, refusal in refused.items()} == {
        "full": "its cpu would be at 89 % (43 % for pods that samples do not show yet), "
        "more than the threshold of 65 %"
    }


def test_a_hot_node_is_refused_too_while_its_percentile_is_missing() -> None:
    by_p95 = UsageThresholds(aggregated=PerResource(65, 95), aggregation=Aggregation.P95, window=300)
    made = table(LOADS, settings(thresholds=by_p95))
    assert sift(made, made.demand(pod("new")), list(LOADS)).passed == ["cool"]


@pytest.mark.parametrize(
    "hollow",
    [
        UsageThresholds(usage=PerResource(65, 95), aggregated=PerResource(memory=5)),
        UsageThresholds(usage=PerResource(65, 95), aggregated=PerResource(), aggregation=Aggregation.P95),
    ],
)
def test_thresholds_of_no_aggregation_are_none(hollow: UsageThresholds) -> None:
    made = table(LOADS, settings(thresholds=hollow))
    assert sift(made, made.demand(pod("new")), list(LOADS)).passed == ["cool"]


@pytest.mark.parametrize("thresholds", [UsageThresholds(), UsageThresholds(usage=PerResource(0, 0))])
def test_where_nothing_is_bounded_nothing_is_refused(thresholds: UsageThresholds) -> None:
    loads = {"expired": load(90, 10, at=NOW - 180), "never": NodeLoad()}
    closed = Staleness(filter=MissingFilter.CLOSED)
    made = table(loads, settings(AllHot.REFUSE, thresholds, closed))
    assert sift(made, made.demand(pod("new")), list(loads)).passed == list(loads)


def test_pods_of_daemon_sets_belong_everywhere() -> None:
    made = table(LOADS, settings())
    daemon = PodFacts("d", "kube-system/d", PodShape(), daemon=True)
    assert sift(made, made.demand(daemon), list(LOADS)).passed == list(LOADS)


def test_a_threshold_of_0_bounds_nothing() -> None:
    open_cpu = UsageThresholds(usage=PerResource(0, 95))
    made = table(LOADS, settings(thresholds=open_cpu))
    assert sift(made, made.demand(pod("new", 10, GIB // 10)), list(LOADS)).passed == ["cool", "cpu-hot"]


def test_a_nodes_own_thresholds_go_first_and_empty_ones_count_as_none() -> None:
    made = table({}, settings(all_hot=AllHot.REFUSE))
    own = {
        "strict": UsageThresholds(usage=PerResource(10, 10)),
        "silent": UsageThresholds(usage=PerResource(), prod=PerResource(), aggregated=PerResource()),
    }
    made.add_nodes(NodeFacts(name, SIZE, SIZE, thresholds=bounds) for name, bounds in own.items())
    made.observe({name: load(50, 50) for name in own}, NOW)
    assert sift(made, made.demand(pod("small")), list(own)).passed == ["silent"]
    assert sift(made, made.demand(pod("large", 4000)), list(own)).passed == []


def test_a_candidate_that_is_no_node_yet_is_let_through() -> None:
    made = table(LOADS, settings())
    assert sift(made, made.demand(pod("new")), ["unheard of"]).passed == ["unheard of"]
