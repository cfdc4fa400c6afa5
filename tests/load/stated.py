"""What the cases of other projects' tables state, as pods, nodes and settings of this one.

Pods and nodes are written as the API would have them, and read as any others. Only what these projects do themselves
is done here: which of several metrics counts, what stands for one that is missing. What follows from it is left to
the code that is tested.
"""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from colocate.load import decide
from colocate.load.annotations import RAW_ALLOCATABLE, SCALING, THRESHOLDS
from colocate.load.api_objects import LoadNode, LoadPod, bound_pod, node_facts, pod_facts
from colocate.load.settings import (
    EstimateSettings,
    LedgerSettings,
    LoadSettings,
    MissingFilter,
    MissingScore,
    OvercommitmentSettings,
    Staleness,
    mix,
)
from colocate.load.table import LoadTable
from colocate.load.terms import NodeTerms, ResourceTerms
from colocate.model.load import (
    NO_SAMPLES,
    NOTHING,
    Aggregate,
    Aggregation,
    Amount,
    BoundPod,
    NodeFacts,
    NodeLoad,
    PerResource,
    PodFacts,
    PodShape,
    PodUsage,
    PriorityClass,
    Usage,
    UsageThresholds,
)
from tests.load.facts import NOW

Case = dict[str, Any]

AS_ORIGINAL = Staleness(after=180, score=MissingScore.LOWEST)
_LONG = 1_000_000
"""Seconds since when a pod has been on its node, where nothing depends on it."""


def score_of(case: Case, settings: LoadSettings, policy: str) -> int:
    pod = pod_of(case["pod"], "new")
    return decide(table_of(case, settings), pod, ["n"], NOW, mix=mix(policy), assume=False).scores[0]


def table_of(case: Case, settings: LoadSettings) -> LoadTable:
    table = LoadTable(settings)
    sized_by = "capacity" if _is(case, "TargetLoadPacking") else "allocatable"
    table.add_nodes([node_of(case["node"], sized_by)])
    table.observe({"n": load_of(case, settings.staleness)}, NOW)
    usages, reported = {}, _reported(case["node"].get("metric") or {})
    just_bound = [*(case.get("assigned_pods") or []), *(case.get("recently_scheduled_pods") or [])]
    for number, each in enumerate([*just_bound, *(case.get("pods_on_node") or [])]):
        age = _age(each) if number < len(just_bound) else _LONG
        table.bind(_on_node(each, str(number), NOW - age))
        usage = reported.get(_key(each))
        if usage is not None:
            usages[str(number)] = usage
    table.observe_pods(usages)
    return table


def node_of(stated: Case, sized_by: str = "allocatable") -> NodeFacts:
    """What is measured of it is in percent of the very size that it is judged by."""
    size = stated.get(sized_by)
    allocatable = stated.get("capacity", stated.get("allocatable")) if size is None else size
    raw = stated.get("raw_allocatable_annotation")
    custom = stated.get("custom_usage_thresholds")
    annotations = {
        RAW_ALLOCATABLE: json.dumps(_quantities(raw)) if raw else None,
        THRESHOLDS: json.dumps(_annotated(custom)) if custom else None,
    }
    status = {
        "capacity": _quantities({**(allocatable or {}), **(raw or {})}),
        "allocatable": _quantities(allocatable),
    }
    metadata = {"name": "n", "annotations": _without_none(annotations)}
    return node_facts(msgspec.convert({"metadata": metadata, "status": status}, LoadNode))


def _annotated(custom: Case) -> Case:
    """A node's own thresholds, in the words of their annotation."""
    aggregated = custom.get("aggregated") or {}
    seconds = aggregated.get("usage_aggregated_duration_seconds")
    over_window = {
        "usageThresholds": aggregated.get("usage_thresholds"),
        "usageAggregationType": aggregated.get("usage_aggregation_type"),
        "usageAggregatedDuration": f"{seconds}s" if seconds else None,
    }
    return {
        "usageThresholds": custom.get("usage_thresholds"),
        "prodUsageThresholds": custom.get("prod_usage_thresholds"),
        "aggregatedUsage": _without_none(over_window) if aggregated else None,
    }


