"""What the API and the kubelet say, read into facts: pods, the node, reserves, holders. No I/O."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.memory.agent.objects import MAY_MOVE, ApiNode, ApiPod, KubeletConfig, identity, reserves
from colocate.memory.agent.recreation import elsewhere
from colocate.memory.agent.roster import roster, who_holds
from colocate.model.checkpoint import NO_TOPOLOGY, Entry
from colocate.model.holdings import Holding, Holdings, holdings_of
from colocate.model.memory import ContainerMemory, PodIdentity
from colocate.model.pod import QosClass
from colocate.model.records import ListedPod

RESOURCE = "test.com/colocation-memory"
GIB = 1 << 30


def pod(uid: str = "a", *, phase: str = "Running", blocks: int = 1, **metadata: Any) -> ApiPod:
    marks = {"name": f"pod-{uid}", "namespace": "default", "uid": uid, **metadata}
    main = {"name": "main", "resources": {"limits": {RESOURCE: str(blocks)}} if blocks else {}}
    return msgspec.convert(
        {"metadata": marks, "spec": {"containers": [main]}, "status": {"phase": phase}}, ApiPod
    )


def read(body: dict[str, Any]) -> PodIdentity:
    pod = msgspec.convert(body, ApiPod)
    return identity(pod, RESOURCE, pod.uid)


# --- pods ----------------------------------------------------------------------------------------


def test_a_pod_is_read_with_its_blocks_limits_and_owner() -> None:
    body = {
        "metadata": {
            "name": "batch",
            "namespace": "default",
            "uid": "u",
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "annotations": {MAY_MOVE: "true"},
            "ownerReferences": [{"kind": "ReplicaSet", "controller": True}],
        },
        "spec": {
            "priority": -5,
            "initContainers": [{"name": "proxy", "restartPolicy": "Always"}, {"name": "copy"}],
            "containers": [
                {"name": "main", "resources": {"limits": {RESOURCE: "3"}}, "env": [{"name": "TOKEN"}]},
                {"name": "helper", "resources": {"limits": {"memory": "64Mi"}}},
            ],
        },
        "status": {"phase": "Running", "qosClass": "Burstable"},
    }
    who = read(body)
    assert (who.key, who.priority, who.controller, who.qos) == (
        "default/batch",
        -5,
        "ReplicaSet",
        QosClass.BURSTABLE,
    )
    assert who.created == 1767323045.0
    assert who.may_move
    assert not who.terminating
    assert who.containers == (
        ContainerMemory(name="proxy", init=True, sidecar=True),
        ContainerMemory(name="copy", init=True),
        ContainerMemory(name="main", blocks=3),
        ContainerMemory(name="helper", limit=64 << 20, request=64 << 20),
    )


@pytest.mark.parametrize(
    ("resources", "limit", "request_"),
    [
        ({"limits": {"memory": "0"}}, None, None),
        ({"limits": {"memory": "1Gi"}, "requests": {"memory": "0"}}, GIB, None),
        ({"limits": {"memory": "0"}, "requests": {"memory": "1Gi"}}, None, GIB),
    ],
)
def test_memory_of_0_is_none_asked_for_and_no_limit(
    resources: dict[str, Any], limit: int | None, request_: int | None
) -> None:
    body = {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
    }
    (container,) = read(body).containers
    assert (container.limit, container.request) == (limit, request_)


@pytest.mark.parametrize(
    ("asked", "given", "limit"),
    [("1Gi", "5Gi", 5 * GIB), ("5Gi", "1Gi", 5 * GIB), ("1Gi", "1Gi", GIB), ("1Gi", None, GIB)],
    ids=["to be lowered", "to be raised", "done", "nothing told"],
)
def test_a_limit_that_is_resized_counts_as_smaller_only_when_the_kubelet_has_made_it_so(
    asked: str, given: str | None, limit: int
) -> None:
    resources = {} if given is None else {"resources": {"limits": {"memory": given}}}
    body = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "side", "resources": {"limits": {"memory": asked}}}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "side", **resources}]},
    }
    (side,) = read(body).containers
    assert side.limit == limit


def test_what_a_pod_asks_for_as_a_whole_and_its_overhead_are_read() -> None:
    whole = {"limits": {"memory": "4Gi"}, "requests": {"memory": "3Gi", "cpu": "1"}}
    spec = {"resources": whole, "overhead": {"memory": "160Mi", "cpu": "250m"}}
    who = read({"metadata": {"name": "p", "uid": "u"}, "spec": spec})
    assert (who.limit, who.whole_request, who.overhead) == (4 * GIB, 3 * GIB, 160 << 20)
    assert who.request == 3 * GIB + (160 << 20)


def test_ids_of_containers_are_without_their_runtimes_name() -> None:
    body = {
        "metadata": {"name": "p", "uid": "u"},
        "status": {
            "containerStatuses": [{"name": "main", "containerID": "containerd://abc"}, {"name": "new"}]
        },
    }
    assert msgspec.convert(body, ApiPod).container_ids == {"main": "abc"}


def test_containers_run_by_the_kubelets_last_word() -> None:
    states = [
        {"name": "main", "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}},
        {"name": "ended", "state": {"terminated": {"exitCode": 0}}},
        {"name": "crashing", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        {"name": "new"},
    ]
    sidecar = {"name": "proxy", "state": {"running": {}}}
    status = {"containerStatuses": states, "initContainerStatuses": [sidecar]}
    pod = msgspec.convert({"metadata": {"name": "p", "uid": "u"}, "status": status}, ApiPod)
    assert pod.running_containers == {"main", "proxy"}


# --- the node ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "conditions", "draining", "pressure"),
    [
        ({}, [], False, False),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}, [], True, False),
        ({"taints": [{"key": "DeletionCandidateOfClusterAutoscaler"}]}, [], False, False),
        ({"taints": [{"key": "karpenter.sh/disrupted"}]}, [], True, False),
        ({}, [{"type": "MemoryPressure", "status": "True"}], False, True),
        ({}, [{"type": "MemoryPressure", "status": "False"}], False, False),
    ],
)
def test_a_node_says_whether_it_is_drained_or_under_pressure(
    spec: dict[str, Any], conditions: list[dict[str, str]], draining: bool, pressure: bool
) -> None:
    node = msgspec.convert({"spec": spec, "status": {"conditions": conditions}}, ApiNode)
    assert (node.is_draining, node.has_memory_pressure) == (draining, pressure)


def test_reserves_come_from_the_node_and_where_allowed_from_the_kubelet() -> None:
    status = {"capacity": {"memory": "16Gi"}, "allocatable": {"memory": "15Gi"}}
    node = msgspec.convert({"status": status}, ApiNode)
    kept = reserves(node, None)
    assert (kept.capacity, kept.allocatable, kept.eviction_hard) == (16 * GIB, 15 * GIB, None)
    config = KubeletConfig(
        kube_reserved={"memory": "1Gi"},
        eviction_hard={"memory.available": "5%"},
        eviction_soft={"memory.available": "1Gi"},
    )
    kept = reserves(node, config)
    assert (kept.kube_reserved, kept.system_reserved) == (GIB, None)
    assert (kept.eviction_hard, kept.eviction_soft) == (16 * GIB * 5 // 100, GIB)
    assert reserves(None, config).eviction_hard is None, "a percentage of an unknown capacity"


# --- who holds what ------------------------------------------------------------------------------


def entry(uid: str, *ids: str, container: str = "main", resource: str = RESOURCE) -> Entry:
    return Entry(uid, container, resource, {NO_TOPOLOGY: ids}, b"")


def listed(name: str, *ids: str, container: str = "main") -> ListedPod:
    return ListedPod("default", name, {container: {RESOURCE: frozenset(ids)}})


def test_names_and_uids_are_joined_by_container_and_ids() -> None:
    held = holdings_of(
        [listed("one", "CM-0000", "CM-0001"), listed("late", "CM-0009")],
        [
            entry("u1", "CM-0000", "CM-0001"),
            entry("dead", "CM-0002"),
            entry("u1", "x", resource="other/thing"),
        ],
        RESOURCE,
    )
    assert held == (
        Holding(uid="dead", ids=("CM-0002",)),
        Holding(uid="u1", key="default/one", ids=("CM-0000", "CM-0001")),
        Holding(key="default/late", ids=("CM-0009",)),
    )


ENTRY = Holdings((Holding(uid="a", ids=("CM-0000",)),))
SILENT = Holdings(ENTRY.pods, listed=False)


@pytest.mark.parametrize(
    ("holdings", "pods", "api_knows", "running", "holds"),
    [
        (Holdings((Holding(uid="a", key="default/pod-a", ids=("CM-0000",)),)), [], True, set(), True),
        (ENTRY, [], True, set(), False),
        (ENTRY, [pod()], True, {"a"}, True),
        (ENTRY, [pod(phase="Succeeded")], True, {"a"}, False),
        (SILENT, [pod()], True, set(), True),
        (SILENT, [], True, set(), False),
        (SILENT, [], False, set(), True),
        (SILENT, [], True, {"a"}, True),
        (SILENT, [pod(phase="Failed")], True, set(), False),
        (Holdings((Holding(key="default/pod-a", ids=("CM-0000",)),)), [pod()], True, set(), True),
        (Holdings((Holding(key="default/pod-a", ids=("CM-0000",)),)), [pod(blocks=0)], True, {"a"}, False),
        (
            Holdings((Holding(key="default/pod-a", ids=("CM-0000",)),)),
            [pod(deletionTimestamp="2026-01-02T03:04:05Z"), pod("new", name="pod-a", blocks=0)],
            True,
            {"a", "new"},
            True,
        ),
        (Holdings((Holding(key="default/unknown", ids=("CM-0000",)),)), [pod()], True, set(), False),
    ],
    ids=[
        "listed by podresources",
        "lingers in the checkpoint",
        "a kubelet that has just started",
        "finished, and its group still there",
        "podresources silent",
        "podresources silent, and the API knows of no such pod",
        "podresources silent, and the API too",
        "podresources silent, unknown, and yet it runs",
        "podresources silent, and finished",
        "without a uid in the checkpoint",
        "without a uid, and the pod of that name asks for none",
        "without a uid, and a newer pod of that name asks for none",
        "without a uid anywhere",
    ],
)
def test_an_entry_counts_as_long_as_its_pod_may_live(
    holdings: Holdings, pods: list[ApiPod], api_knows: bool, running: set[str], holds: bool
) -> None:
    known = roster(pods, holdings.proven, running)
    found = who_holds(holdings, known, RESOURCE, api_knows=api_knows, running=running)
    assert found == ({"a": ("CM-0000",)} if holds else {})


ids = st.integers(0, 5).map("CM-{:04d}".format)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), ids)),
    st.lists(st.tuples(st.sampled_from("abc"), ids)),
)
def test_every_id_that_either_source_knows_is_in_the_join(
    in_checkpoint: list[tuple[str, str]], in_listing: list[tuple[str, str]]
) -> None:
    held = holdings_of(
        [listed(name, id) for name, id in in_listing], [entry(uid, id) for uid, id in in_checkpoint], RESOURCE
    )
    assert {id for each in held for id in each.ids} >= {id for _, id in in_checkpoint}
    named = {each.key for each in held if each.key}
    assert named <= {f"default/{name}" for name, _ in in_listing}
    assert len({each.uid for each in held if each.uid}) == len([each for each in held if each.uid])


# --- moving --------------------------------------------------------------------------------------


def test_every_alternative_of_an_affinity_rules_the_node_out_and_none_twice() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["x"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": []}]}
    body = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
        "spec": {
            "nodeName": "here",
            "ephemeralContainers": [{"name": "debugger"}],
            "affinity": {
                "podAffinity": {},
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
            },
        },
        "status": {"phase": "Running"},
    }
    manifest = elsewhere(body, "here", "ns", 1.0)
    rule = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["here"]}
    made: Any = manifest.body
    assert made["metadata"] == {"name": "p", "namespace": "n", "labels": {"a": "b"}}
    assert made["spec"].keys() == {"affinity"}
    assert "status" not in made
    affinity = made["spec"]["affinity"]
    assert affinity["podAffinity"] == {}
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [zone, rule]}, {"matchFields": [], "matchExpressions": [rule]}]
    again: Any = elsewhere({**made, "metadata": {**made["metadata"], "uid": "v"}}, "here", "ns", 1.0).body
    assert again["spec"] == made["spec"]
