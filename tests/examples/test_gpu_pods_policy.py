"""examples/gpus/pods-rbac.yaml: what its admission policy lets an agent's account do to pods."""

import copy
from typing import Any

import pytest
from tests.support.admission import NODE, AdmissionPolicy

from colocate.gpus import DIALECTS, SEAL

POLICY = AdmissionPolicy("gpus/pods-rbac.yaml")
AGENT = {"username": "system:serviceaccount:kube-system:colocate-gpus", "extra": {NODE: ["worker"]}}


def pod(**changes: Any) -> dict[str, Any]:
    """A pod on `worker`; `changes` of its metadata."""
    metadata = {"name": "p", "uid": "u", "annotations": {"team": "blue"}, "labels": {"app": "web"}, **changes}
    spec = {"nodeName": "worker", "containers": [{"name": "main", "image": "x"}]}
    # A field that is null is absent to the API server.
    there = {key: value for key, value in metadata.items() if value is not None}
    return {"metadata": there, "spec": spec, "status": {}}


def refused(old: dict[str, Any], new: dict[str, Any] | None, user: dict[str, Any] = AGENT) -> list[str]:
    return POLICY.refused(old, new, user)


def annotated(old: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] = {**(old["metadata"].get("annotations") or {}), **annotations}
    return new


ALL_KEYS = [key for dialect in DIALECTS.values() for keys in dialect.annotations for key in keys.all]


@pytest.mark.parametrize("key", [*ALL_KEYS, SEAL])
def test_an_agent_may_write_every_annotation_of_every_dialect(key: str) -> None:
    assert refused(pod(), annotated(pod(), {key: "true"})) == []
    assert refused(pod(annotations=None), annotated(pod(annotations=None), {key: "true"})) == []


OTHER = "an agent changes only the annotations of shared GPUs"
REST = "an agent changes nothing else of a pod"


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (annotated(pod(), {"team": "red"}), OTHER),
        (annotated(pod(), {"kubernetes.io/config.mirror": "x"}), OTHER),
        (pod(annotations={}), OTHER),
        (pod(labels={"app": "stolen"}), REST),
        (pod(labels=None), REST),
        (pod(finalizers=["x/y"]), REST),
        (pod(ownerReferences=[{"kind": "Job", "controller": True}]), REST),
        ({**pod(), "spec": {**pod()["spec"], "nodeName": "other"}}, REST),
        ({**pod(), "spec": {**pod()["spec"], "containers": [{"name": "main", "image": "evil"}]}}, REST),
    ],
)
def test_an_agent_changes_nothing_else(new: dict[str, Any], message: str) -> None:
    assert refused(pod(), new) == [message]


@pytest.mark.parametrize(
    "user",
    [
        {**AGENT, "extra": {NODE: ["other"]}},
        {**AGENT, "extra": {}},
        {"username": AGENT["username"]},
    ],
)
@pytest.mark.parametrize("new", [annotated(pod(), {SEAL: "x"}), None])
def test_an_agent_stays_on_its_own_node(user: dict[str, Any], new: dict[str, Any] | None) -> None:
    owned = pod(ownerReferences=[{"kind": "Job", "controller": True}])
    old = pod() if new else owned
    assert refused(old, new, user) == ["an agent changes pods of its own node only"]


def test_a_pod_that_is_on_no_node_is_nobodys() -> None:
    unbound = pod()
    del unbound["spec"]["nodeName"]
    assert "an agent changes pods of its own node only" in refused(unbound, annotated(unbound, {SEAL: "x"}))


@pytest.mark.parametrize("owners", [None, [], [{"kind": "Job"}], [{"kind": "Job", "controller": False}]])
def test_an_agent_deletes_no_pod_that_nobody_makes_anew(owners: list[dict[str, Any]] | None) -> None:
    old = pod() if owners is None else pod(ownerReferences=owners)
    assert refused(old, None) == ["an agent deletes only pods that a controller makes anew"]
    assert refused(pod(ownerReferences=[{"kind": "Job", "controller": True}]), None) == []


def test_the_policy_is_for_the_agents_account_alone_and_is_bound() -> None:
    assert POLICY.is_for(AGENT)
    assert not POLICY.is_for({"username": "jane"})
    assert POLICY.binding == {"policyName": POLICY.name, "validationActions": ["Deny"]}
    assert POLICY.spec["failurePolicy"] == "Fail"