def load_of(case: Case, staleness: Staleness) -> NodeLoad:
    if "metric" in case["node"]:
        return _koordinator_load(case["node"], staleness)
    metrics = case["node"].get("metrics")
    if metrics is None:
        return NO_SAMPLES
    if _is(case, "TargetLoadPacking"):
        percent = _last(metrics, "cpu", "average", "latest")
        return NO_SAMPLES if percent is None else NodeLoad(Usage(percent, NOW))
    load = NodeLoad(_usage(metrics, "cpu"), _usage(metrics, "memory"))
    if load == NO_SAMPLES and _is(case, "LowRiskOverCommitment"):
        # A node with metrics of neither is judged by what is promised alone, as an idle one is.
        return NodeLoad(Usage(0, NOW), Usage(0, NOW))
    return load


def _is(case: Case, plugin: str) -> bool:
    return str(case["algorithm"]).endswith(plugin)


def _usage(metrics: list[Case], resource: str) -> Usage | None:
    if all(metric["resource"] != resource for metric in metrics):
        return None
    average = _last(metrics, resource, "average")
    if average is None:
        average = _last(metrics, resource, "", "latest")
    return Usage(average or 0, NOW, _last(metrics, resource, "std") or 0)


def _last(metrics: list[Case], resource: str, *operators: str) -> float | None:
    of_these = (
        metric["percent"]
        for metric in reversed(metrics)
        if metric["resource"] == resource and (metric.get("operator") or "") in operators
    )
    return next(of_these, None)


def _koordinator_load(stated: Case, staleness: Staleness) -> NodeLoad:
    metric = stated["metric"]
    if metric is None:
        return NO_SAMPLES
    age, usage = metric.get("update_age_seconds"), metric.get("node_usage")
    time = 0.0 if age is None else NOW - age
    # A report without usage says nothing but its age, by which a node may be refused.
    by_age = staleness.filter is MissingFilter.CLOSE_EXPIRED and staleness.expired(NOW - time)
    if usage is None and not by_age:
        return NO_SAMPLES
    room = node_of(stated).room
    aggregated = {
        (kind, each["duration_seconds"]): amount_of(amounts)
        for each in metric.get("aggregated_node_usages") or []
        for kind, amounts in each["usage"].items()
        if amounts and kind in set(Aggregation)
    }

    def of(resource: str) -> Usage:
        whole = getattr(room, resource)

        def percent(amount: Amount) -> float:
            return 100 * getattr(amount, resource) / whole if whole else 0.0

        aggregates = (
            Aggregate(Aggregation(kind), window, percent(amount))
            for (kind, window), amount in aggregated.items()
        )
        return Usage(percent(amount_of(usage)), time, aggregates=tuple(aggregates))

    return NodeLoad(of("cpu"), of("memory"))


def _reported(metric: Case) -> dict[tuple[str, str], PodUsage]:
    found: dict[tuple[str, str], PodUsage] = {}
    for each in metric.get("pods") or []:
        if each.get("usage"):
            prod = each.get("priority_class") == PriorityClass.PROD
            found[_key(each)] = PodUsage(amount_of(each["usage"]), NOW, prod)
    return found


def _key(stated: Case) -> tuple[str, str]:
    return stated.get("namespace") or "", stated.get("name") or ""


def _age(stated: Case) -> float:
    return next((age for key, age in stated.items() if key.endswith("age_seconds") and age is not None), 0)


def pod_of(stated: Case | None, uid: str) -> PodFacts:
    pod = pod_facts(_api_pod(stated or {}, uid))
    in_force = (stated or {}).get("priority_class")
    assert in_force in (None, pod.priority_class), "its priority, or its quality of service, says so"
    return pod


def _on_node(stated: Case, uid: str, since: float) -> BoundPod:
    bound = bound_pod(_api_pod(stated, uid, since), NOW)
    assert bound is not None
    return bound


