"""What the server answers has the shape of what a real one was recorded to answer: a test per document."""

from collections.abc import Callable
from typing import Any

import pytest

from colocate.clock import ManualClock
from colocate.lab.api import deletion, discovery, documents, pods, registry
from colocate.lab.api.objects import Object, at, parse_time
from colocate.lab.api.resources import EVENTS, NEVER_ANY, NODES, PODS
from colocate.lab.api.server import ApiServer

from .asking import JSON_PATCH, TABLE, Http
from .samples import NODES as NODES_PATH
from .samples import PODS as PODS_PATH
from .samples import bare, node, pod

Recorded = Callable[[str], Any]


def shape(value: Any) -> Any:
    """Field names and types, without the values."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def without_managed_fields(document: Any) -> Any:
    """Recorded objects but for what this server does not keep."""
    if isinstance(document, dict):
        return {key: without_managed_fields(one) for key, one in document.items() if key != "managedFields"}
    return [without_managed_fields(one) for one in document] if isinstance(document, list) else document


# Discovery


async def test_api(api: Http, recorded: Recorded) -> None:
    answer = await api.get("/api")
    assert shape(answer.body) == shape(recorded("discovery/api.json"))
    assert answer.body["serverAddressByClientCIDRs"][0]["serverAddress"] in api.url


async def test_apis(api: Http, recorded: Recorded) -> None:
    answer = await api.get("/apis")
    known = recorded("discovery/apis.json")
    assert shape(answer.body) == shape(known)
    groups = {group["name"]: group for group in known["groups"]}
    # The recorded cluster had no metrics-server; the group of one comes after all others.
    *listed, metrics = answer.body["groups"]
    assert metrics["name"] == "metrics.k8s.io"
    for group in listed:
        assert group["versions"][-1] in groups[group["name"]]["versions"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/v1", "api_v1"),
        ("/apis/apps/v1", "apis_apps_v1"),
        ("/apis/coordination.k8s.io/v1", "apis_coordination.k8s.io_v1"),
        ("/apis/events.k8s.io/v1", "apis_events.k8s.io_v1"),
        ("/apis/policy/v1", "apis_policy_v1"),
    ],
)
async def test_resources_are_listed_as_recorded(api: Http, recorded: Recorded, path: str, name: str) -> None:
    answer = (await api.get(path)).body
    known = recorded(f"discovery/{name}.json")
    assert list(answer) == list(known)
    assert answer["groupVersion"] == known["groupVersion"]
    entries = {entry["name"]: entry for entry in known["resources"]}
    assert answer["resources"]
    never_any = {resource.plural for resource in NEVER_ANY}
    for entry in answer["resources"]:
        recorded_entry = entries[entry["name"]]
        if entry["name"] in never_any:
            recorded_entry = {**recorded_entry, "verbs": ["get", "list", "watch"]}
        assert entry == recorded_entry
    names = [entry["name"] for entry in answer["resources"]]
    assert names == [name for name in entries if name in names]


async def test_version(api: Http, recorded: Recorded) -> None:
    answer = (await api.get("/version")).body
    known = recorded("discovery/version.json")
    assert shape(answer) == shape(known)
    assert (answer["major"], answer["minor"]) == (known["major"], known["minor"])
    assert answer["gitVersion"].endswith("+colocate-lab")


def test_every_served_group_can_be_discovered() -> None:
    for group in discovery.group_list()["groups"]:
        version = group["preferredVersion"]["version"]
        assert discovery.group(group["name"]) is not None
        assert discovery.resource_list(group["name"], version) is not None
    assert documents.find("GET", "/apis/nope", "", "") is None


# Status answers


async def test_not_found(api: Http, recorded: Recorded) -> None:
    answer = await api.get(f"{PODS_PATH}/nope")
    assert answer.code == 404
    assert answer.body == recorded("not-found.json")
    assert shape(answer.body) == shape(recorded("not-found.json"))


async def test_forbidden(api: Http, server: ApiServer, recorded: Recorded) -> None:
    from colocate.lab.api.users import known

    server.authenticator.add_token("kubelet", known("system:node:vm", "system:nodes"))
    path = "/api/v1/namespaces/default/configmaps"
    answer = await api.as_bearer("kubelet").post(path, {"metadata": {"name": "x"}})
    document = recorded("forbidden.json")
    assert answer.code == 403
    # The recorded reason after the last colon is the node authorizer's, which is not here.
    document["message"] = document["message"].rpartition(":")[0]
    assert answer.body == document


async def test_json_patch_test_failed(api: Http, recorded: Recorded) -> None:
    await api.post(NODES_PATH, node("vm"))
    patch = [{"op": "test", "path": "/metadata/name", "value": "other"}]
    answer = await api.patch(f"{NODES_PATH}/vm", patch, JSON_PATCH)
    assert answer.code == 422
    assert answer.body == recorded("json-patch-test-failed.json")


async def test_binding_conflict(api: Http, recorded: Recorded) -> None:
    await api.post(PODS_PATH, pod("s1", nodeName="k8s-node-0004"))
    binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "other"}}
    answer = await api.post(f"{PODS_PATH}/s1/binding", binding)
    assert answer.code == 409
    assert answer.body == recorded("binding-conflict.json")


async def test_eviction_ok(api: Http, recorded: Recorded) -> None:
    await api.post(PODS_PATH, pod("web", nodeName="vm"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}}
    answer = await api.post(f"{PODS_PATH}/web/eviction", eviction)
    assert answer.code == 201
    assert answer.body == recorded("eviction-ok.json")


# Objects


async def test_node(api: Http, recorded: Recorded) -> None:
    document = recorded("node.json")
    created = await api.post(NODES_PATH, {**document, "metadata": bare(document)["metadata"]})
    assert created.code == 201
    answer = (await api.get(f"{NODES_PATH}/vm")).body
    assert shape(without_managed_fields(answer)) == shape(without_managed_fields(document))
    assert answer["status"] == document["status"]


@pytest.mark.parametrize("name", ["pod-running.json", "pod-unschedulable.json", "pod-admission-error.json"])
async def test_pod(api: Http, recorded: Recorded, name: str) -> None:
    document = recorded(name)
    written = at(document, "metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
    await api.ask("POST", PODS_PATH, written.encode())
    path = f"{PODS_PATH}/{document['metadata']['name']}"
    await api.patch(path, {"metadata": {"annotations": document["metadata"]["annotations"]}})
    answer = await api.patch(f"{path}/status", {"status": document["status"]})
    assert shape(answer.body) == shape(without_managed_fields(document))
    assert answer.body["spec"] == document["spec"]
    assert answer.body["status"] == document["status"]


async def test_pod_list(api: Http, server: ApiServer, recorded: Recorded) -> None:
    document = recorded("pod-list.json")
    for item in document["items"]:
        created = server.registry.create(PODS, "default", bare(item))
        server.registry.modify(PODS, "default", created.key.name, _set_status(item), "status")
    answer = (await api.get(PODS_PATH)).body
    assert list(answer) == list(document)
    assert shape(answer["metadata"]) == shape(document["metadata"])
    assert shape(answer["items"]) == shape(without_managed_fields(document["items"]))


def _set_status(item: Object) -> Callable[[Object], None]:
    def change(body: Object) -> None:
        body["status"] = item["status"]

    return change


@pytest.mark.parametrize("name", ["events-admission-error.json", "events-unschedulable.json"])
async def test_events(api: Http, recorded: Recorded, name: str) -> None:
    document = recorded(name)
    event = document["items"][0]
    path = "/api/v1/namespaces/default/events"
    await api.post(path, bare(event) | {"kind": "Event", "apiVersion": "v1"})
    answer = (await api.get(path)).body
    assert shape(answer) == shape(without_managed_fields(document))
    assert bare(answer["items"][0]) == bare(event)


# Tables


async def test_nodes_table(api: Http, server: ApiServer, clock: ManualClock, recorded: Recorded) -> None:
    document = recorded("table/nodes.json")
    for number in range(1000):
        name = f"k8s-node-{number + 1:04}"
        server.registry.create(NODES, "", _table_node(name, number))
    await clock.advance(66 * 60)
    answer = (await api.get(f"{NODES_PATH}?limit=2", accept=TABLE)).body
    assert _table_shape(answer) == _table_shape(document)
    assert [row["cells"] for row in answer["rows"]] == [row["cells"] for row in document["rows"]]
    assert answer["metadata"]["remainingItemCount"] == document["metadata"]["remainingItemCount"]


def _table_node(name: str, number: int) -> Object:
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {
        "metadata": {"name": name, "labels": labels | {"topology.kubernetes.io/zone": f"z{number}"}},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.34.11", "containerRuntimeVersion": "containerd://1.6.20"},
        },
    }


def _table_shape(table: Any) -> Any:
    """Everything but the words of the descriptions, which are this project's own."""
    plain = without_managed_fields(table)
    columns = [
        (column["name"], column["type"], column["format"], column["priority"], list(column))
        for column in plain.pop("columnDefinitions")
    ]
    return shape(plain), columns


