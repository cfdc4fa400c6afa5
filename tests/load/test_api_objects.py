"""Facts as pods and nodes of the API state them."""

import json
from pathlib import Path

import msgspec
import pytest

from colocate.load.annotations import RAW_ALLOCATABLE, SCALING, THRESHOLDS
from colocate.load.api_objects import LoadNode, LoadPod, bound_pod, node_facts, pod_facts
from colocate.load.demand import Demand, demand
from colocate.load.settings import EstimateSettings, PackingSettings
from colocate.model.load import (
    Access,
    Aggregation,
    Amount,
    ContainerAsk,
    PerResource,
    PodShape,
    PriorityClass,
    Taint,
    UsageThresholds,
)
from tests.load.facts import GIB, NOW, load, table
from tests.support.extender_calls import RECORDED
from tests.support.nesting import DEEP


def read_pod(**stated: object) -> LoadPod:
    return msgspec.convert({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, **stated}, LoadPod)


def with_resources(**resources: object) -> dict[str, object]:
    return {"containers": [{"name": "main", "resources": resources}]}


def named(priority_class: str) -> dict[str, object]:
    return {"metadata": {"labels": {"koordinator.sh/priority-class": priority_class}}}


def test_the_pod_that_a_real_scheduler_sends_is_read() -> None:
    pod = pod_facts(msgspec.convert(RECORDED[0]["request"]["Pod"], LoadPod))
    assert pod.key == "default/s1"
    assert pod.shape == PodShape((ContainerAsk(PerResource(50, 100 << 20)),))
    assert pod.priority_class is PriorityClass.PROD


def test_a_recorded_node_and_its_pods_are_read(recordings: Path) -> None:
    node = node_facts(msgspec.json.decode((recordings / "api/node.json").read_bytes(), type=LoadNode))
    assert 0 < node.room.memory <= node.capacity.memory
    assert node.created is not None
    assert 1.7e9 < node.created < 4e9
    assert node.room.cpu > 0
    running = msgspec.json.decode((recordings / "api/pod-running.json").read_bytes(), type=LoadPod)
    bound = bound_pod(running, 4e9)
    assert bound is not None
    assert bound.node
    assert 1.7e9 < bound.bound_at < 4e9, "as the condition PodScheduled says"


def test_a_pod_without_a_node_or_that_has_ended_is_bound_nowhere() -> None:
    assert bound_pod(read_pod(), NOW) is None
    ended = read_pod(spec={"nodeName": "n", "containers": []}, status={"phase": "Succeeded"})
    assert bound_pod(ended, NOW) is None


def test_a_binding_in_the_future_of_a_wrong_clock_is_taken_as_now() -> None:
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2099-01-01T00:00:00Z"}]
    bound = bound_pod(read_pod(spec={"nodeName": "n"}, status={"conditions": conditions}), NOW)
    assert bound is not None
    assert bound.bound_at == NOW


def test_the_owner_is_the_deployment_whatever_its_replica_set() -> None:
    def owner(kind: str, name: str, **labels: str) -> str:
        references = [{"kind": kind, "name": name, "controller": True}]
        metadata = {"name": "p", "namespace": "ns", "ownerReferences": references, "labels": labels}
        return pod_facts(msgspec.convert({"metadata": metadata}, LoadPod)).owner

    assert owner("ReplicaSet", "web-7d9", **{"pod-template-hash": "7d9"}) == "ns/Deployment/web"
    assert owner("ReplicaSet", "web-7d9") == "ns/ReplicaSet/web-7d9"
    assert owner("StatefulSet", "db") == "ns/StatefulSet/db"


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"spec": {"priority": 9500}}, PriorityClass.PROD),
        ({"spec": {"priority": 7000}}, PriorityClass.MID),
        ({"spec": {"priority": 5999}}, PriorityClass.BATCH),
        ({"spec": {"priority": 2_000_000_000}}, PriorityClass.BATCH),
        ({"spec": with_resources(requests={"cpu": "1"})}, PriorityClass.PROD),
        ({"metadata": {"labels": {"koordinator.sh/qosClass": "BE"}}}, PriorityClass.BATCH),
        (named("koord-mid"), PriorityClass.MID),
        ({"metadata": {"labels": {"koordinator.sh/qosClass": "LSR"}}}, PriorityClass.PROD),
        ({"metadata": {"labels": {"koordinator.sh/qosClass": "best"}}}, PriorityClass.BATCH),
        ({"spec": with_resources(requests={"nvidia.com/gpu": 1})}, PriorityClass.BATCH),
        ({"spec": with_resources(requests={"cpu": "0"}, limits={"memory": 0})}, PriorityClass.BATCH),
        ({"spec": with_resources(limits={"memory": "1Mi"})}, PriorityClass.PROD),
        ({"spec": {"initContainers": [{"resources": {"requests": {"cpu": "1n"}}}]}}, PriorityClass.PROD),
        ({"spec": {"priority": 9500}, **named("koord-free")}, PriorityClass.FREE),
        ({"spec": {"priority": 9500}, **named("system-critical")}, PriorityClass.BATCH),
        ({"spec": {"priority": 9500}, **named("")}, PriorityClass.BATCH),
        ({"spec": with_resources(requests={"cpu": "1"}), **named("unknown")}, PriorityClass.PROD),
    ],
)
def test_the_priority_class_is_named_or_follows_from_priority_or_quality(
    stated: dict[str, object], expected: PriorityClass
) -> None:
    assert pod_facts(read_pod(**stated)).priority_class is expected


