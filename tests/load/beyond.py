"""Cases of the tables' form that no table has, with what the other projects' code makes of them."""

from typing import Any

from tests.load.stated import Case

_GIB = 1 << 30


def _case(id: str, algorithm: str, function: str, expected: Case, **stated: Any) -> Case:
    return {"id": id, "algorithm": algorithm, "function": function, "expected": expected, **stated}


# --- trimaran ----------------------------------------------------------------------------------------


def _packing(
    id: str, score: int, *metrics: tuple[str, float], capacity: int = 4000, age: int | None = None
) -> Case:
    recent = [] if age is None else [{"containers": [{"limits": {"cpu": 800}}], "age_seconds": age}]
    return _case(
        id,
        "trimaran.TargetLoadPacking",
        "Score",
        {"score": score},
        args={
            "target_utilization_percent": 40,
            "default_requests_multiplier": 1.5,
            "default_requests_millicores": 1000,
        },
        node={"capacity": {"cpu": capacity, "memory": _GIB}, "metrics": _metrics("cpu", *metrics)},
        pod={"containers": [{"requests": {"cpu": 100}}]},
        recently_scheduled_pods=recent,
    )


def _risk_balancing(id: str, score: int, *metrics: tuple[str, float]) -> Case:
    return _case(
        id,
        "trimaran.LoadVariationRiskBalancing",
        "Score",
        {"score": score},
        args={"safe_variance_margin": 1, "safe_variance_sensitivity": 1},
        node={
            "capacity": {"cpu": 2000, "memory": _GIB},
            "allocatable": {"cpu": 1000, "memory": _GIB},
            "metrics": _metrics("cpu", *metrics),
        },
        pod={"containers": []},
    )


