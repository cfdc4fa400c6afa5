"""What the server fills in, refuses and keeps."""

from typing import Any

import pytest

from colocate.clock import ManualClock
from colocate.lab.api.objects import parse_time
from colocate.lab.api.resources import PRIORITY_CLASSES
from colocate.lab.api.server import ApiServer

from .asking import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Http
from .samples import BUDGETS, CONFIG_MAPS, DEPLOYMENTS, NODES, PODS, budget, config_map, deployment, node, pod

EXTENDED = "test.com/colocation-memory"


def container(**resources: Any) -> dict[str, Any]:
    return {"name": "main", "image": "busybox", "resources": resources}


# What is filled in


async def test_a_pod_is_completed(api: Http) -> None:
    body = (await api.post(PODS, pod("p"))).body
    spec = body["spec"]
    assert spec["restartPolicy"] == "Always"
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["enableServiceLinks"] is True
    assert spec["priority"] == 0
    assert spec["preemptionPolicy"] == "PreemptLowerPriority"
    assert [(one["key"], one["tolerationSeconds"]) for one in spec["tolerations"]] == [
        ("node.kubernetes.io/not-ready", 300),
        ("node.kubernetes.io/unreachable", 300),
    ]
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    assert body["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert body["metadata"]["generation"] == 1


async def test_requests_come_from_limits_and_quantities_are_canonical(api: Http) -> None:
    limits = {"cpu": 0.5, "memory": "1.5Gi", EXTENDED: 2}
    body = (await api.post(PODS, pod("p", containers=[container(limits=limits)]))).body
    resources = body["spec"]["containers"][0]["resources"]
    expected = {"cpu": "500m", "memory": "1536Mi", EXTENDED: "2"}
    assert resources == {"limits": expected, "requests": expected}
    assert body["status"]["qosClass"] == "Guaranteed"


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"limits": {EXTENDED: "1"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
async def test_qos_classes(api: Http, resources: Any, expected: str) -> None:
    body = (await api.post(PODS, pod("p", containers=[container(**resources)]))).body
    assert body["status"]["qosClass"] == expected


async def test_priority_comes_from_the_class(api: Http, server: ApiServer) -> None:
    registry = server.registry
    registry.create(PRIORITY_CLASSES, "", {"metadata": {"name": "high"}, "value": 1000})
    assert (await api.post(PODS, pod("p", priorityClassName="high"))).body["spec"]["priority"] == 1000
    unknown = await api.post(PODS, pod("q", priorityClassName="nope"))
    assert (unknown.code, unknown.body["reason"]) == (403, "Forbidden")
    assert "no PriorityClass with name nope was found" in unknown.body["message"]
    wrong = await api.post(PODS, pod("q", priorityClassName="high", priority=5))
    assert wrong.code == 403
    default = {"metadata": {"name": "usual"}, "value": 7, "globalDefault": True}
    registry.create(PRIORITY_CLASSES, "", default)
    assert (await api.post(PODS, pod("r"))).body["spec"]["priorityClassName"] == "usual"


async def test_names_are_generated(api: Http) -> None:
    made = [await api.post(PODS, pod("") | {"metadata": {"generateName": "web-"}}) for _ in range(3)]
    names = {answer.body["metadata"]["name"] for answer in made}
    assert len(names) == 3
    assert all(name.startswith("web-") and len(name) == 9 for name in names)


async def test_a_client_cannot_say_what_the_server_owns(api: Http, clock: ManualClock) -> None:
    body = config_map("a")
    marks = {"uid": "mine", "creationTimestamp": "2000-01-01T00:00:00Z", "managedFields": [], "generation": 9}
    body["metadata"] |= marks
    created = (await api.post(CONFIG_MAPS, body)).body["metadata"]
    assert created["uid"] != "mine"
    assert parse_time(created["creationTimestamp"]) == clock.time()
    assert {"managedFields", "generation"}.isdisjoint(created)
    versioned = config_map("b") | {"metadata": {"name": "b", "resourceVersion": "7"}}
    assert (await api.post(CONFIG_MAPS, versioned)).code == 400


# What is refused


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"containers": []}, "spec.containers", "Required value"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image", "Required value"),
        ({"containers": [{"image": "a"}]}, "spec.containers[0].name", "Required value"),
        ({"containers": [{"name": "A", "image": "a"}]}, "spec.containers[0].name", "Invalid value"),
        ({"containers": [container(), container()]}, "spec.containers[1].name", "Duplicate value"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy", 'supported values: "Always"'),
        (
            {"containers": [container(limits={EXTENDED: "1.5"})]},
            f"spec.containers[0].resources.limits[{EXTENDED}]",
            "must be an integer",
        ),
        (
            {"containers": [container(requests={EXTENDED: "1"})]},
            "spec.containers[0].resources.limits",
            "Limit must be set for non overcommitable resources",
        ),
        (
            {"containers": [container(limits={EXTENDED: "2"}, requests={EXTENDED: "1"})]},
            "spec.containers[0].resources.requests",
            f"must be equal to {EXTENDED} limit of 2",
        ),
        (
            {"containers": [container(limits={"cpu": "1"}, requests={"cpu": "2"})]},
            "spec.containers[0].resources.requests",
            "must be less than or equal to cpu limit of 1",
        ),
        (
            {"containers": [container(limits={"cpu": "-1"})]},
            "spec.containers[0].resources.limits[cpu]",
            "must be greater than or equal to 0",
        ),
        (
            {"containers": [container(limits={"cpu": "lots"})]},
            "spec.containers[0].resources.limits[cpu]",
            "quantities must match",
        ),
    ],
)
async def test_pods_that_break_a_rule(api: Http, change: Any, field: str, words: str) -> None:
    answer = await api.post(PODS, pod("p", **change))
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert answer.body["message"].startswith('Pod "p" is invalid: ')
    causes = {cause["field"]: cause["message"] for cause in answer.body["details"]["causes"]}
    assert words in causes[field]