def test_batch_resources_are_read_as_cpu_and_memory() -> None:
    batch = {"kubernetes.io/batch-cpu": 4000, "kubernetes.io/batch-memory": "8Gi"}
    spec = {"priority": 5000, **with_resources(requests=batch, limits=batch)}
    asked = PerResource(4000, 8 * GIB)
    assert pod_facts(read_pod(spec=spec)).shape.containers == (ContainerAsk(asked, asked),)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"requests": {"kubernetes.io/batch-memory": "32Gi"}}, ContainerAsk(PerResource(None, 32 * GIB))),
        (
            {"limits": {"kubernetes.io/batch-cpu": 2000, "kubernetes.io/batch-memory": "1Gi"}},
            ContainerAsk(limit=PerResource(2000, GIB)),
        ),
        (
            {"limits": {"kubernetes.io/batch-cpu": 500}, "requests": {"cpu": 1}},
            ContainerAsk(limit=PerResource(500)),
        ),
        ({"requests": {"cpu": 1}}, ContainerAsk(PerResource(1000))),
    ],
)
def test_a_batch_pod_asks_in_batch_resources_wherever_it_states_one_and_else_in_plain_ones(
    resources: dict[str, object], expected: ContainerAsk
) -> None:
    spec = {"containers": [{}, {"resources": resources}]}
    assert pod_facts(read_pod(spec=spec, **named("koord-batch"))).shape.containers == (
        ContainerAsk(),
        expected,
    )
    init = {"initContainers": [{"resources": resources}]}
    assert pod_facts(read_pod(spec=init, **named("koord-batch"))).shape.init == (expected,)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"spec": {"priority": 9500}}, Amount(3400, 6_012_954_214)),
        ({"spec": {"priority": 7500}}, Amount()),
        ({"spec": {"priority": 5500}}, Amount(250, 200 << 20)),
        ({"spec": {"priority": 3500}}, Amount()),
        ({"spec": {"priority": 100}}, Amount(3400, 6_012_954_214)),
        (named("koord-prod"), Amount(3400, 6_012_954_214)),
        (named("koord-mid"), Amount()),
        (named("koord-batch"), Amount(250, 200 << 20)),
        (named("koord-free"), Amount()),
        (named("other"), Amount(3400, 6_012_954_214)),
    ],
)
@pytest.mark.parametrize("how", ["requests", "limits", "whole"])
def test_what_a_class_asks_in_plain_resources_counts_unless_it_is_estimated_by_its_class(
    stated: dict[str, dict[str, object]], expected: Amount, how: str
) -> None:
    asked = {"cpu": "4", "memory": "8Gi"}
    resources = with_resources(**{how: asked})
    if how == "whole":
        resources = {"containers": [{}], "resources": {"requests": asked, "limits": asked}}
    pod = pod_facts(read_pod(**{**stated, "spec": {**stated.get("spec", {}), **resources}}))
    by_class = EstimateSettings(defaults_by_class=True)
    assert demand(pod, by_class, PackingSettings()).estimate == expected
    assert demand(pod, EstimateSettings(), PackingSettings()).estimate == Amount(3400, 6_012_954_214)


def test_pods_that_ask_nothing_in_the_resources_of_their_class_share_that_shape() -> None:
    by_quality = {"metadata": {"labels": {"koordinator.sh/qosClass": "BE"}}}
    pods = [
        pod_facts(read_pod(spec=with_resources(requests={"cpu": cpu}), **stated))
        for cpu, stated in (("1", named("koord-batch")), ("2", named("koord-mid")), ("3", by_quality))
    ]
    assert pods[0].by_class is not None
    assert {id(pod.by_class) for pod in pods} == {id(pods[0].by_class)}


