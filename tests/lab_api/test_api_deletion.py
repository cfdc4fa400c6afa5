"""How objects go, and pods come to a node and leave it: deletion, binding, eviction."""

import pytest

from colocate.clock import ManualClock
from colocate.lab.api.objects import parse_time

from .asking import Http
from .samples import BUDGETS, CONFIG_MAPS, DEPLOYMENTS, PODS, budget, config_map, deployment, pod


async def set_running(api: Http, name: str, ready: str = "True") -> None:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
    assert (await api.patch(f"{PODS}/{name}/status", {"status": status})).code == 200


async def test_a_pod_on_a_node_is_given_time(api: Http, clock: ManualClock) -> None:
    await api.post(PODS, pod("p", nodeName="vm"))
    marked = (await api.delete(f"{PODS}/p")).body["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 30
    assert parse_time(marked["deletionTimestamp"]) == clock.time() + 30
    assert marked["generation"] == 2
    await clock.advance(5)
    again = (await api.delete(f"{PODS}/p")).body["metadata"]
    assert again["deletionTimestamp"] == marked["deletionTimestamp"], "a second deletion changes nothing"
    faster = (await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 10})).body["metadata"]
    assert parse_time(faster["deletionTimestamp"]) == clock.time() + 5
    assert (await api.delete(f"{PODS}/p?gracePeriodSeconds=0")).code == 200
    assert (await api.get(f"{PODS}/p")).code == 404


@pytest.mark.parametrize("phase", ["", "Succeeded", "Failed"])
async def test_a_pod_with_nothing_to_stop_goes_at_once(api: Http, phase: str) -> None:
    await api.post(PODS, pod("p", **({"nodeName": "vm"} if phase else {})))
    if phase:
        await api.patch(f"{PODS}/p/status", {"status": {"phase": phase}})
    assert (await api.delete(f"{PODS}/p")).body["kind"] == "Pod"
    assert (await api.get(f"{PODS}/p")).code == 404


async def test_deletion_of_other_kinds_answers_a_status(api: Http) -> None:
    await api.post(DEPLOYMENTS, deployment("d", replicas=0))
    uid = (await api.get(f"{DEPLOYMENTS}/d")).body["metadata"]["uid"]
    answer = (await api.delete(f"{DEPLOYMENTS}/d")).body
    assert answer["status"] == "Success"
    assert answer["details"] == {"name": "d", "group": "apps", "kind": "deployments", "uid": uid}


async def test_preconditions_of_a_deletion(api: Http) -> None:
    body = (await api.post(CONFIG_MAPS, config_map("a"))).body["metadata"]
    wrong = await api.delete(f"{CONFIG_MAPS}/a", {"preconditions": {"uid": "other"}})
    assert (wrong.code, wrong.body["reason"]) == (409, "Conflict")
    assert "UID in precondition: other" in wrong.body["message"]
    assert (await api.delete(f"{CONFIG_MAPS}/a", {"preconditions": {"resourceVersion": "1"}})).code == 409
    right = {"uid": body["uid"], "resourceVersion": body["resourceVersion"]}
    assert (await api.delete(f"{CONFIG_MAPS}/a", {"preconditions": right})).code == 200