async def test_a_pods_spec_stays_as_it_is(api: Http) -> None:
    await api.post(PODS, pod("p"))
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    assert (await api.patch(f"{PODS}/p", image, STRATEGIC_PATCH)).code == 200
    for change in ({"nodeName": "vm"}, {"schedulerName": "x"}, {"nodeSelector": {"a": "b"}}):
        refused = await api.patch(f"{PODS}/p", {"spec": change})
        assert refused.code == 422
        assert "pod updates may not change fields other than" in refused.body["message"]
    current = (await api.get(f"{PODS}/p")).body["spec"]["tolerations"]
    longer = {"spec": {"tolerations": [*current, {"key": "a", "operator": "Exists"}]}}
    assert (await api.patch(f"{PODS}/p", longer)).code == 200
    assert (await api.patch(f"{PODS}/p", {"spec": {"tolerations": []}})).code == 422


async def test_what_of_other_kinds_may_not_change(api: Http) -> None:
    await api.post(DEPLOYMENTS, deployment("d", replicas=0))
    selector = {"spec": {"selector": {"matchLabels": {"app": "x"}}}}
    refused = await api.patch(f"{DEPLOYMENTS}/d", selector)
    assert "field is immutable" in refused.body["message"]
    assert refused.body["details"]["kind"] == "Deployment"
    assert refused.body["details"]["group"] == "apps"
    frozen = config_map("c", a="1") | {"immutable": True}
    await api.post(CONFIG_MAPS, frozen)
    assert (await api.patch(f"{CONFIG_MAPS}/c", {"data": {"a": "2"}})).code == 422
    mismatched = deployment("e") | {"metadata": {"name": "e"}}
    mismatched["spec"]["template"]["metadata"]["labels"] = {"app": "other"}
    assert (
        "`selector` does not match template `labels`"
        in (await api.post(DEPLOYMENTS, mismatched)).body["message"]
    )
    both = budget("b", "d", minAvailable=1, maxUnavailable=1)
    assert (await api.post(BUDGETS, both)).code == 422


async def test_optimistic_locks(api: Http) -> None:
    created = (await api.post(CONFIG_MAPS, config_map("a"))).body
    fresh = (await api.put(f"{CONFIG_MAPS}/a", created | {"data": {"x": "1"}})).body
    stale = await api.put(f"{CONFIG_MAPS}/a", created | {"data": {"x": "2"}})
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")
    assert "the object has been modified" in stale.body["message"]
    version = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}}
    assert (await api.patch(f"{CONFIG_MAPS}/a", version)).code == 409
    other = {"metadata": {"uid": "other"}}
    assert "Precondition failed" in (await api.patch(f"{CONFIG_MAPS}/a", other)).body["message"]
    unversioned = config_map("a", x="3")
    assert (await api.put(f"{CONFIG_MAPS}/a", unversioned)).code == 200
    again = (await api.put(f"{CONFIG_MAPS}/a", unversioned)).body
    assert int(again["metadata"]["resourceVersion"]) == int(fresh["metadata"]["resourceVersion"]) + 1


