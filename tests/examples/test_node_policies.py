"""What the admission policies of examples/ let the accounts of agent and placer do to nodes."""

import copy
from typing import Any

import msgspec
import pytest
from tests.support.admission import NODE, AdmissionPolicy

from colocate.cluster.json_patch import apply
from colocate.cluster.node_status import patch_for
from colocate.gpus import ANNOUNCED, DIALECTS
from colocate.model.cpu_topology import FREE_CCXS


class Writer(msgspec.Struct, frozen=True):
    """An account, what keeps it in check, and what it is there to write."""

    policy: AdmissionPolicy
    account: str
    annotation: str
    counts: tuple[str, ...] = ()

    @property
    def user(self) -> dict[str, Any]:
        name = f"system:serviceaccount:kube-system:{self.account}"
        return {"username": name, "extra": {NODE: ["worker"]}}


COUNTS = tuple({name for each in DIALECTS.values() for name in (each.count, each.cores) if name})
AGENT = Writer(AdmissionPolicy("gpus/rbac.yaml"), "colocate-gpus", ANNOUNCED, COUNTS)
PLACER = Writer(AdmissionPolicy("placement/publish-rbac.yaml"), "colocate-placer", FREE_CCXS)
OWN_NODE = "own node only"

pytestmark = pytest.mark.parametrize("writer", [AGENT, PLACER], ids=["agent", "placer"])


def node(name: str = "worker") -> dict[str, Any]:
    """A node, with some of everything that a kubelet says."""
    return {
        "metadata": {
            "name": name,
            "resourceVersion": "7",
            "labels": {"zone": "a"},
            "annotations": {"team": "blue"},
        },
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": {"cpu": "8", "memory": "16Gi"},
            "allocatable": {"cpu": "8", "memory": "15Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"kubeletVersion": "v1.34.0"},
            "images": [{"names": ["busybox"], "sizeBytes": 1}],
        },
    }


def bare(name: str = "worker") -> dict[str, Any]:
    """One of which little is said yet."""
    return {"metadata": {"name": name, "resourceVersion": "7"}, "spec": {}, "status": {}}


def changed(old: dict[str, Any], *path: str, value: Any) -> dict[str, Any]:
    """With another value there; None takes it away."""
    new = copy.deepcopy(old)
    where = new
    for part in path[:-1]:
        where = where.setdefault(part, {})
    if value is None:
        del where[path[-1]]
    else:
        where[path[-1]] = value
    return new


@pytest.mark.parametrize("before", [node(), bare()], ids=["node", "bare"])
def test_it_may_write_what_it_is_there_for_and_take_it_back(writer: Writer, before: dict[str, Any]) -> None:
    counts, gone = dict.fromkeys(writer.counts, 4), dict.fromkeys(writer.counts, None)
    written = apply(before, patch_for(before, counts, {writer.annotation: "[]"}))
    assert isinstance(written, dict)
    assert written != before
    assert writer.policy.refused(before, written, writer.user) == []
    other = apply(written, patch_for(written, dict.fromkeys(writer.counts, 2), {writer.annotation: "{}"}))
    assert isinstance(other, dict)
    assert writer.policy.refused(written, other, writer.user) == []
    back = apply(written, patch_for(written, gone, {writer.annotation: None}))
    assert isinstance(back, dict)
    assert writer.policy.refused(written, back, writer.user) == []


@pytest.mark.parametrize("extra", [{NODE: ["other"]}, {}, None])
def test_it_writes_its_own_node_alone(writer: Writer, extra: dict[str, Any] | None) -> None:
    user = {key: value for key, value in {**writer.user, "extra": extra}.items() if value is not None}
    new = changed(node(), "metadata", "annotations", writer.annotation, value="[]")
    [message] = writer.policy.refused(node(), new, user)
    assert OWN_NODE in message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "labels", "zone"), "b"),
        (("metadata", "labels", "zone"), None),
        (("metadata", "labels"), None),
        (("metadata", "labels", "node-role.kubernetes.io/control-plane"), ""),
        (("metadata", "annotations", "team"), "red"),
        (("metadata", "annotations"), {}),
        (("metadata", "annotations", "other"), "x"),
        (("metadata", "finalizers"), ["x/y"]),
        (("metadata", "ownerReferences"), [{"kind": "Job"}]),
        (("status", "capacity", "cpu"), "800"),
        (("status", "capacity", "memory"), None),
        (("status", "capacity"), {}),
        (("status", "capacity", "example.com/fan"), "7"),
        (("status", "allocatable", "cpu"), "800"),
        (("status", "allocatable"), None),
        (("status", "conditions"), [{"type": "Ready", "status": "False"}]),
        (("status", "conditions"), None),
        (("status", "addresses"), [{"type": "InternalIP", "address": "10.6.6.6"}]),
        (("status", "daemonEndpoints", "kubeletEndpoint", "Port"), 6666),
        (("status", "nodeInfo", "kubeletVersion"), "v1.0.0"),
        (("status", "images"), []),
        (("status", "phase"), "Terminated"),
        (("status", "volumesInUse"), ["v"]),
        (("status", "volumesAttached"), [{"name": "v", "devicePath": "/dev/x"}]),
        (("status", "config"), {"error": "x"}),
        (("status", "runtimeHandlers"), [{"name": "runc"}]),
        (("status", "features"), {"supplementalGroupsPolicy": True}),
        (("status", "declaredFeatures"), ["x"]),
    ],
)
def test_it_changes_nothing_else(writer: Writer, path: tuple[str, ...], value: Any) -> None:
    new = changed(node(), *path, value=value)
    assert new != node()
    [message] = writer.policy.refused(node(), new, writer.user)
    assert OWN_NODE not in message


def test_the_policy_is_for_that_account_alone_and_is_bound(writer: Writer) -> None:
    policy = writer.policy
    assert policy.is_for(writer.user)
    assert not policy.is_for({"username": "system:node:worker"})
    assert policy.binding == {"policyName": policy.name, "validationActions": ["Deny"]}
    assert policy.spec["failurePolicy"] == "Fail"
    [rule] = policy.spec["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["nodes/status"], ["UPDATE"])
