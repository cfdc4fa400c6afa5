"""What the cases of other projects' tables state, as facts and settings of this one."""

from typing import Any

from colocate.load.settings import (
    EstimateSettings,
    LedgerSettings,
    MissingScore,
    OvercommitmentSettings,
    Settings,
    Staleness,
    mix,
)
from colocate.load.table import Table
from colocate.load.terms import NodeTerms, ResourceTerms
from colocate.model.load import (
    NO_SAMPLES,
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
    PodUsage,
    PriorityClass,
    Usage,
    UsageThresholds,
)
from tests.load.facts import NOW

Case = dict[str, Any]

AS_ORIGINAL = Staleness(after=180, score=MissingScore.LOWEST)
EVERY_POD_REPORTS = LedgerSettings(least_percent=0, expiry=0, window=60, wait_for_pod_usage=True)


def score_of(case: Case, settings: Settings, policy: str) -> int:
    table = table_of(case, settings)
    return table.scores(mix(policy), table.demand(pod_of(case["pod"], "new")), ["n"])[0]


def table_of(case: Case, settings: Settings) -> Table:
    table = Table(settings)
    table.add_nodes([node_of(case["node"])])
    table.observe({"n": load_of(case["node"])}, NOW)
    pods = [
        *case.get("assigned_pods", []),
        *case.get("recently_scheduled_pods", []),
        *case.get("pods_on_node", []),
    ]
    for number, each in enumerate(pods):
        uid = f"{each.get('namespace', '')}/{each.get('name', number)}"
        age = each.get("assigned_age_seconds", each.get("age_seconds", 0))
        table.bind(BoundPod(pod_of(each, uid), "n", NOW - age))
    metric = case["node"].get("metric") or {}
    usages = {
        f"{each['namespace']}/{each['name']}": PodUsage(
            amount_of(each["usage"]), NOW, each["priority_class"] == PriorityClass.PROD
        )
        for each in metric.get("pods", [])
    }
    table.observe_pods(usages)
    return table


def node_of(stated: Case) -> NodeFacts:
    capacity = amount_of(stated.get("capacity") or stated["allocatable"])
    custom = stated.get("custom_usage_thresholds")
    return NodeFacts(
        "n",
        capacity,
        amount_of(stated.get("allocatable") or stated["capacity"]) if capacity.cpu else Amount(),
        PerResource(**(stated.get("raw_allocatable_annotation") or {})),
        thresholds_of(custom) if custom else None,
    )


def load_of(stated: Case) -> NodeLoad:
    if "metric" in stated:
        return _koordinator_load(stated)
    metrics = stated.get("metrics")
    return NodeLoad(_usage(metrics, "cpu"), _usage(metrics, "memory")) if metrics else NO_SAMPLES


def _usage(metrics: list[Case], resource: str) -> Usage | None:
    values = {metric["operator"]: metric["percent"] for metric in metrics if metric["resource"] == resource}
    if not values:
        return None
    percent = values.get("average", values.get("latest", values.get("", 0)))
    return Usage(percent, NOW, values.get("std", 0))


def _koordinator_load(stated: Case) -> NodeLoad:
    metric = stated["metric"]
    if metric is None:
        return NO_SAMPLES
    age, usage = metric["update_age_seconds"], metric["node_usage"]
    time = 0.0 if age is None else NOW - age
    if usage is None and age is not None and age < 180:
        return NO_SAMPLES
    size = stated["allocatable"]

    def of(resource: str) -> Usage:
        aggregates = tuple(
            Aggregate(Aggregation(kind), each["duration_seconds"], _percent(amounts, size, resource))
            for each in metric.get("aggregated_node_usages", [])
            for kind, amounts in each["usage"].items()
            if amounts
        )
        return Usage(_percent(usage or {}, size, resource), time, aggregates=aggregates)

    return NodeLoad(of("cpu"), of("memory"))


def _percent(amounts: Case, size: Case, resource: str) -> float:
    whole = size.get(resource, 0)
    return 100 * amounts.get(resource, 0) / whole if whole else 0.0


def pod_of(stated: Case, uid: str) -> PodFacts:
    kind = PriorityClass(stated.get("priority_class", ""))
    prefix = {PriorityClass.BATCH: "kubernetes.io/batch-", PriorityClass.MID: "kubernetes.io/mid-"}.get(
        kind, ""
    )
    return PodFacts(uid, uid, shape_of(stated, prefix), priority_class=kind)


def shape_of(stated: Case, prefix: str = "") -> PodShape:
    def asks(key: str) -> tuple[ContainerAsk, ...]:
        return tuple(
            ContainerAsk(
                _per_resource(each.get("requests"), prefix), _per_resource(each.get("limits"), prefix)
            )
            for each in stated.get(key) or []
        )

    scaling = PerResource(**stated.get("custom_estimated_scaling_factors", {}))
    return PodShape(
        asks("containers"), asks("init_containers"), amount_of(stated.get("overhead") or {}), scaling
    )


def _per_resource(stated: Case | None, prefix: str = "") -> PerResource:
    amounts = stated or {}
    return PerResource(amounts.get(f"{prefix}cpu"), amounts.get(f"{prefix}memory"))


def thresholds_of(stated: Case) -> UsageThresholds:
    aggregated = stated.get("aggregated") or {}
    kind = aggregated.get("usage_aggregation_type")
    bounds = aggregated.get("usage_thresholds")
    return UsageThresholds(
        _per_resource(stated["usage_thresholds"]) if stated["usage_thresholds"] else None,
        _per_resource(stated["prod_usage_thresholds"]) if stated["prod_usage_thresholds"] else None,
        _per_resource(bounds) if bounds else None,
        Aggregation(kind) if kind else None,
        aggregated.get("usage_aggregated_duration_seconds") or 0,
    )


def estimate_settings(args: Case) -> EstimateSettings:
    factors = args["estimated_scaling_factors"]
    return EstimateSettings(
        factors["cpu"],
        factors["memory"],
        obey_annotation=args.get("allow_customize_estimation", False),
        calibrate=False,
    )


def overcommitment_settings(case: Case) -> OvercommitmentSettings:
    weights = case["args"]["risk_limit_weights"]
    return OvercommitmentSettings(case["args"]["smoothing_window_size"], weights["cpu"], weights["memory"])


def trimaran_terms(case: Case) -> NodeTerms:
    return table_of(case, Settings(staleness=AS_ORIGINAL)).terms("n")


def resource_of(node: NodeTerms, resource: str) -> ResourceTerms:
    return node.cpu if resource == "cpu" else node.memory


def amount_of(stated: Case) -> Amount:
    return Amount(stated.get("cpu", 0), stated.get("memory", 0))


def at_most(amount: Amount, room: Amount) -> Amount:
    return Amount(min(amount.cpu, room.cpu), min(amount.memory, room.memory))