@pytest.mark.parametrize("asked", ["cpu", "kubernetes.io/batch-cpu"])
def test_the_overhead_of_a_class_counts_by_its_class(asked: str) -> None:
    overhead = {"cpu": "1", "kubernetes.io/batch-cpu": 300}
    spec = {"overhead": overhead, "containers": [{"resources": {"requests": {asked: "4000"}}}]}
    labels = {"koordinator.sh/priority-class": "koord-batch"}
    pod = pod_facts(read_pod(spec=spec, metadata={"labels": labels, "annotations": {SCALING: '{"cpu":50}'}}))
    by_class = EstimateSettings(defaults_by_class=True, obey_annotation=True)
    expected = 150 if asked == "cpu" else 2150
    assert demand(pod, by_class, PackingSettings()).estimate.cpu == expected


def test_a_default_by_class_is_not_cut_off_by_a_limit_of_another_resource() -> None:
    pod = pod_facts(read_pod(spec=with_resources(limits={"cpu": "10m"}), **named("koord-batch")))
    by_class = demand(pod, EstimateSettings(defaults_by_class=True), PackingSettings())
    assert by_class.estimate == Amount(250, 200 << 20)
    assert by_class.limit == Amount(10), "which is what it may still use"


AT_LIMITS = {"requests": {"cpu": "3", "memory": "10Gi"}, "limits": {"cpu": "3", "memory": "10Gi"}}


def brings(**spec: object) -> Demand:
    return demand(pod_facts(read_pod(spec=spec)), EstimateSettings(), PackingSettings())


def test_what_a_pod_states_as_a_whole_goes_before_the_sum_of_its_containers() -> None:
    pod = pod_facts(read_pod(spec={"resources": AT_LIMITS, "containers": [{"name": "a"}, {"name": "b"}]}))
    assert pod.priority_class is PriorityClass.PROD
    whole = brings(resources=AT_LIMITS, containers=[{"name": "a"}, {"name": "b"}])
    assert whole.request == whole.limit == Amount(3000, 10 * GIB)
    assert whole.estimate == Amount(2550, 7 * GIB)
    assert whole.packing_cpu == 3000
    assert not whole.best_effort


def test_what_a_pod_does_not_state_as_a_whole_is_still_summed() -> None:
    containers = [
        {"name": name, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}}
        for name in ("a", "b")
    ]
    init = [{"name": "init", "resources": {"requests": {"cpu": "4"}}}]
    overhead = {"cpu": "250m", "memory": "1Gi"}
    asked = brings(
        resources={"requests": {"memory": "8Gi"}, "limits": {"hugepages-2Mi": "1Gi"}},
        containers=containers,
        initContainers=init,
        overhead=overhead,
    )
    assert asked.request == Amount(4250, 9 * GIB)
    assert asked.limit == Amount(4250, 9 * GIB), "never less than the request"
    assert asked.estimate.memory == 5 * GIB, "never beyond the limits"


def test_a_pod_that_states_more_as_a_whole_asks_for_as_much_on_its_node() -> None:
    bound = bound_pod(read_pod(spec={"nodeName": "n", "resources": AT_LIMITS, "containers": [{}]}), NOW)
    assert bound is not None
    made = table({"n": load(10, 10)})
    made.bind(bound)
    assert made.terms("n").memory.requested == 10 * GIB
    assert made.terms("n").aware.unseen == Amount(2550, 7 * GIB)


def test_sidecars_overhead_and_own_percents_are_read() -> None:
    spec = {
        "initContainers": [{"name": "proxy", "restartPolicy": "Always"}, {"name": "init"}],
        "overhead": {"cpu": "250m", "memory": "120Mi"},
    }
    pod = pod_facts(read_pod(spec=spec, metadata={"annotations": {SCALING: '{"cpu":100}'}}))
    assert [container.sidecar for container in pod.shape.init] == [True, False]
    assert pod.shape.overhead == Amount(250, 120 << 20)
    assert pod.shape.scaling == PerResource(100)


def node_with(**annotations: str) -> LoadNode:
    sizes = {"cpu": "32", "memory": "64Gi"}
    status = {"capacity": sizes, "allocatable": sizes}
    return msgspec.convert(
        {"metadata": {"name": "n", "annotations": annotations}, "status": status}, LoadNode
    )