def _overcommitment(id: str, score: int, metrics: list[Case] | None) -> Case:
    on_node = {"requests": {"cpu": 250, "memory": _GIB // 4}, "limits": {"cpu": 1500, "memory": _GIB // 3}}
    return _case(
        id,
        "trimaran.LowRiskOverCommitment",
        "Score",
        {"score": score},
        args={"smoothing_window_size": 5, "risk_limit_weights": {"cpu": 0.5, "memory": 0.5}},
        node={"allocatable": {"cpu": 1000, "memory": _GIB}, "metrics": metrics},
        pods_on_node=[{"containers": [on_node]}],
        pod={"containers": [{"requests": {"cpu": 250, "memory": 1 << 20}}]},
    )


def _metrics(resource: str, *metrics: tuple[str, float]) -> list[Case]:
    return [{"resource": resource, "operator": operator, "percent": percent} for operator, percent in metrics]


_TRIMARAN = [
    _packing("packing: a metric without operator", 0, ("", 30)),
    _packing("packing: a deviation alone", 0, ("std", 30)),
    _packing("packing: average, then latest", 24, ("average", 10), ("latest", 60)),
    _packing("packing: latest, then average", 61, ("latest", 60), ("average", 10)),
    _packing("packing: no CPU", 40, ("average", 60), capacity=0),
    _packing("packing: a pod that no sample shows", 91, ("average", 10), age=59),
    _packing("packing: a pod that a sample shows", 61, ("average", 10), age=60),
    _risk_balancing("balancing: average goes before latest", 95, ("average", 10), ("latest", 60)),
    _risk_balancing("balancing: the last one without an average", 70, ("latest", 10), ("", 60)),
    _risk_balancing("balancing: a deviation alone", 85, ("std", 30)),
    _risk_balancing("balancing: metrics of nothing", 0),
    _overcommitment("overcommitment: pods on the node", 70, _metrics("cpu", ("average", 20))),
    _overcommitment("overcommitment: metrics of nothing", 70, []),
    _overcommitment("overcommitment: no metrics", 0, None),
]


# --- koordinator -------------------------------------------------------------------------------------


def _filter(id: str, refused: tuple[str, str] | None, **stated: Case) -> Case:
    cause, resource = refused or ("", "")
    expected = {"schedulable": refused is None, "cause": cause, "resource": resource}
    return _case(id, "koordinator.LoadAware", "Filter", expected, **_koordinator(**stated))


def _score(id: str, score: int, **stated: Case) -> Case:
    return _case(id, "koordinator.LoadAware", "Score", {"score": score}, **_koordinator(**stated))


def _koordinator(
    args: Case | None = None,
    metric: Case | None = None,
    node: Case | None = None,
    pod: Case | None = None,
    assigned: Case | None = None,
) -> Case:
    """A hot node, and what is otherwise."""
    return {
        "args": {
            "filter_expired_node_metrics": True,
            "enable_schedule_when_node_metrics_expired": False,
            "node_metric_expiration_seconds": 180,
            "usage_thresholds": {"cpu": 65, "memory": 95},
            "resource_weights": {"cpu": 1, "memory": 1},
            **(args or {}),
        },
        "node": {
            "allocatable": {"cpu": 96_000, "memory": 512 * _GIB},
            "metric": {"update_age_seconds": 0, "node_usage": _HOT, **(metric or {})},
            **(node or {}),
        },
        "pod": pod,
        "assigned_pods": [{"namespace": "d", "name": "p", **assigned}] if assigned else [],
    }


def _reported(priority_class: str, usage: Case) -> list[Case]:
    return [{"namespace": "d", "name": "p", "priority_class": priority_class, "usage": usage}]


_HOT, _COOL = {"cpu": 90_000, "memory": 0}, {"cpu": 20_000, "memory": 0}
_PROD = {"priority_class": "koord-prod", "containers": [{"requests": {"cpu": 40_000, "memory": _GIB}}]}
_AT_PROD = {"priority_class": "koord-prod", "priority": 9500}
_MID = {"priority_class": "koord-mid", "priority": 7500}
_BATCH = {"priority_class": "koord-batch", "priority": 5500}
_FREE = {"priority_class": "koord-free", "priority": 3500}
_BEST_EFFORT = {"priority_class": "koord-batch", "qos_label": "BE"}
_BATCH_CPU = {"requests": {"kubernetes.io/batch-cpu": 1000, "memory": _GIB}}
_ONLY_BATCH_CPU = {"limits": {"kubernetes.io/batch-cpu": 1000}}
_OLD_PROD = {**_PROD, "assigned_age_seconds": 300}
_AS_BATCH = _reported("koord-batch", {"cpu": 1000, "memory": _GIB})
_AS_PROD = _reported("koord-prod", {"cpu": 1000, "memory": _GIB})
_P95 = [{"duration_seconds": 300, "usage": {"p95": _COOL}}]
_BY_P95 = {"usage_thresholds": {"cpu": 50}, "usage_aggregation_type": "p95"}
_BY_P95_OF_600 = {**_BY_P95, "usage_aggregated_duration_seconds": 600}
_BY_NOTHING = {"usage_thresholds": {"memory": 50}, "usage_aggregation_type": ""}
_SCORED_OF_600 = {"score_aggregation_type": "p95", "score_aggregated_duration_seconds": 600}
_BY_AGE, _BY_CPU = ("node-metric-expired", ""), ("usage-over-threshold", "cpu")
_BY_MEMORY = ("usage-over-threshold", "memory")
_BY_CPU_OVER_WINDOW = ("aggregated-usage-over-threshold", "cpu")
_ANY_AGE = {"filter_expired_node_metrics": False}

_KOORDINATOR = [
    _filter(
        "no thresholds, expired", None, args={"usage_thresholds": {}}, metric={"update_age_seconds": 200}
    ),
    _filter("expired", _BY_AGE, metric={"update_age_seconds": 180}),
    _filter("not expired yet", _BY_CPU, metric={"update_age_seconds": 179}),
    _filter("any age", _BY_CPU, args=_ANY_AGE, metric={"update_age_seconds": 200}),
    _filter("any age, never updated", _BY_CPU, args=_ANY_AGE, metric={"update_age_seconds": None}),
    _filter("any age, no usage", None, args=_ANY_AGE, metric={"update_age_seconds": 200, "node_usage": None}),
    _filter("aggregation without type", _BY_CPU, args={"aggregated": _BY_NOTHING}),
    _filter(
        "aggregation without thresholds", _BY_CPU, args={"aggregated": {**_BY_P95, "usage_thresholds": {}}}
    ),
    _filter("longest window", None, args={"aggregated": _BY_P95}, metric={"aggregated_node_usages": _P95}),
    _filter("no window", _BY_CPU_OVER_WINDOW, args={"aggregated": _BY_P95}),
    _filter(
        "other window", None, args={"aggregated": _BY_P95_OF_600}, metric={"aggregated_node_usages": _P95}
    ),
    _filter(
        "no CPU to have",
        _BY_MEMORY,
        node={"allocatable": {"cpu": 0, "memory": _GIB}},
        metric={"node_usage": {"cpu": 9, "memory": _GIB}},
    ),
    _filter(
        "prod, measured as batch",
        _BY_CPU,
        args={"prod_usage_thresholds": {"cpu": 60}},
        metric={"pods": _AS_BATCH},
        pod=_PROD,
        assigned=_OLD_PROD,
    ),
    _score("score: no CPU to have", 49, node={"allocatable": {"memory": 512 * _GIB}}),
    _score(
        "score: allocatable of before",
        44,
        node={
            "allocatable": {"memory": 512 * _GIB},
            "raw_allocatable_annotation": {"cpu": 98_000, "memory": 256 * _GIB},
        },
        metric={"node_usage": {"cpu": 88_200, "memory": 51 * _GIB}},
    ),
    _score("score: other window", 99, args={"aggregated": _SCORED_OF_600}),
    _score(
        "score: prod, measured as batch",
        64,
        args={"score_according_prod_usage": True},
        metric={"pods": _AS_BATCH},
        pod=_PROD,
        assigned=_OLD_PROD,
    ),
    _score(
        "score: reports every 60 s",
        88,
        metric={"node_usage": _COOL, "pods": _AS_PROD},
        assigned={**_PROD, "assigned_age_seconds": 90},
    ),
    _score(
        "score: reports every 120 s",
        71,
        metric={"node_usage": _COOL, "pods": _AS_PROD, "report_interval_seconds": 120},
        assigned={**_PROD, "assigned_age_seconds": 90},
    ),
    _score(
        "score: report without usage",
        71,
        metric={"node_usage": _COOL, "pods": _reported("koord-prod", {})},
        assigned=_OLD_PROD,
    ),
    _score("score: lower resource alone", 5, args={"resource_weights": None, "dominant_resource_weight": 10}),
]


def _estimate(id: str, cpu: int, memory: int, **pod: Any) -> Case:
    args = {"estimated_scaling_factors": {"cpu": 85, "memory": 70}, "allow_customize_estimation": True}
    expected = {"cpu": cpu, "memory": memory}
    return _case(id, "koordinator.LoadAware", "EstimatePod", expected, args=args, pod=pod)


_ESTIMATES = [
    _estimate("mid, nothing asked", 0, 0, **_MID, containers=[{}]),
    _estimate("mid, asked as prod", 0, 0, **{**_PROD, **_MID}),
    _estimate("mid", 850, 0, **_MID, containers=[{"requests": {"kubernetes.io/mid-cpu": 1000, "cpu": 9000}}]),
    _estimate("mid, asked as batch", 0, 0, **_MID, containers=[_BATCH_CPU]),
    _estimate("free", 0, 0, **{**_PROD, **_FREE}),
    _estimate("free, asked as batch", 0, 0, **_FREE, containers=[_BATCH_CPU]),
    _estimate("batch, asked as prod", 250, 200 << 20, **{**_PROD, **_BATCH}),
    _estimate("batch, little asked as prod", 250, 200 << 20, **_BATCH, containers=[{"limits": {"cpu": 10}}]),
    _estimate("batch, memory asked as prod", 850, 200 << 20, **_BATCH, containers=[_BATCH_CPU]),
    _estimate("batch, with overhead", 250, 200 << 20, **_BATCH, overhead={"cpu": 4000}),
    _estimate("batch, by no priority", 250, 200 << 20, priority_class="koord-batch", overhead={"cpu": 4000}),
    _estimate(
        "batch, with overhead of its own",
        1700,
        200 << 20,
        **_BATCH,
        containers=[_BATCH_CPU],
        overhead={"kubernetes.io/batch-cpu": 1000},
    ),
    _estimate(
        "batch, by nothing", 850, 200 << 20, priority_class="koord-batch", containers=[_ONLY_BATCH_CPU]
    ),
    _estimate("prod, asked as batch", 250, 751_619_277, **_AT_PROD, containers=[_BATCH_CPU]),
    _estimate("no class by its priority", 34_000, 751_619_277, **_PROD, priority=2_000_000_000),
    _estimate("best effort by its label", 250, 200 << 20, **{**_PROD, **_BEST_EFFORT}),
    _estimate("no factors of its own", 34_000, 751_619_277, **_PROD, custom_estimated_scaling_factors=None),
]

BEYOND = [*_TRIMARAN, *_KOORDINATOR, *_ESTIMATES]