async def test_pods_table(api: Http, server: ApiServer, clock: ManualClock, recorded: Recorded) -> None:
    document = recorded("table/pods.json")
    for row in document["rows"]:
        _table_pod(server, row, clock.time())
    for name in ("x1", "x2", "x3"):
        await api.post(PODS_PATH, pod(name))
    answer = (await api.get(f"{PODS_PATH}?limit=3", accept=TABLE)).body
    assert _table_shape(answer) == _table_shape(document)
    for row, known in zip(answer["rows"], document["rows"], strict=True):
        assert row.get("conditions") == known.get("conditions")
        assert row["cells"][:4] + row["cells"][5:] == known["cells"][:4] + known["cells"][5:]


def _table_pod(server: ApiServer, row: Any, now: float) -> None:
    name, ready, word, restarts, _, ip, node_name, *_ = row["cells"]
    of = int(ready.partition("/")[2])
    count, _, ago = restarts.partition(" ")
    names = [f"c{number}" for number in range(of)]
    annotations = dict.fromkeys(row["object"]["metadata"]["annotations"], "x")
    server.registry.create(
        PODS,
        "default",
        {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": node_name, "containers": [{"name": one, "image": "i"} for one in names]},
        },
    )
    running = word == "Running"
    state: Object = {"running": {}} if running else {"terminated": {"exitCode": 0, "reason": word}}
    last: Object = {"terminated": {"finishedAt": _iso(now - 451)}} if ago else {}
    statuses = [
        {"name": one, "ready": running, "restartCount": int(count), "state": state, "lastState": last}
        for one in names[:1]
    ]
    status = {"phase": "Running" if running else "Succeeded", "podIP": ip, "containerStatuses": statuses}
    server.registry.modify(PODS, "default", name, _set_status({"status": status}), "status")