async def test_finalizers_hold_an_object(api: Http) -> None:
    held = config_map("a") | {"metadata": {"name": "a", "finalizers": ["example.com/hold"]}}
    await api.post(CONFIG_MAPS, held)
    answer = (await api.delete(f"{CONFIG_MAPS}/a")).body
    assert answer["metadata"]["deletionTimestamp"]
    assert (await api.get(f"{CONFIG_MAPS}/a")).code == 200
    await api.patch(f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": None}})
    assert (await api.get(f"{CONFIG_MAPS}/a")).code == 404


async def test_a_selection_is_deleted_together(api: Http) -> None:
    for name in ("web-1", "web-2", "db-1"):
        await api.post(PODS, pod(name))
    gone = (await api.delete(f"{PODS}?labelSelector=app%3Dweb")).body
    assert [item["metadata"]["name"] for item in gone["items"]] == ["web-1", "web-2"]
    left = (await api.get(PODS)).body["items"]
    assert [item["metadata"]["name"] for item in left] == ["db-1"]


async def test_some_namespaces_stay(api: Http) -> None:
    answer = await api.delete("/api/v1/namespaces/default")
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["message"] == 'namespaces "default" is forbidden: this namespace may not be deleted'


# Binding and eviction


async def test_binding(api: Http) -> None:
    await api.post(PODS, pod("p"))
    binding = {
        "kind": "Binding",
        "apiVersion": "v1",
        "metadata": {"name": "p", "annotations": {"gpu": "0"}},
        "target": {"kind": "Node", "name": "vm"},
    }
    answer = await api.post("/api/v1/namespaces/default/bindings", binding)
    assert (answer.code, answer.body["status"]) == (201, "Success")
    bound = (await api.get(f"{PODS}/p")).body
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("vm", {"gpu": "0"})
    await api.post(PODS, pod("q"))
    uid = binding | {"metadata": {"name": "q", "uid": "other"}}
    assert (await api.post(f"{PODS}/q/binding", uid)).code == 409
    await api.post(PODS, pod("g", schedulingGates=[{"name": "wait"}]))
    gated = await api.post(f"{PODS}/g/binding", {"target": {"name": "vm"}})
    assert "schedulingGates" in gated.body["message"]


async def test_an_eviction_respects_the_budget(api: Http) -> None:
    for name in ("web-1", "web-2"):
        await api.post(PODS, pod(name, nodeName="vm"))
        await set_running(api, name)
    await api.post(BUDGETS, budget("web", "web", minAvailable=1))
    assert (await api.post(f"{PODS}/web-1/eviction", {})).code == 201
    refused = await api.post(f"{PODS}/web-2/eviction", {})
    assert (refused.code, refused.body["reason"]) == (429, "TooManyRequests")
    assert refused.body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    (cause,) = refused.body["details"]["causes"]
    assert cause == {
        "reason": "DisruptionBudget",
        "message": "The disruption budget web needs 1 healthy pods and has 1 currently",
    }
    assert (await api.post(f"{PODS}/nope/eviction", {})).code == 404
    assert (await api.post(f"{PODS}/web-2/eviction", {"metadata": {"name": "other"}})).code == 400


@pytest.mark.parametrize(("policy", "code"), [(None, 429), ("AlwaysAllow", 201)])
async def test_a_pod_that_is_not_ready_may_go_if_so_wished(api: Http, policy: str | None, code: int) -> None:
    for name, ready in (("web-1", "True"), ("web-2", "False")):
        await api.post(PODS, pod(name, nodeName="vm"))
        await set_running(api, name, ready)
    wish = {"unhealthyPodEvictionPolicy": policy} if policy else {}
    await api.post(BUDGETS, budget("web", "web", minAvailable=2, **wish))
    assert (await api.post(f"{PODS}/web-2/eviction", {})).code == code
    assert (await api.post(f"{PODS}/web-1/eviction", {})).code == 429


async def test_old_and_new_evictions_and_two_budgets(api: Http) -> None:
    for name in ("a-1", "b-1"):
        await api.post(PODS, pod(name, nodeName="vm"))
        await set_running(api, name)
    old = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "deleteOptions": {"gracePeriodSeconds": 3}}
    assert (await api.post(f"{PODS}/a-1/eviction", old)).code == 201
    assert (await api.get(f"{PODS}/a-1")).body["metadata"]["deletionGracePeriodSeconds"] == 3
    for name in ("one", "two"):
        await api.post(BUDGETS, budget(name, "b", maxUnavailable="100%"))
    both = await api.post(f"{PODS}/b-1/eviction", {})
    assert both.code == 500
    assert "more than one PodDisruptionBudget" in both.body["message"]
