"""The numbers that the unit tests of other projects state for these policies, to the last digit."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from colocate.load.demand import estimated, limited, requested
from colocate.load.filter import sift
from colocate.load.policies import ScorePart
from colocate.load.policies.beta import Beta, max_variance
from colocate.load.policies.overcommitment import LowRiskOvercommitment
from colocate.load.policies.oversell import overcommit_ratio, written
from colocate.load.policies.risk_balancing import mu_sigma, risk_score
from colocate.load.settings import (
    AllHot,
    FilterSettings,
    LedgerSettings,
    LoadAwareSettings,
    LoadSettings,
    PackingSettings,
    RiskBalancingSettings,
)
from colocate.load.terms import ResourceTerms
from colocate.model.go import go_round
from colocate.model.load import (
    Aggregation,
)
from tests.load.beyond import BEYOND
from tests.load.stated import (
    AS_ORIGINAL,
    Case,
    amount_of,
    at_most,
    estimate_settings,
    ledger_settings,
    node_of,
    overcommitment_settings,
    pod_of,
    resource_of,
    score_of,
    shape_of,
    staleness_of,
    table_of,
    thresholds_of,
    trimaran_terms,
)

_ALL = json.loads((Path(__file__).parents[1] / "data/conformance/load_aware.json").read_text())["cases"]
_OTHERS = ("trimaran.Peaks", "volcano.usage")
CASES = [case for case in _ALL if case["algorithm"] not in _OTHERS]


@pytest.mark.parametrize("case", [*CASES, *BEYOND], ids=lambda case: case["id"])
def test_case(case: Case) -> None:
    _TESTS[case["algorithm"], case["function"]](case)


def test_every_named_policy_has_cases() -> None:
    policies = {case["algorithm"] for case in CASES}
    assert policies == {algorithm for algorithm, _ in _TESTS}
    assert {(case["algorithm"], case["function"]) for case in CASES} <= set(_TESTS)


# --- trimaran ----------------------------------------------------------------------------------------


def _packing(case: Case) -> None:
    args = case["args"]
    settings = LoadSettings(
        staleness=AS_ORIGINAL,
        ledger=LedgerSettings(least_percent=0),
        packing=PackingSettings(
            args["target_utilization_percent"],
            args["default_requests_multiplier"],
            args["default_requests_millicores"],
        ),
    )
    assert score_of(case, settings, "target-load-packing") == case["expected"]["score"]


def _risk_balancing(case: Case) -> None:
    args = case["args"]
    risk = RiskBalancingSettings(args["safe_variance_margin"], args["safe_variance_sensitivity"])
    settings = LoadSettings(staleness=AS_ORIGINAL, risk_balancing=risk)
    assert score_of(case, settings, "load-variation-risk-balancing") == case["expected"]["score"]


def _risk_score(case: Case) -> None:
    stats, args = case["resource_stats"], case["args"]
    score = risk_score(
        stats["used_avg"],
        stats["used_std"],
        stats["req"],
        stats["capacity"],
        args["safe_variance_margin"],
        args["safe_variance_sensitivity"],
    )
    assert go_round(score) == case["expected"]["score_rounded"]


def _mu_sigma(case: Case) -> None:
    stats = case["resource_stats"]
    found = mu_sigma(stats["used_avg"], stats["used_std"], stats["req"], stats["capacity"])
    assert found == pytest.approx((case["expected"]["mu"], case["expected"]["sigma"]), abs=1e-12)


def _resource_stats(case: Case) -> None:
    terms = resource_of(trimaran_terms(case), case["resource"])
    expected = case["expected"]
    assert terms.known == expected["valid"]
    if expected["valid"]:
        unit = 1 if case["resource"] == "cpu" else 1 << 20
        stats = expected["resource_stats"]
        assert terms.room / unit == stats["capacity"]
        assert case["pod_request"].get(case["resource"], 0) / unit == stats["req"]
        assert terms.used / unit == pytest.approx(stats["used_avg"], rel=1e-12)
        assert terms.deviation * terms.capacity / 100 / unit == pytest.approx(stats["used_std"], rel=1e-12)


def _requests(case: Case) -> None:
    assert requested(shape_of(case["pod"])) == amount_of(case["expected"])


def _limits(case: Case) -> None:
    assert limited(shape_of(case["pod"])) == amount_of(case["expected"])


def _requests_and_limits(case: Case) -> None:
    table = table_of(case, LoadSettings())
    placed = table.pods.on("n")
    asked = table.demand(pod_of(case["pod"], "new"))
    room = table.nodes["n"].room
    expected = case["expected"]
    assert room == amount_of(expected["node_capacity"])
    assert at_most(placed.requested, room) == amount_of(expected["node_request_minus_pod"])
    assert at_most(placed.requested + asked.request, room) == amount_of(expected["node_request"])
    assert placed.limits == amount_of(expected["node_limit_minus_pod"])
    assert placed.limits + asked.limit == amount_of(expected["node_limit"])


def _beta(case: Case) -> None:
    found = Beta.of(case["alpha"], case["beta"])
    expected = case["expected"]
    assert (found is not None) == expected["valid"]
    if found is not None:
        moments = expected["moments"]
        stated = (moments["mean"], moments["second_moment"], moments["third_moment"])
        assert found.moments == pytest.approx(stated, abs=1e-12)


def _matching(case: Case) -> None:
    found = Beta.matching(case["m1"], case["m2"])
    expected = case["expected"]
    assert (found is not None) == expected["ok"]
    if found is not None and "alpha" in expected:
        assert (found.alpha, found.beta) == pytest.approx((expected["alpha"], expected["beta"]), abs=1e-12)


def _density(case: Case) -> None:
    """By the slope of the distribution: nothing else here needs a density."""
    of, x, step = Beta(case["alpha"], case["beta"]), case["x"], 1e-5
    slope = (of.below(x + step) - of.below(x - step)) / (2 * step)
    assert slope == pytest.approx(case["expected"]["pdf"], abs=max(1e-4, case["expected"]["tolerance_abs"]))


def _distribution(case: Case) -> None:
    found = Beta(case["alpha"], case["beta"]).below(case["x"])
    assert found == pytest.approx(case["expected"]["cdf"], abs=case["expected"]["tolerance_abs"])


def _max_variance(case: Case) -> None:
    assert max_variance(case["m1"]) == pytest.approx(case["expected"]["max_variance"], abs=1e-12)


def _overcommitment(case: Case) -> None:
    settings = LoadSettings(staleness=AS_ORIGINAL, overcommitment=overcommitment_settings(case))
    assert score_of(case, settings, "low-risk-overcommitment") == case["expected"]["score"]


def _risk(case: Case) -> None:
    sums = case["node_requests_and_limits"]
    terms = resource_of(trimaran_terms(case), case["resource"])
    before = ResourceTerms(
        terms.capacity,
        terms.room,
        terms.percent,
        terms.deviation,
        known=terms.known,
        requested=sums["node_request_minus_pod"][case["resource"]],
        limits=sums["node_limit_minus_pod"][case["resource"]],
        used=terms.used,
    )
    request = sums["node_request"][case["resource"]] - before.requested
    limit = sums["node_limit"][case["resource"]] - before.limits
    policy = LowRiskOvercommitment(overcommitment_settings(case))
    risk = policy.risk(before, request, limit, case["args"]["risk_limit_weights"][case["resource"]])
    assert risk == pytest.approx(case["expected"]["risk"], abs=1e-12)


# --- koordinator -------------------------------------------------------------------------------------


def _load_aware_score(case: Case) -> None:
    args = case["args"]
    aggregated = args.get("aggregated") or {}
    kind = aggregated.get("score_aggregation_type")
    weights = args.get("resource_weights") or {}
    settings = LoadSettings(
        staleness=staleness_of(args),
        ledger=ledger_settings(case),
        estimate=estimate_settings(args),
        load_aware=LoadAwareSettings(
            weights.get("cpu", 0),
            weights.get("memory", 0),
            args.get("dominant_resource_weight") or 0,
            args.get("score_according_prod_usage") or False,
            Aggregation(kind) if kind else None,
            aggregated.get("score_aggregated_duration_seconds") or 0,
            estimates_alone=True,
        ),
    )
    assert score_of(case, settings, "load-aware") == case["expected"]["score"]


def _filter(case: Case) -> None:
    args = case["args"]
    settings = LoadSettings(
        staleness=staleness_of(args),
        ledger=ledger_settings(case),
        estimate=estimate_settings(args),
        load_aware=LoadAwareSettings(estimates_alone=True),
        filter=FilterSettings(enabled=True, thresholds=thresholds_of(args), all_hot=AllHot.REFUSE),
    )
    table = table_of(case, settings)
    refusal = sift(table, table.demand(pod_of(case["pod"], "new")), ["n"]).refused.get("n")
    expected = case["expected"]
    assert (refusal is None) == expected["schedulable"]
    if refusal is not None:
        assert refusal.cause == expected["cause"]
        assert refusal.resource == (expected.get("resource") or "")


def _estimate_pod(case: Case) -> None:
    pod = pod_of(case["pod"], "new")
    assert estimated(pod, estimate_settings(case["args"])) == amount_of(case["expected"])


def _estimate_node(case: Case) -> None:
    assert node_of(case["node"]).room == amount_of(case["expected"])


# --- katalyst ----------------------------------------------------------------------------------------


def _ratio(case: Case) -> None:
    args, room = case["args"], amount_of(case["node"]["allocatable"])
    declared = {"cpu": 1.0, "memory": 1.0, **(case["node"].get("declared_overcommit_ratio") or {})}
    for resource, unit in (("cpu", 1000), ("memory", 1)):
        used, asked = 0.0, 0
        for pod in case["pods"]:
            metrics = [container.get("metrics") or {} for container in pod["containers"]]
            used += max(sum(each.get(name, 0) for each in metrics) for name in args[f"{resource}_metrics"])
            asked += getattr(requested(shape_of(pod)), resource)
        target, floor = (
            written(args[f"target_{resource}_load"]),
            written(args[f"estimated_pod_{resource}_load"]),
        )
        found = overcommit_ratio(asked, written(used * unit), getattr(room, resource), target, floor)
        expected = case["expected"]["exact_by_formula"][resource]
        assert min(float(found), declared[resource]) == pytest.approx(expected, abs=1e-12)


def _ratio_text(case: Case) -> None:
    for resource, ratio in case["ratio"].items():
        assert str(ScorePart("ratio", ratio)) == f"ratio {case['expected'][resource]}"


_TESTS: dict[tuple[str, str], Callable[[Case], None]] = {
    ("trimaran.TargetLoadPacking", "Score"): _packing,
    ("trimaran.LoadVariationRiskBalancing", "Score"): _risk_balancing,
    ("trimaran.LoadVariationRiskBalancing", "computeScore"): _risk_score,
    ("trimaran.resourcestats", "GetMuSigma"): _mu_sigma,
    ("trimaran.resourcestats", "CreateResourceStats"): _resource_stats,
    ("trimaran.resourcestats", "GetResourceRequested"): _requests,
    ("trimaran.resourcestats", "GetResourceLimits"): _limits,
    ("trimaran.resourcestats", "GetNodeRequestsAndLimits"): _requests_and_limits,
    ("trimaran.LowRiskOverCommitment", "NewBetaDistribution"): _beta,
    ("trimaran.LowRiskOverCommitment", "MatchMoments"): _matching,
    ("trimaran.LowRiskOverCommitment", "DensityFunction"): _density,
    ("trimaran.LowRiskOverCommitment", "DistributionFunction"): _distribution,
    ("trimaran.LowRiskOverCommitment", "GetMaxVariance"): _max_variance,
    ("trimaran.LowRiskOverCommitment", "computeRisk"): _risk,
    ("trimaran.LowRiskOverCommitment", "Score"): _overcommitment,
    ("koordinator.LoadAware", "Score"): _load_aware_score,
    ("koordinator.LoadAware", "Filter"): _filter,
    ("koordinator.LoadAware", "FilterExpiry"): _filter,
    ("koordinator.LoadAware", "EstimatePod"): _estimate_pod,
    ("koordinator.LoadAware", "EstimateNode"): _estimate_node,
    ("katalyst.RealtimeOvercommitment", "GetOvercommitRatio"): _ratio,
    ("katalyst.RealtimeOvercommitment", "ReportedRatioText"): _ratio_text,
}
