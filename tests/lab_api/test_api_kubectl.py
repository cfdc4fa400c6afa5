"""A real kubectl believes the server. Every client that is here runs every test."""

import asyncio
import json

import pytest

from colocate.lab.api.deletion import delete
from colocate.lab.api.resources import DEPLOYMENTS, NODES, PODS

from .kubectl import Kubectl
from .samples import budget, config_map, deployment, pod

GPU = "/status/capacity/mock.com~1gpu"


async def rolled_out(kubectl: Kubectl, name: str) -> None:
    assert "successfully rolled out" in await kubectl("rollout", "status", f"deploy/{name}", "--timeout=30s")


async def test_get_nodes_shows_status_roles_and_version(kubectl: Kubectl) -> None:
    lines = [line.split() for line in (await kubectl("get", "nodes")).splitlines()]
    assert lines[0] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert lines[1][:3] + lines[1][4:] == ["vm", "Ready", "<none>", "v1.34.11"]
    assert lines[2][:3] == ["worker", "Ready", "worker"]
    wide = await kubectl("get", "nodes", "-o", "wide")
    assert "containerd://1.6.20" in wide
    assert "192.0.2.2" in wide


async def test_describe_node_adds_up_what_its_pods_ask_for(kubectl: Kubectl) -> None:
    limits = {"cpu": "500m", "test.com/colocation-memory": "2"}
    asking = pod("asking", nodeName="vm")
    asking["spec"]["containers"][0]["resources"] = {"limits": limits}
    await kubectl.apply(asking)
    shown = await kubectl("describe", "node", "vm")
    capacity, _, rest = shown.partition("Allocatable:")
    assert "test.com/colocation-memory:  40" in capacity.partition("Capacity:")[2]
    allocated = rest.partition("Allocated resources:")[2]
    assert ["test.com/colocation-memory", "2", "2"] in [line.split() for line in allocated.splitlines()]
    assert "500m (25%)" in allocated


async def test_apply_creates_changes_and_leaves_alone(kubectl: Kubectl) -> None:
    assert (await kubectl.apply(deployment("web"))).strip() == "deployment.apps/web created"
    assert (await kubectl.apply(deployment("web"))).strip() == "deployment.apps/web unchanged"
    assert "configured" in await kubectl.apply(deployment("web", image="nginx:2"))
    await rolled_out(kubectl, "web")
    images = await kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.containers[0].image}")
    assert images.split() == ["nginx:2"] * 3


async def test_apply_removes_what_is_no_longer_in_the_manifest(kubectl: Kubectl) -> None:
    await kubectl.apply(config_map("settings", a="1", b="2"))
    await kubectl.apply(config_map("settings", a="1"))
    assert (await kubectl.json("get", "cm", "settings"))["data"] == {"a": "1"}


async def test_apply_on_the_server_side(kubectl: Kubectl) -> None:
    for expected in ("1", "2"):
        shown = await kubectl.apply(config_map("settings", a=expected), "--server-side")
        assert "serverside-applied" in shown
        assert (await kubectl.json("get", "cm", "settings"))["data"] == {"a": expected}


async def test_dry_run_on_the_server_changes_nothing(kubectl: Kubectl) -> None:
    assert "(server dry run)" in await kubectl.apply(deployment("web"), "--dry-run=server")
    words = ("create", "configmap", "c", "--from-literal=a=b", "--dry-run=server")
    assert "(server dry run)" in await kubectl(*words)
    assert "NotFound" in await kubectl("get", "deploy", "web", ok=False)
    assert "NotFound" in await kubectl("get", "cm", "c", ok=False)