def test_a_nodes_own_thresholds_and_raw_size_are_read() -> None:
    aggregated = {
        "usageThresholds": {"cpu": 70},
        "usageAggregationType": "p95",
        "usageAggregatedDuration": "5m0s",
    }
    stated = json.dumps({"usageThresholds": {"memory": 60}, "aggregatedUsage": aggregated})
    node = node_facts(node_with(**{THRESHOLDS: stated, RAW_ALLOCATABLE: '{"cpu":"28"}'}))
    assert node.room == Amount(28_000, 64 * GIB)
    assert node.thresholds == UsageThresholds(
        PerResource(None, 60), None, PerResource(70), Aggregation.P95, 300
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m0s", 300), ("1.5h", 5400), ("500ms", 0.5), ("", 0), ("-5m", 0), ("soon", 0)]
)
def test_a_span_of_time_is_read_as_go_reads_it(text: str, seconds: float) -> None:
    stated = json.dumps({"aggregatedUsage": {"usageAggregatedDuration": text}})
    thresholds = node_facts(node_with(**{THRESHOLDS: stated})).thresholds
    assert thresholds is not None
    assert thresholds.window == seconds


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (
            {"usageThresholds": {"cpu": 40, "ephemeral-storage": 80}, "prodUsageThresholds": {"gpu": "many"}},
            UsageThresholds(PerResource(40), PerResource()),
        ),
        (
            {"usageThresholds": {"cpu": 40}, "aggregatedUsage": {"usageAggregationType": ""}, "later": []},
            UsageThresholds(PerResource(40)),
        ),
        (
            {"aggregatedUsage": {"usageThresholds": {"memory": 70, "x": 1}, "usageAggregationType": "p42"}},
            UsageThresholds(aggregated=PerResource(None, 70)),
        ),
    ],
)
def test_what_a_nodes_thresholds_say_of_anything_else_leaves_the_rest_as_it_is(
    stated: dict[str, object], expected: UsageThresholds
) -> None:
    assert node_facts(node_with(**{THRESHOLDS: json.dumps(stated)})).thresholds == expected


def test_percents_of_other_resources_leave_those_of_cpu_and_memory_as_they_are() -> None:
    pod = read_pod(metadata={"annotations": {SCALING: '{"cpu":50,"nvidia.com/gpu":10}'}})
    assert pod_facts(pod).shape.scaling == PerResource(50)


@pytest.mark.parametrize("nonsense", ["", "{", "[]", '"x"', '{"cpu":[]}', '{"usageThresholds":"all"}'])
def test_an_annotation_that_makes_no_sense_is_as_good_as_none(nonsense: str) -> None:
    node = node_facts(node_with(**{THRESHOLDS: nonsense, RAW_ALLOCATABLE: nonsense}))
    assert node.room == Amount(32_000, 64 * GIB)
    pod = read_pod(metadata={"annotations": {SCALING: nonsense}})
    assert pod_facts(pod).shape.scaling == PerResource()


def test_a_quantity_that_is_none_is_as_good_as_not_stated() -> None:
    pod = pod_facts(read_pod(spec=with_resources(requests={"cpu": "many", "memory": "1Gi"})))
    assert pod.shape.containers[0].request == PerResource(None, GIB)


@pytest.mark.parametrize("huge", ["1e305", "1e400", 1e308, "9" * 30, 2**70, "9999999E"])
def test_a_quantity_beyond_what_kubernetes_counts_is_the_most_that_it_counts(huge: str | float) -> None:
    pod = pod_facts(read_pod(spec=with_resources(requests={"cpu": huge, "memory": huge})))
    assert pod.shape.containers[0].request == PerResource(2**63 - 1, 2**63 - 1)


def test_percents_beyond_what_kubernetes_counts_are_as_good_as_none() -> None:
    huge = f'{{"cpu":{10**400}}}'
    assert pod_facts(read_pod(metadata={"annotations": {SCALING: huge}})).shape.scaling == PerResource()
    stated = f'{{"usageThresholds":{huge}}}'
    assert node_facts(node_with(**{THRESHOLDS: stated})).thresholds is None


def test_annotations_that_are_nested_without_end_say_nothing() -> None:
    deep = '{"x":' + DEEP.decode() + "}"
    node = node_facts(node_with(**{THRESHOLDS: deep, RAW_ALLOCATABLE: deep}))
    assert (node.thresholds, node.raw_allocatable) == (None, PerResource())
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "annotations": {SCALING: deep}}
    assert pod_facts(read_pod(metadata=metadata)).shape.scaling == PerResource()


def test_whom_a_node_lets_in_is_read_and_what_it_only_advises_is_not() -> None:
    said = [
        {"key": "gpu", "value": "a100", "effect": "NoSchedule"},
        {"key": "colocate.dev/load-1", "effect": "PreferNoSchedule"},
        {"key": "draining", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
    ]
    hard = (Taint("draining", "NoExecute"), Taint("gpu", "NoSchedule", "a100"))
    for taints in (said, said[::-1]):
        node = msgspec.convert({"spec": {"unschedulable": True, "taints": taints}}, LoadNode)
        assert node_facts(node).access == Access(cordoned=True, taints=hard)
    assert node_facts(node_with()).access == Access()
