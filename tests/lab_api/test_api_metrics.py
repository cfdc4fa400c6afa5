"""The metrics API, as a metrics-server answers it."""

from typing import Any

import pytest

from colocate.clock import ManualClock
from colocate.lab.api.metrics import MetricsUsage, NodeReading, PodReading
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.api.server import ApiServer
from colocate.lab.api.users import known

from .asking import TABLE, Http
from .samples import bare, node, pod

ROOT = "/apis/metrics.k8s.io/v1beta1"
POD_PATH = f"{ROOT}/namespaces/default/pods"
MEASURED = 1_700_000_000 - 5
NOW = "2023-11-14T22:13:20Z"
THEN = "2023-11-14T22:13:15Z"
CPU, MEMORY = "lab.colocate.dev/usage-cpu", "lab.colocate.dev/usage-memory"


class Measurements:
    """A meter that says what a test has written."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeReading] = {}
        self.pods: dict[str, PodReading] = {}

    def node(self, name: str) -> NodeReading | None:
        return self.nodes.get(name)

    def pod(self, uid: str) -> PodReading | None:
        return self.pods.get(uid)


class Measured:
    """A cluster with nodes and pods that are measured, and some that are not."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.meter = server.metrics.meter = Measurements()

    def node(self, name: str, *used: float, told: dict[str, str] | None = None, **labels: str) -> None:
        body = bare(node(name, **labels))
        body["metadata"]["annotations"] = told or {}
        self.server.registry.create(NODES, "", body)
        if used:
            self.meter.nodes[name] = NodeReading(MEASURED, 15.0, MetricsUsage(used[0], int(used[1])))

    def pod(self, name: str, namespace: str = "default", **containers: tuple[float, int]) -> None:
        stored = self.server.registry.create(PODS, namespace, bare(pod(name)))
        if containers:
            uses = {container: MetricsUsage(*used) for container, used in containers.items()}
            self.meter.pods[stored.body["metadata"]["uid"]] = PodReading(MEASURED, 75.064, uses)


@pytest.fixture
def cluster(server: ApiServer) -> Measured:
    return Measured(server)


def names(body: Any) -> list[str]:
    return [item["metadata"]["name"] for item in body["items"]]


async def test_it_is_discovered(api: Http) -> None:
    served = {"groupVersion": "metrics.k8s.io/v1beta1", "version": "v1beta1"}
    group = {"name": "metrics.k8s.io", "versions": [served], "preferredVersion": served}
    assert (await api.get("/apis")).body["groups"][-1] == group
    assert (await api.get("/apis/metrics.k8s.io")).body == {"kind": "APIGroup", "apiVersion": "v1"} | group
    verbs = {"verbs": ["get", "list"]}
    assert (await api.get(ROOT)).body == {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "metrics.k8s.io/v1beta1",
        "resources": [
            {"name": "nodes", "singularName": "", "namespaced": False, "kind": "NodeMetrics"} | verbs,
            {"name": "pods", "singularName": "", "namespaced": True, "kind": "PodMetrics"} | verbs,
        ],
    }


async def test_a_node_is_shown_with_its_labels_times_and_usage(api: Http, cluster: Measured) -> None:
    cluster.node("vm", 0.329087452, 2748180 * 1024, disk="fast")
    shown = {
        "metadata": {"name": "vm", "creationTimestamp": NOW, "labels": {"disk": "fast"}},
        "timestamp": THEN,
        "window": "15s",
        "usage": {"cpu": "329087452n", "memory": "2748180Ki"},
    }
    version = {"apiVersion": "metrics.k8s.io/v1beta1"}
    assert (await api.get(f"{ROOT}/nodes/vm")).body == {"kind": "NodeMetrics"} | version | shown
    listed = (await api.get(f"{ROOT}/nodes")).body
    assert listed == {"kind": "NodeMetricsList"} | version | {"metadata": {}, "items": [shown]}