async def test_a_deployment_of_thirty_scales_restarts_and_goes_back(kubectl: Kubectl) -> None:
    await kubectl.apply(deployment("web", replicas=30))
    await rolled_out(kubectl, "web")
    await kubectl("scale", "deploy/web", "--replicas=12")
    await rolled_out(kubectl, "web")
    assert len((await kubectl.json("get", "pods"))["items"]) == 12
    before = {item["metadata"]["uid"] for item in (await kubectl.json("get", "pods"))["items"]}
    await kubectl("rollout", "restart", "deploy/web")
    await rolled_out(kubectl, "web")
    after = {item["metadata"]["uid"] for item in (await kubectl.json("get", "pods"))["items"]}
    assert len(after) == 12
    assert not before & after
    await kubectl.apply(deployment("web", replicas=12, image="nginx:9"))
    await rolled_out(kubectl, "web")
    await kubectl("rollout", "undo", "deploy/web")
    await rolled_out(kubectl, "web")
    shown = await kubectl.json("get", "deploy", "web")
    assert shown["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:1"
    assert "4" in await kubectl("rollout", "history", "deploy/web")


async def test_get_pods_wide_and_delete(kubectl: Kubectl) -> None:
    await kubectl("run", "one", "--image=busybox")
    await kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=30s")
    words = (await kubectl("get", "pods", "-o", "wide")).splitlines()[1].split()
    assert words[:4] == ["one", "1/1", "Running", "0"]
    assert words[6] in ("vm", "worker")
    assert 'pod "one" deleted' in await kubectl("delete", "pod", "one", "--timeout=30s")
    assert "No resources found" in await kubectl("get", "pods")


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("json", [{"op": "add", "path": "/metadata/labels/a", "value": "1"}]),
        ("merge", {"metadata": {"labels": {"a": "1"}}}),
        ("strategic", {"metadata": {"labels": {"a": "1"}}}),
    ],
)
async def test_patch(kubectl: Kubectl, kind: str, patch: object) -> None:
    await kubectl("patch", "node", "vm", f"--type={kind}", "-p", json.dumps(patch))
    assert (await kubectl.json("get", "node", "vm"))["metadata"]["labels"]["a"] == "1"