async def test_status_and_spec_have_paths_of_their_own(api: Http) -> None:
    await api.post(NODES, node("vm"))
    both: Any = {"spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "4"}}}
    through_spec = (await api.patch(f"{NODES}/vm", both)).body
    assert through_spec["spec"] == {"unschedulable": True}
    assert "capacity" not in through_spec["status"]
    both["spec"]["unschedulable"] = False
    through_status = (await api.patch(f"{NODES}/vm/status", both)).body
    assert through_status["spec"] == {"unschedulable": True}
    assert through_status["status"]["capacity"] == {"cpu": "4"}
    assert through_status["status"]["allocatable"] == {"cpu": "4"}


async def test_the_generation_counts_changes_of_the_spec(api: Http) -> None:
    await api.post(DEPLOYMENTS, deployment("d", replicas=0, paused=True))
    path = f"{DEPLOYMENTS}/d"
    assert (await api.patch(path, {"metadata": {"labels": {"a": "b"}}})).body["metadata"]["generation"] == 1
    assert (await api.patch(path, {"spec": {"minReadySeconds": 5}})).body["metadata"]["generation"] == 2
    scaled = await api.patch(f"{path}/scale", {"spec": {"replicas": 0}})
    assert scaled.body["spec"] == {"replicas": 0}
    assert (await api.get(path)).body["metadata"]["generation"] == 2


async def test_scale(api: Http) -> None:
    await api.post(DEPLOYMENTS, deployment("d", replicas=0))
    scale = (await api.get(f"{DEPLOYMENTS}/d/scale")).body
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["status"] == {"replicas": 0, "selector": "app=d"}
    scale["spec"]["replicas"] = 2
    assert (await api.put(f"{DEPLOYMENTS}/d/scale", scale)).body["spec"] == {"replicas": 2}
    assert (await api.get(f"{DEPLOYMENTS}/d")).body["spec"]["replicas"] == 2
    assert (await api.put(f"{DEPLOYMENTS}/d/scale", scale)).code == 409


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (MERGE_PATCH, {"data": {"x": "2"}}),
        (JSON_PATCH, [{"op": "replace", "path": "/data/x", "value": "2"}]),
        (STRATEGIC_PATCH, {"data": {"x": "2"}}),
        (APPLY_PATCH, {"apiVersion": "v1", "kind": "ConfigMap", "data": {"x": "2"}}),
    ],
)
async def test_every_form_of_patch(api: Http, content_type: str, body: Any) -> None:
    await api.post(CONFIG_MAPS, config_map("a", x="1"))
    answer = await api.patch(f"{CONFIG_MAPS}/a", body, content_type)
    assert (answer.code, answer.body["data"]) == (200, {"x": "2"})


async def test_applying_what_is_not_there_creates_it(api: Http) -> None:
    body = config_map("a", x="1")
    assert (await api.patch(f"{CONFIG_MAPS}/a", body, APPLY_PATCH)).code == 201
    assert (await api.patch(f"{CONFIG_MAPS}/a", body, APPLY_PATCH)).code == 200
    yaml = b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\ndata: {x: '1'}"
    assert (await api.patch(f"{CONFIG_MAPS}/b", yaml, APPLY_PATCH)).body["data"] == {"x": "1"}


async def test_dry_runs_answer_and_change_nothing(api: Http, server: ApiServer) -> None:
    await api.post(CONFIG_MAPS, config_map("a", x="1"))
    await api.post(PODS, pod("p"))
    await api.post(DEPLOYMENTS, deployment("d", replicas=0, paused=True))
    storages = ("configmaps", "pods")
    before = [server.store.changes(storage).newest for storage in storages]
    created = await api.post(f"{CONFIG_MAPS}?dryRun=All", config_map("b"))
    assert created.code == 201
    assert "uid" in created.body["metadata"]
    assert "resourceVersion" not in created.body["metadata"]
    patched = await api.patch(f"{CONFIG_MAPS}/a?dryRun=All", {"data": {"x": "2"}})
    assert patched.body["data"] == {"x": "2"}
    assert (await api.delete(f"{CONFIG_MAPS}/a?dryRun=All")).code == 200
    assert (await api.delete(CONFIG_MAPS, {"dryRun": ["All"]})).code == 200
    assert (await api.patch(f"{DEPLOYMENTS}/d/scale?dryRun=All", {"spec": {"replicas": 5}})).code == 200
    assert (await api.post(f"{PODS}/p/binding?dryRun=All", {"target": {"name": "vm"}})).code == 201
    assert (await api.post(f"{PODS}/p/eviction?dryRun=All", {})).code == 201
    assert [server.store.changes(storage).newest for storage in storages] == before
    assert (await api.get(f"{DEPLOYMENTS}/d")).body["spec"]["replicas"] == 0


async def test_events_of_both_apis_are_the_same(api: Http) -> None:
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "hello",
        "reason": "Test",
        "type": "Normal",
        "eventTime": "2026-11-15T21:52:57.592367Z",
        "reportingController": "me",
        "reportingInstance": "me-1",
        "action": "Testing",
    }
    new = "/apis/events.k8s.io/v1/namespaces/default/events"
    assert (await api.post(new, event)).code == 201
    core = (await api.get("/api/v1/namespaces/default/events/e")).body
    assert core["apiVersion"] == "v1"
    assert core["involvedObject"]["name"] == "p"
    assert (core["message"], core["reportingComponent"]) == ("hello", "me")
    shown = (await api.get(f"{new}/e")).body
    assert (shown["apiVersion"], shown["note"]) == ("events.k8s.io/v1", "hello")
    patched = await api.patch(f"{new}/e", {"series": {"count": 2, "lastObservedTime": event["eventTime"]}})
    assert patched.body["series"]["count"] == 2
    assert (await api.get(f"{new}?fieldSelector=regarding.name%3Dp")).body["items"][0]["note"] == "hello"
    elsewhere = event | {"metadata": {"name": "f"}, "regarding": {"namespace": "kube-system"}}
    assert (await api.post(new, elsewhere)).code == 422