async def test_a_pod_is_shown_by_container(api: Http, cluster: Measured) -> None:
    cluster.pod("web", main=(0.25, 7 << 20), sidecar=(0.0, 512))
    shown = {
        "metadata": {
            "name": "web",
            "namespace": "default",
            "creationTimestamp": NOW,
            "labels": {"app": "web"},
        },
        "timestamp": THEN,
        "window": "1m15.064s",
        "containers": [
            {"name": "main", "usage": {"cpu": "250m", "memory": "7Mi"}},
            {"name": "sidecar", "usage": {"cpu": "0", "memory": "512"}},
        ],
    }
    version = {"apiVersion": "metrics.k8s.io/v1beta1"}
    assert (await api.get(f"{POD_PATH}/web")).body == {"kind": "PodMetrics"} | version | shown
    listed = {"kind": "PodMetricsList"} | version | {"metadata": {}, "items": [shown]}
    assert (await api.get(POD_PATH)).body == listed
    assert (await api.get(f"{ROOT}/pods")).body == listed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("nodes", ["a", "b"]),
        ("nodes?limit=1", ["a", "b"]),
        ("nodes?labelSelector=disk%3Dfast", ["b"]),
        ("nodes?labelSelector=disk%21%3Dfast", ["a"]),
        ("nodes?fieldSelector=metadata.name%3Da", ["a"]),
        ("pods", ["db", "web", "dns"]),
        ("pods?labelSelector=app+in+(dns,web)", ["web", "dns"]),
        ("namespaces/default/pods", ["db", "web"]),
        ("namespaces/default/pods?labelSelector=app%3Dweb", ["web"]),
        ("namespaces/default/pods?fieldSelector=metadata.name%3Ddb", ["db"]),
        ("namespaces/kube-system/pods", ["dns"]),
        ("namespaces/nowhere/pods", []),
    ],
)
async def test_lists_are_sorted_selected_and_leave_out_what_is_not_measured(
    api: Http, cluster: Measured, path: str, expected: list[str]
) -> None:
    cluster.node("b", 1, 1, disk="fast")
    cluster.node("a", 1, 1)
    cluster.node("unknown", disk="fast")
    for name in ("web", "db"):
        cluster.pod(name, main=(1, 1))
    cluster.pod("dns", "kube-system", main=(1, 1))
    cluster.pod("new")
    answer = await api.get(f"{ROOT}/{path}")
    assert (answer.code, names(answer.body)) == (200, expected)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nodes/gone", 'nodes "gone" not found'),
        ("nodes/unknown", 'nodemetrics.metrics.k8s.io "unknown" not found'),
        ("namespaces/default/pods/gone", 'pods "gone" not found'),
        ("namespaces/kube-system/pods/new", 'pods "new" not found'),
        ("namespaces/default/pods/new", 'podmetrics.metrics.k8s.io "default/new" not found'),
    ],
)
async def test_what_has_no_metrics_is_not_found(api: Http, cluster: Measured, path: str, words: str) -> None:
    cluster.node("unknown")
    cluster.pod("new")
    answer = await api.get(f"{ROOT}/{path}")
    assert (answer.code, answer.body["reason"], answer.body["message"]) == (404, "NotFound", words)


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        ({}, {"cpu": "500m", "memory": "1Gi"}),
        ({CPU: "3.5"}, {"cpu": "3500m", "memory": "1Gi"}),
        ({MEMORY: "15Gi"}, {"cpu": "500m", "memory": "15Gi"}),
        ({CPU: "0", MEMORY: "1000000"}, {"cpu": "0", "memory": "1000000"}),
        ({CPU: "1n", MEMORY: "1.5Gi"}, {"cpu": "1n", "memory": "1536Mi"}),
        ({CPU: "lots"}, None),
        ({MEMORY: ""}, None),
        ({MEMORY: "-1Gi"}, None),
        ({MEMORY: "9" * 10_000}, None),
        ({CPU: "1", MEMORY: "none"}, None),
    ],
)
async def test_annotations_say_what_a_node_uses_or_that_it_is_unknown(
    api: Http, cluster: Measured, told: dict[str, str], usage: dict[str, str] | None
) -> None:
    cluster.node("vm", 0.5, 1 << 30, told=told)
    items = (await api.get(f"{ROOT}/nodes")).body["items"]
    assert [item["usage"] for item in items] == ([usage] if usage else [])


async def test_a_node_that_is_not_measured_uses_what_it_is_told_now(
    api: Http, cluster: Measured, clock: ManualClock
) -> None:
    cluster.node("vm", told={MEMORY: "1Gi"})
    await clock.advance(60)
    [item] = (await api.get(f"{ROOT}/nodes")).body["items"]
    assert (item["timestamp"], item["window"]) == ("2023-11-14T22:14:20Z", "15s")
    assert item["usage"] == {"cpu": "0", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "nodes?watch=1"),
        ("GET", "pods?watch=1"),
        ("POST", "nodes"),
        ("DELETE", "nodes/vm"),
        ("PATCH", "nodes/vm"),
        ("PUT", "namespaces/default/pods/web"),
        ("DELETE", "namespaces/default/pods"),
    ],
)
async def test_it_can_be_neither_watched_nor_written(
    api: Http, cluster: Measured, method: str, path: str
) -> None:
    cluster.node("vm", 1, 1)
    cluster.pod("web", main=(1, 1))
    answer = await api.ask(method, f"{ROOT}/{path}", {} if method != "GET" else None)
    assert (answer.code, answer.body["reason"]) == (405, "MethodNotAllowed")


async def test_a_table_adds_up_the_containers(api: Http, cluster: Measured) -> None:
    cluster.node("vm", 1.5, 3 << 30)
    cluster.pod("web", main=(0.25, 7 << 20), sidecar=(0.5, 1 << 20))
    for path, cells in (
        (f"{ROOT}/nodes/vm", ["vm", "1500m", "3Gi", "15s"]),
        (f"{ROOT}/pods", ["web", "750m", "8Mi", "1m15.064s"]),
    ):
        table = (await api.get(path, accept=TABLE)).body
        assert [column["name"] for column in table["columnDefinitions"]] == [
            "Name",
            "cpu",
            "memory",
            "Window",
        ]
        assert [row["cells"] for row in table["rows"]] == [cells]
        assert table["metadata"] == {}


async def test_asking_takes_the_right_to(api: Http, cluster: Measured) -> None:
    cluster.node("vm", 1, 1)
    cluster.server.authenticator.add_token("t", known("ann"))
    ann = api.as_bearer("t")
    answer = await ann.get(f"{ROOT}/nodes")
    assert answer.code == 403
    assert 'cannot list resource "nodes" in API group "metrics.k8s.io"' in answer.body["message"]
    binding = {
        "metadata": {"name": "ann"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "ann"}],
    }
    await api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    assert (await ann.get(f"{ROOT}/nodes")).code == 200
    assert (await ann.get("/api/v1/nodes")).code == 403