def _api_pod(stated: Case, uid: str, bound_at: float | None = None) -> LoadPod:
    factors = stated.get("custom_estimated_scaling_factors")
    metadata = {
        "namespace": stated.get("namespace") or "",
        "name": stated.get("name") or uid,
        "uid": uid,
        "labels": _without_none({"koordinator.sh/qosClass": stated.get("qos_label")}),
        "annotations": {SCALING: json.dumps(factors)} if factors else {},
        "ownerReferences": [{"kind": "DaemonSet", "name": "d"}] if _daemon(stated) else [],
    }
    spec = {
        "containers": _containers(stated.get("containers")),
        "initContainers": _containers(stated.get("init_containers")),
        "overhead": _quantities(stated.get("overhead")),
        "priority": stated.get("priority"),
    }
    status: Case = {}
    if bound_at is not None:
        spec["nodeName"] = "n"
        since = datetime.fromtimestamp(bound_at, UTC).isoformat()
        status["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, LoadPod)


def _containers(stated: list[Case] | None) -> list[Case]:
    return [
        {"resources": {name: _quantities(each.get(name)) for name in ("requests", "limits")}}
        for each in stated or []
    ]


def _quantities(stated: Case | None) -> Case:
    """Plain CPU is stated in millicores here."""
    return {name: f"{amount}m" if name == "cpu" else amount for name, amount in _without_none(stated).items()}


def _without_none(stated: Case | None) -> Case:
    return {name: value for name, value in (stated or {}).items() if value is not None}


def _daemon(stated: Case) -> bool:
    """However it is said: in a word of its own, or by the kind of its owner."""
    return any(
        value and "daemon" in f"{key} {value}".lower()
        for key, value in stated.items()
        if key not in ("namespace", "name")
    )


def shape_of(stated: Case) -> PodShape:
    return pod_of(stated, "").shape


def _per_resource(stated: Case | None) -> PerResource:
    amounts = stated or {}
    return PerResource(amounts.get("cpu"), amounts.get("memory"))


def thresholds_of(stated: Case) -> UsageThresholds:
    def bounds(percents: Case | None) -> PerResource | None:
        # Own bounds replace all general bounds, also those that they leave out.
        return PerResource(percents.get("cpu", 0), percents.get("memory", 0)) if percents else None

    aggregated = stated.get("aggregated") or {}
    kind = aggregated.get("usage_aggregation_type")
    return UsageThresholds(
        bounds(stated.get("usage_thresholds")),
        bounds(stated.get("prod_usage_thresholds")),
        bounds(aggregated.get("usage_thresholds")),
        Aggregation(kind) if kind else None,
        aggregated.get("usage_aggregated_duration_seconds") or 0,
    )


def staleness_of(args: Case) -> Staleness:
    missing = MissingFilter.OPEN
    if not args.get("filter_expired_node_metrics"):
        missing = MissingFilter.LAST_SAMPLE
    elif args.get("enable_schedule_when_node_metrics_expired") is False:
        missing = MissingFilter.CLOSE_EXPIRED
    return Staleness(args.get("node_metric_expiration_seconds") or 0, MissingScore.LOWEST, missing)


def ledger_settings(case: Case) -> LedgerSettings:
    """Every pod is reported, and counts until it is."""
    metric = case["node"]["metric"] or {}
    interval = metric.get("report_interval_seconds")
    return LedgerSettings(
        least_percent=0, expiry=0, window=60 if interval is None else interval, wait_for_pod_usage=True
    )


def estimate_settings(args: Case) -> EstimateSettings:
    factors = _per_resource(args.get("estimated_scaling_factors")).over(Amount(85, 70))
    return EstimateSettings(
        factors.cpu,
        factors.memory,
        obey_annotation=args.get("allow_customize_estimation") or False,
        defaults_by_class=True,
        calibrate=False,
    )


def overcommitment_settings(case: Case) -> OvercommitmentSettings:
    weights = {"cpu": 0.5, "memory": 0.5, **(case["args"].get("risk_limit_weights") or {})}
    return OvercommitmentSettings(case["args"]["smoothing_window_size"], weights["cpu"], weights["memory"])


def trimaran_terms(case: Case) -> NodeTerms:
    return table_of(case, LoadSettings(staleness=AS_ORIGINAL)).terms("n")


def resource_of(node: NodeTerms, resource: str) -> ResourceTerms:
    return node.cpu if resource == "cpu" else node.memory


def amount_of(stated: Case | None) -> Amount:
    return Amount(stated.get("cpu", 0), stated.get("memory", 0)) if stated else NOTHING


def at_most(amount: Amount, room: Amount) -> Amount:
    return Amount(min(amount.cpu, room.cpu), min(amount.memory, room.memory))