async def test_strategic_patch_merges_containers_by_name(kubectl: Kubectl) -> None:
    await kubectl.apply(deployment("web"))
    change = {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}]}}
    await kubectl("patch", "deploy", "web", "-p", json.dumps({"spec": {"template": change}}))
    (container,) = (await kubectl.json("get", "deploy", "web"))["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["env"]) == ("nginx:1", [{"name": "A", "value": "1"}])


async def test_patch_of_the_status(kubectl: Kubectl) -> None:
    if kubectl.minor < 24:
        pytest.skip("this kubectl has no --subresource")
    patch = json.dumps([{"op": "add", "path": GPU, "value": "4"}])
    await kubectl("patch", "node", "vm", "--subresource=status", "--type=json", "-p", patch)
    assert (await kubectl.json("get", "node", "vm"))["status"]["capacity"]["mock.com/gpu"] == "4"
    patch = json.dumps([{"op": "test", "path": GPU, "value": "4"}, {"op": "remove", "path": GPU}])
    await kubectl("patch", "node", "vm", "--subresource=status", "--type=json", "-p", patch)
    assert "mock.com/gpu" not in (await kubectl.json("get", "node", "vm"))["status"]["capacity"]
    refused = await kubectl(
        "patch", "node", "vm", "--subresource=status", "--type=json", "-p", patch, ok=False
    )
    assert "the server rejected our request" in refused or "the request is invalid" in refused.lower()


async def test_cordon_taint_label_and_annotate(kubectl: Kubectl) -> None:
    await kubectl("cordon", "vm")
    assert "Ready,SchedulingDisabled" in await kubectl("get", "nodes")
    await kubectl("uncordon", "vm")
    assert "SchedulingDisabled" not in await kubectl("get", "nodes")
    await kubectl("taint", "node", "vm", "a=1:NoSchedule")
    await kubectl("taint", "node", "vm", "b=2:NoExecute")
    await kubectl("taint", "node", "vm", "a:NoSchedule-")
    assert (await kubectl.json("get", "node", "vm"))["spec"]["taints"] == [
        {"key": "b", "value": "2", "effect": "NoExecute"}
    ]
    await kubectl("label", "node", "vm", "zone=z1")
    await kubectl("annotate", "node", "vm", "note=seen")
    assert "vm" in await kubectl("get", "nodes", "-l", "zone in (z1,z2)")
    assert "No resources found" in await kubectl("get", "nodes", "-l", "zone notin (z1),zone")
    await kubectl("label", "node", "vm", "zone-")
    assert "zone" not in (await kubectl.json("get", "node", "vm"))["metadata"]["labels"]


async def test_drain_evicts_and_waits_for_the_budget(kubectl: Kubectl) -> None:
    await kubectl.apply(deployment("web", replicas=4))
    await rolled_out(kubectl, "web")
    await kubectl.apply(budget("web", "web", minAvailable=3))
    shown = await kubectl("drain", "vm", "--timeout=60s")
    assert "evicting pod default/web-" in shown
    left = await kubectl.json("get", "pods", "--field-selector", "spec.nodeName=vm")
    assert left["items"] == []
    await rolled_out(kubectl, "web")


async def test_watch_prints_a_line_for_every_change(kubectl: Kubectl) -> None:
    process = await kubectl.start("get", "nodes", "--watch")
    assert process.stdout is not None
    async with asyncio.timeout(30):
        lines = [(await process.stdout.readline()).decode().split() for _ in range(3)]
        assert [line[0] for line in lines] == ["NAME", "vm", "worker"]
        kubectl.server.registry.modify(NODES, "", "vm", lambda body: body["spec"].update(unschedulable=True))
        assert (await process.stdout.readline()).decode().split()[1] == "Ready,SchedulingDisabled"
        process.terminate()
        await process.communicate()


async def test_api_resources(kubectl: Kubectl) -> None:
    shown = await kubectl("api-resources")
    for words in ("pods po true Pod", "nodes no false Node", "deployments deploy true Deployment"):
        name, short, scoped, kind = words.split()
        line = next(line.split() for line in shown.splitlines() if line.startswith(f"{name} "))
        assert (line[1], line[-2], line[-1]) == (short, scoped, kind)
    assert "bindings" in shown


async def test_auth_can_i(kubectl: Kubectl) -> None:
    assert (await kubectl("auth", "can-i", "create", "pods")).strip() == "yes"
    assert "no" in await kubectl("auth", "can-i", "list", "pods", "--as=someone", ok=False)
    await kubectl("create", "role", "reader", "--verb=list", "--resource=pods")
    await kubectl("create", "rolebinding", "someone", "--role=reader", "--user=someone")
    assert "yes" in await kubectl("auth", "can-i", "list", "pods", "--as=someone")
    assert "pods" in await kubectl("auth", "can-i", "--list", "--as=someone")
    refused = await kubectl("get", "nodes", "--as=someone", ok=False)
    assert 'User "someone" cannot list resource "nodes" in API group "" at the cluster scope' in refused


async def test_create_of_each_kind(kubectl: Kubectl) -> None:
    """Newer clients send these as protobuf."""
    await kubectl("create", "namespace", "team")
    await kubectl("create", "serviceaccount", "robot", "-n", "team")
    await kubectl("create", "configmap", "c", "--from-literal=a=b", "-n", "team")
    await kubectl("create", "deployment", "web", "--image=nginx:1", "-n", "team")
    await kubectl("create", "clusterrole", "r", "--verb=get", "--resource=nodes", "--resource-name=vm")
    await kubectl("create", "clusterrolebinding", "b", "--clusterrole=r", "--serviceaccount=team:robot")
    await kubectl("create", "priorityclass", "high", "--value=1000", "--description=for tests")
    assert (await kubectl.json("get", "cm", "c", "-n", "team"))["data"] == {"a": "b"}
    rules = (await kubectl.json("get", "clusterrole", "r"))["rules"]
    assert rules == [{"apiGroups": [""], "resourceNames": ["vm"], "resources": ["nodes"], "verbs": ["get"]}]
    assert (await kubectl.json("get", "priorityclass", "high"))["value"] == 1000
    as_robot = "--as=system:serviceaccount:team:robot"
    assert "vm" in await kubectl("get", "node", "vm", as_robot)
    assert "Forbidden" in await kubectl("get", "node", "worker", as_robot, ok=False)
    await kubectl("delete", "namespace", "team", "--timeout=30s")
    assert "NotFound" in await kubectl("get", "cm", "c", "-n", "team", ok=False)


async def test_deleting_a_deployment_deletes_its_pods(kubectl: Kubectl) -> None:
    await kubectl.apply(deployment("web"))
    await rolled_out(kubectl, "web")
    await kubectl("delete", "deploy", "web", "--timeout=30s")
    await kubectl("wait", "--for=delete", "pods", "--all", "--timeout=30s", ok=kubectl.minor >= 23)
    store = kubectl.server.store
    assert not store.items(DEPLOYMENTS.storage)
    assert not store.items(PODS.storage)


async def test_a_pod_that_was_deleted_comes_back(kubectl: Kubectl) -> None:
    await kubectl.apply(deployment("web", replicas=2))
    await rolled_out(kubectl, "web")
    registry = kubectl.server.registry
    delete(registry, PODS, "default", registry.store.items(PODS.storage)[0].key.name)
    await rolled_out(kubectl, "web")
    assert len((await kubectl.json("get", "pods"))["items"]) == 2


async def test_errors_are_told_in_words(kubectl: Kubectl) -> None:
    assert 'pods "nope" not found' in await kubectl("get", "pod", "nope", ok=False)
    wrong = pod("Wrong_Name")
    assert "metadata.name: Invalid value" in await kubectl(
        "create", "-f", "-", ok=False, given=json.dumps(wrong)
    )
    await kubectl("create", "-f", "-", given=json.dumps(config_map("c")))
    again = await kubectl("create", "-f", "-", ok=False, given=json.dumps(config_map("c")))
    assert 'configmaps "c" already exists' in again