def _iso(seconds: float) -> str:
    from colocate.lab.api.objects import rfc3339

    return rfc3339(seconds)


async def test_events_table(api: Http, server: ApiServer, clock: ManualClock, recorded: Recorded) -> None:
    from colocate.lab.api.objects import rfc3339_micro

    document = recorded("table/events.json")
    for number, row in enumerate([*document["rows"], document["rows"][0]]):
        _, type, reason, about, _, source, message, _, _, name = row["cells"]
        component, _, instance = source.partition(", ")
        body = {
            "metadata": {"name": name if number < 2 else "ex1-2"},
            "involvedObject": {
                "kind": "Pod",
                "name": about.partition("/")[2],
                "namespace": "default",
            },
            "reason": reason,
            "message": message,
            "type": type,
            "eventTime": rfc3339_micro(clock.time()),
            "reportingComponent": component,
            "reportingInstance": instance,
        }
        server.registry.create(EVENTS, "default", body)
    await clock.advance(20 * 60)
    answer = (await api.get("/api/v1/namespaces/default/events?limit=2", accept=TABLE)).body
    assert _table_shape(answer) == _table_shape(document)
    assert [row["cells"] for row in answer["rows"]] == [row["cells"] for row in document["rows"]]


# Watch


async def test_watch_of_a_pods_life(api: Http, server: ApiServer, recorded: Recorded) -> None:
    document = recorded("watch-pods.jsonl")
    first = document[0]["object"]
    path = "/api/v1/pods?fieldSelector=spec.nodeName%3Dvm&resourceVersion=" + str(server.store.revision)
    async with api.watch(path) as watching:
        _live(server.registry, document)
        for known in document:
            line = await watching.next()
            assert line["type"] == known["type"]
            assert shape(line) == shape(without_managed_fields(known))
            for field in ("generation", "deletionGracePeriodSeconds"):
                assert line["object"]["metadata"].get(field) == known["object"]["metadata"].get(field)
            assert line["object"]["spec"] == first["spec"]


def _live(api: registry.ObjectRegistry, document: list[Any]) -> None:
    """Do to a pod what was done to the recorded one."""
    api.create(PODS, "default", bare(document[0]["object"]))
    for line in document[1:5]:
        api.modify(PODS, "default", "short", _set_status(line["object"]), "status")
    deletion.delete(api, PODS, "default", "short")


async def test_binding_tells_the_pod_that_it_is_scheduled(server: ApiServer) -> None:
    server.registry.create(PODS, "default", bare(pod("p")))
    pods.bind(server.registry, "default", "p", {"target": {"name": "vm"}}, dry_run=False)
    stored = server.registry.get(PODS, "default", "p").body
    assert stored["spec"]["nodeName"] == "vm"
    (condition,) = stored["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    assert parse_time(condition["lastTransitionTime"]) is not None
