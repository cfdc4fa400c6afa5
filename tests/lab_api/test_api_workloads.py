"""DaemonSets, Jobs and Secrets: as much of them as our own manifests and a first look need."""

import base64
from typing import Any

import pytest

from colocate.lab.api.daemon_sets import REVISION
from colocate.lab.api.objects import Object, at, labels_of
from colocate.lab.api.resources import DAEMON_SETS, JOBS, NODES, PODS, SECRETS
from colocate.lab.api.status import StatusError

from .controlled import Cluster
from .samples import bare, deployment, node, pod


def daemon_set(name: str = "agent", **spec: Any) -> Object:
    body = deployment(name)
    del body["spec"]["replicas"]
    body["spec"]["template"]["spec"] |= spec
    return body


def job(name: str = "sum", policy: str = "Never", **spec: Any) -> Object:
    containers = [{"name": "main", "image": "busybox"}]
    template = {"spec": {"containers": containers, "restartPolicy": policy}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def where(cluster: Cluster) -> list[str]:
    return sorted(at(one, "spec", "nodeName") for one in cluster.pods())


def end(cluster: Cluster, phase: str) -> None:
    """All pods that run end so."""

    def write(body: Object) -> None:
        body["status"]["phase"] = phase

    for one in cluster.pods():
        if at(one, "status", "phase") == "Running":
            cluster.registry.modify(PODS, "default", one["metadata"]["name"], write, "status")


async def test_a_daemon_set_has_a_pod_on_every_node_and_on_those_that_come(cluster: Cluster) -> None:
    cluster.create(NODES, node("vm-2"), "")
    cluster.create(DAEMON_SETS, daemon_set())
    await cluster.settle()
    assert where(cluster) == ["vm", "vm-2"]
    cluster.create(NODES, node("vm-3"), "")
    await cluster.settle()
    assert where(cluster) == ["vm", "vm-2", "vm-3"]
    status = cluster.get(DAEMON_SETS, "agent")["status"]
    assert (status["desiredNumberScheduled"], status["numberReady"]) == (3, 3)


async def test_a_daemon_set_keeps_to_labels_and_taints(cluster: Cluster) -> None:
    cluster.create(NODES, node("gpu-1", kind="gpu"), "")
    tainted = node("gpu-2", kind="gpu") | {"spec": {"taints": [{"key": "no", "effect": "NoSchedule"}]}}
    cluster.create(NODES, tainted, "")
    cordoned = node("gpu-3", kind="gpu") | {
        "spec": {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}
    }
    cluster.create(NODES, cordoned, "")
    cluster.create(DAEMON_SETS, daemon_set(nodeSelector={"kind": "gpu"}))
    await cluster.settle()
    assert where(cluster) == ["gpu-1", "gpu-3"]


async def test_another_template_replaces_pods_one_node_at_a_time(cluster: Cluster) -> None:
    cluster.create(NODES, node("vm-2"), "")
    cluster.create(DAEMON_SETS, daemon_set())
    await cluster.settle()
    old = {labels_of(one)[REVISION] for one in cluster.pods()}
    containers = [{"name": "main", "image": "nginx:2"}]
    cluster.registry.modify(
        DAEMON_SETS,
        "default",
        "agent",
        lambda body: body["spec"]["template"]["spec"].update(containers=containers),
    )
    await cluster.controllers.settle()
    assert len([one for one in cluster.pods() if not one["metadata"].get("deletionTimestamp")]) == 1
    await cluster.settle()
    assert where(cluster) == ["vm", "vm-2"]
    assert old.isdisjoint(labels_of(one)[REVISION] for one in cluster.pods())
    assert cluster.get(DAEMON_SETS, "agent")["status"]["updatedNumberScheduled"] == 2


async def test_a_pod_of_a_daemon_set_that_ends_is_made_again(cluster: Cluster) -> None:
    cluster.create(DAEMON_SETS, daemon_set())
    await cluster.settle()
    (first,) = cluster.pods()
    cluster.fail(first["metadata"]["name"])
    await cluster.settle()
    (second,) = cluster.pods()
    assert second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_a_job_runs_so_many_pods_at_a_time_until_all_have_succeeded(cluster: Cluster) -> None:
    cluster.create(JOBS, job(completions=3, parallelism=2))
    await cluster.settle()
    assert len(cluster.pods()) == 2
    end(cluster, "Succeeded")
    await cluster.settle()
    assert len(cluster.pods()) == 3
    end(cluster, "Succeeded")
    await cluster.settle()
    status = cluster.get(JOBS, "sum")["status"]
    assert status["succeeded"] == 3
    assert [one["type"] for one in status["conditions"]] == ["Complete"]
    assert status["completionTime"]
    assert len(cluster.pods()) == 3
    assert labels_of(cluster.pods()[0])["job-name"] == "sum"


async def test_a_job_tries_again_after_a_while_and_gives_up_in_the_end(cluster: Cluster) -> None:
    cluster.create(JOBS, job(backoffLimit=1))
    await cluster.settle()
    end(cluster, "Failed")
    await cluster.settle()
    assert len(cluster.pods()) == 1, "it waits"
    await cluster.clock.advance(11)
    cluster.registry.modify(JOBS, "default", "sum", lambda body: labels_of(body).update(look="again"))
    await cluster.settle()
    assert len(cluster.pods()) == 2
    end(cluster, "Failed")
    await cluster.settle()
    status = cluster.get(JOBS, "sum")["status"]
    assert [(one["type"], one["reason"]) for one in status["conditions"]] == [
        ("Failed", "BackoffLimitExceeded")
    ]


@pytest.mark.parametrize(
    ("resource", "body", "words"),
    [
        (JOBS, job(policy="Always"), "restartPolicy"),
        (JOBS, job(parallelism=-1), "must be greater than or equal to 0"),
        (SECRETS, {"metadata": {"name": "s"}, "data": {"key": "not base64!"}}, "must be base64 encoded"),
        (DAEMON_SETS, {"metadata": {"name": "d"}, "spec": {"template": {}}}, "spec.selector"),
        (
            DAEMON_SETS,
            {"metadata": {"name": "d"}, "spec": {"selector": 3}},
            "cannot be handled as a DaemonSet",
        ),
    ],
)
def test_a_bad_one_is_refused(cluster: Cluster, resource: Any, body: Object, words: str) -> None:
    with pytest.raises(StatusError, match=words) as refused:
        cluster.registry.create(resource, "default", body)
    assert "not base64!" not in str(refused.value)


def test_the_text_of_a_secret_becomes_data_and_is_not_kept_twice(cluster: Cluster) -> None:
    made = cluster.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"token": "t0k3n"}})
    assert made["type"] == "Opaque"
    assert base64.b64decode(made["data"]["token"]) == b"t0k3n"
    assert "stringData" not in made


def test_writing_the_same_amounts_in_other_words_changes_nothing(cluster: Cluster) -> None:
    body = pod("p")
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": 1, "memory": "1024Mi", "a.com/b": 2}}
    before = cluster.registry.create(PODS, "default", bare(body))
    again = cluster.registry.modify(
        PODS,
        "default",
        "p",
        lambda now: now["spec"]["containers"][0]["resources"]["limits"].update({"cpu": 1, "a.com/b": 2}),
    )
    assert again.revision == before.revision
