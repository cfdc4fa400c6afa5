"""What every cluster does, the embedded one included: the same tests hold both to it."""

import asyncio
import json

import pytest

from tests.on_cluster.conftest import Cluster

pytestmark = pytest.mark.needs("kubectl")


async def until(cluster: Cluster, *words: str, holds: str) -> None:
    """Wait until a jsonpath of something says `holds`; for what `kubectl wait` of old cannot do."""
    for _ in range(600):
        if await cluster.kubectl("get", *words) == holds:
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"{words} never said {holds!r}")


async def test_nodes_are_ready_with_versions(cluster: Cluster) -> None:
    table = (await cluster.kubectl("get", "nodes")).splitlines()
    assert table[0].split() == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert any(line.split()[1].split(",")[0] == "Ready" for line in table[1:])
    if cluster.is_lab:
        assert {line.split()[2] for line in table[1:]} == {"worker"}
    assert all(
        node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.") for node in await cluster.nodes()
    )


async def test_describe_node_shows_capacity_and_what_is_allocated(cluster: Cluster) -> None:
    name = (await cluster.nodes())[0]["metadata"]["name"]
    described = await cluster.kubectl("describe", "node", name)
    for heading in ("Capacity:", "Allocatable:", "Allocated resources:", "Conditions:", "System Info:"):
        assert heading in described


async def test_a_pod_runs_and_is_deleted(cluster: Cluster) -> None:
    await cluster.apply(cluster.pod("sleeper", "sleep 1000"))
    await cluster.wait("pod/sleeper", "condition=Ready")
    pod = await cluster.get("pod", "sleeper")
    assert pod["spec"]["nodeName"]
    assert pod["status"]["phase"] == "Running"
    assert pod["spec"]["tolerations"], "the API server adds the tolerations of lost nodes"
    await cluster.kubectl("delete", "pod", "sleeper")
    assert "not found" in await cluster.kubectl("get", "pod", "sleeper", fails=True)


async def test_a_pod_that_asks_for_what_no_node_has_stays_pending_with_an_event(cluster: Cluster) -> None:
    resources = {"limits": {"colocate.test/none": "1"}}
    await cluster.apply(cluster.pod("wishful", "true", resources=resources))
    await until(
        cluster,
        *("pod", "wishful", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}"),
        holds="Unschedulable",
    )
    for _ in range(300):
        events = (await cluster.get("events"))["items"]
        told = [one["message"] for one in events if one["reason"] == "FailedScheduling"]
        if told:
            break
        await asyncio.sleep(0.1)
    total = len(await cluster.nodes())
    assert told[0].startswith(f"0/{total} nodes are available: ")
    assert "Insufficient colocate.test/none" in told[0]


async def test_a_node_selector_that_no_node_has_keeps_a_pod_pending(cluster: Cluster) -> None:
    await cluster.apply(cluster.pod("nowhere", "true", nodeSelector={"colocate.test/none": "x"}))
    await until(
        cluster,
        *("pod", "nowhere", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}"),
        holds="Unschedulable",
    )


async def test_an_extended_resource_patched_onto_a_node_can_be_asked_for(cluster: Cluster) -> None:
    name = await cluster.usable_node()
    resource = f"colocate.test/{cluster.namespace}"
    path = f"/status/capacity/{resource.replace('~', '~0').replace('/', '~1')}"
    if " --subresource" not in await cluster.kubectl("patch", "--help"):
        pytest.skip("this kubectl cannot patch a subresource")
    patch = ["patch", "node", name, "--subresource=status", "--type=json", "-p"]
    await cluster.kubectl(*patch, json.dumps([{"op": "add", "path": path, "value": "2"}]))
    try:
        await until(
            cluster,
            *(
                "node",
                name,
                "-o",
                f"jsonpath={{.status.allocatable['{resource.replace('.', chr(92) + '.')}']}}",
            ),
            holds="2",
        )
        await cluster.apply(cluster.pod("holder", "sleep 1000", resources={"limits": {resource: "2"}}))
        await cluster.wait("pod/holder", "condition=Ready")
        assert (await cluster.get("pod", "holder"))["spec"]["nodeName"] == name
        await cluster.kubectl("delete", "pod", "holder")
    finally:
        remove = [{"op": "test", "path": path, "value": "2"}, {"op": "remove", "path": path}]
        await cluster.kubectl(*patch, json.dumps(remove))


async def test_a_deployment_of_thirty_rolls(cluster: Cluster) -> None:
    labels = {"app": "web"}
    template = cluster.pod("web", "sleep 1000")["spec"]
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 30,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template},
        },
    }
    await cluster.apply(deployment)
    await cluster.kubectl("rollout", "status", "deployment/web", "--timeout=170s")
    before = {pod["metadata"]["uid"] for pod in (await cluster.get("pods", "-l", "app=web"))["items"]}
    assert len(before) >= 30
    await cluster.kubectl("rollout", "restart", "deployment/web")
    await cluster.kubectl("rollout", "status", "deployment/web", "--timeout=170s")
    await cluster.kubectl("scale", "deployment/web", "--replicas=3")
    await until(cluster, "deployment", "web", "-o", "jsonpath={.status.replicas}", holds="3")
    pods = [pod["metadata"] for pod in (await cluster.get("pods", "-l", "app=web"))["items"]]
    assert not before & {pod["uid"] for pod in pods if "deletionTimestamp" not in pod}


async def test_cordon_keeps_pods_away(cluster: Cluster) -> None:
    nodes = [node["metadata"]["name"] for node in await cluster.nodes()]
    if len(nodes) < 2 or not cluster.is_lab:
        pytest.skip("needs a second node, and the right to cordon one")
    try:
        for name in nodes[1:]:
            await cluster.kubectl("cordon", name)
        await cluster.apply(cluster.pod("lonely", "sleep 1000"))
        await cluster.wait("pod/lonely", "condition=Ready")
        assert (await cluster.get("pod", "lonely"))["spec"]["nodeName"] == nodes[0]
        assert "SchedulingDisabled" in await cluster.kubectl("get", "nodes")
    finally:
        for name in nodes[1:]:
            await cluster.kubectl("uncordon", name)


async def test_a_disruption_budget_holds_an_eviction_back(cluster: Cluster) -> None:
    pod = cluster.pod("guarded", "sleep 1000")
    pod["metadata"]["labels"] = {"app": "guarded"}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    await cluster.apply(pod, budget)
    await cluster.wait("pod/guarded", "condition=Ready")
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "guarded", "namespace": cluster.namespace},
    }
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/guarded/eviction"
    await until(cluster, "pdb", "guard", "-o", "jsonpath={.status.currentHealthy}", holds="1")
    refused = await cluster.kubectl(
        "create", "--raw", path, "-f", "-", stdin=json.dumps(eviction), fails=True
    )
    assert "disruption budget" in refused
    await cluster.kubectl("delete", "pdb", "guard")
    await cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    await until(cluster, "pods", "-o", "jsonpath={.items[*].metadata.name}", holds="")


async def test_rights_come_from_role_objects(cluster: Cluster) -> None:
    account = f"system:serviceaccount:{cluster.namespace}:reader"
    await cluster.kubectl("create", "serviceaccount", "reader")
    can = ["auth", "can-i", "list", "pods", f"--as={account}"]
    assert await cluster.says(*can) == "no"
    await cluster.kubectl("create", "role", "reader", "--verb=list", "--resource=pods")
    await cluster.kubectl(
        "create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={cluster.namespace}:reader"
    )
    assert await cluster.says(*can) == "yes"
    assert await cluster.says("auth", "can-i", "delete", "pods", f"--as={account}") == "no"
