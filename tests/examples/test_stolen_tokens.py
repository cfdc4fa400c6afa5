"""What somebody gets who takes the token of a component out of its pod: the manifests of examples/ decide it."""

import itertools
from typing import Any

import pytest
from tests.cluster.serving import connect
from tests.support.rights import account_token, apply, documents

from colocate.clock import SystemClock
from colocate.cluster.errors import Forbidden
from colocate.cluster.resources import NODES, PODS
from colocate.lab.api.rbac import Deed
from colocate.lab.api.resources import NAMESPACES
from colocate.lab.api.resources import NODES as LAB_NODES
from colocate.lab.api.resources import PODS as LAB_PODS
from colocate.lab.api.server import ApiServer
from colocate.lab.api.users import service_account

SOLD_TO = "colocation-memory"
AGENT = ["memory/rbac.yaml", "memory/namespace.yaml"]
EXTENDER = ["scheduler/rbac.yaml"]
PRIVILEGED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "root-of-the-node"},
    "spec": {
        "hostPID": True,
        "containers": [{"name": "main", "image": "x", "securityContext": {"privileged": True}}],
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
    },
}
POD: dict[str, Any] = {
    "metadata": {"name": "victim"},
    "spec": {"nodeName": "worker", "containers": [{"name": "main", "image": "x"}]},
}


def everywhere(server: ApiServer) -> list[str]:
    for name in ("tenant", SOLD_TO):
        if server.registry.find(NAMESPACES, "", name) is None:
            server.registry.create(NAMESPACES, "", {"metadata": {"name": name}})
    return ["default", "kube-system", "tenant", SOLD_TO]


@pytest.mark.parametrize(
    ("account", "files"),
    [("colocate-agent", AGENT), ("colocate-gpus", ["gpus/rbac.yaml"]), ("colocate-scheduler", EXTENDER)],
    ids=["agent", "gpus", "extender"],
)
async def test_a_stolen_token_creates_no_privileged_pod_in_any_namespace(
    server: ApiServer, account: str, files: list[str]
) -> None:
    apply(server, *files)
    async with connect(server.url, SystemClock(), token=account_token(server, account)) as thief:
        for namespace in everywhere(server):
            with pytest.raises(Forbidden):
                await thief.create(PODS, PRIVILEGED, namespace)
            assert server.registry.find(LAB_PODS, namespace, "root-of-the-node") is None


async def test_a_stolen_token_of_the_mover_creates_pods_in_its_namespace_alone(server: ApiServer) -> None:
    apply(server, *AGENT, "memory/mover.yaml")
    async with connect(server.url, SystemClock(), token=account_token(server, "colocate-agent")) as thief:
        for namespace in set(everywhere(server)) - {SOLD_TO}:
            with pytest.raises(Forbidden):
                await thief.create(PODS, PRIVILEGED, namespace)
        await thief.create(PODS, POD, SOLD_TO)
    # There it is the namespace's own admission that keeps privileged ones out.
    stored = server.registry.find(NAMESPACES, "", SOLD_TO)
    assert stored is not None
    assert stored.body["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"


async def test_a_stolen_token_of_the_agent_evicts_nobody_whom_no_memory_was_sold_to(
    server: ApiServer,
) -> None:
    apply(server, *AGENT)
    async with connect(server.url, SystemClock(), token=account_token(server, "colocate-agent")) as thief:
        for namespace in everywhere(server):
            server.registry.create(LAB_PODS, namespace, POD)
            if namespace == SOLD_TO:
                await thief.evict("victim", namespace)
                continue
            with pytest.raises(Forbidden):
                await thief.evict("victim", namespace)
            with pytest.raises(Forbidden):
                await thief.delete(PODS, "victim", namespace)


async def test_a_stolen_token_of_the_extender_makes_no_node_look_full(server: ApiServer) -> None:
    server.registry.create(LAB_NODES, "", {"metadata": {"name": "worker"}})
    apply(server, *EXTENDER)
    taint = {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}
    async with connect(server.url, SystemClock(), token=account_token(server, "colocate-scheduler")) as thief:
        with pytest.raises(Forbidden):
            await thief.patch(NODES, "worker", taint)


COVETED = [
    ("", "secrets", ""),
    ("", "configmaps", ""),
    ("", "pods", "exec"),
    ("", "pods", "ephemeralcontainers"),
    ("", "pods", "status"),
    ("", "pods", "log"),
    ("", "nodes", "proxy"),
    ("", "nodes", "status"),
    ("", "serviceaccounts", "token"),
    ("", "bindings", ""),
    ("apps", "daemonsets", ""),
    ("rbac.authorization.k8s.io", "rolebindings", ""),
    ("rbac.authorization.k8s.io", "clusterrolebindings", ""),
    ("certificates.k8s.io", "certificatesigningrequests", ""),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", ""),
]

ALLOWED = dict.fromkeys(("colocate-gpus", "colocate-placer"), ("patch", "nodes", "status"))
"""What a component cannot do without; an admission policy beside its rights keeps it to its own node."""


@pytest.mark.parametrize(
    ("account", "files"),
    [
        ("colocate-agent", [*AGENT, "memory/mover.yaml"]),
        ("colocate-gpus", ["gpus/rbac.yaml"]),
        ("colocate-placer", ["placement/publish-rbac.yaml"]),
        (
            "colocate-scheduler",
            [*EXTENDER, "scheduler/taints-rbac.yaml", "scheduler/metrics-api-rbac.yaml"],
        ),
    ],
    ids=["agent", "gpus", "placer", "scheduler"],
)
def test_not_even_with_every_file_applied_does_a_token_lead_to_more_rights(
    server: ApiServer, account: str, files: list[str]
) -> None:
    apply(server, *files)
    thief = service_account("kube-system", account)
    verbs = ("get", "list", "create", "update", "patch", "delete", "bind", "escalate", "impersonate")
    for (group, resource, part), verb, namespace in itertools.product(
        COVETED, verbs, ["", *everywhere(server)]
    ):
        deed = Deed(verb, group=group, resource=resource, subresource=part, namespace=namespace)
        if (verb, resource, part) != ALLOWED.get(account):
            assert not server.authorizer.allows(thief, deed), deed


def test_the_lease_is_all_of_kube_system_that_a_scheduler_may_write(server: ApiServer) -> None:
    apply(server, *EXTENDER, "scheduler/taints-rbac.yaml")
    thief = service_account("kube-system", "colocate-scheduler")

    def may(verb: str, name: str) -> bool:
        deed = Deed(verb, "coordination.k8s.io", "leases", namespace="kube-system", name=name)
        return server.authorizer.allows(thief, deed)

    assert may("update", "colocate-load-taints")
    assert not may("update", "kube-scheduler")
    assert not may("create", "")
    assert not may("create", "kube-scheduler")


def test_a_gpu_scheduler_binds_pods_and_may_do_no_more_with_them_than_its_file_says(
    server: ApiServer,
) -> None:
    apply(server, *EXTENDER, "scheduler/gpus-rbac.yaml")
    thief = service_account("kube-system", "colocate-scheduler")

    def may(verb: str, part: str = "") -> bool:
        deed = Deed(verb, resource="pods", subresource=part, namespace="default", name="p")
        return server.authorizer.allows(thief, deed)

    assert may("create", "binding")
    assert may("patch")
    for verb, part in (
        ("create", ""),
        ("delete", ""),
        ("update", ""),
        ("create", "exec"),
        ("patch", "status"),
    ):
        assert not may(verb, part)
    lease = Deed("update", "coordination.k8s.io", "leases", namespace="kube-system", name="kube-scheduler")
    assert not server.authorizer.allows(thief, lease)


def test_of_all_secrets_a_gpu_scheduler_has_its_own_key_and_no_agent_has_any(server: ApiServer) -> None:
    """A right to create Secrets would lead to the tokens of other accounts of the namespace."""
    apply(server, *EXTENDER, "scheduler/gpus-rbac.yaml", "gpus/rbac.yaml", "gpus/pods-rbac.yaml")
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete")

    def may(account: str, name: str, namespace: str = "kube-system") -> set[str]:
        thief = service_account("kube-system", account)
        deeds = {verb: Deed(verb, resource="secrets", namespace=namespace, name=name) for verb in verbs}
        return {verb for verb, deed in deeds.items() if server.authorizer.allows(thief, deed)}

    assert may("colocate-scheduler", "colocate-gpu-key") == {"get", "update"}
    assert may("colocate-scheduler", "") == set()
    assert may("colocate-scheduler", "another") == set()
    assert may("colocate-scheduler", "colocate-gpu-key", "default") == set()
    assert may("colocate-gpus", "colocate-gpu-key") == set()


def test_no_manifest_holds_a_key() -> None:
    (secret,) = (each for each in documents("scheduler/gpus-rbac.yaml") if each["kind"] == "Secret")
    assert not {"data", "stringData"} & secret.keys()


def test_no_manifest_binds_a_right_to_change_pods_cluster_wide() -> None:
    files = [*AGENT, "memory/mover.yaml", *EXTENDER, "scheduler/taints-rbac.yaml"]
    every = documents(*files, "scheduler/metrics-api-rbac.yaml")
    roles = {each["metadata"]["name"]: each["rules"] for each in every if each["kind"] == "ClusterRole"}
    bound = [each["roleRef"]["name"] for each in every if each["kind"] == "ClusterRoleBinding"]
    for rule in (rule for name in bound for rule in roles[name]):
        if any(resource.partition("/")[0] == "pods" for resource in rule["resources"]):
            assert set(rule["verbs"]) <= {"get", "list", "watch"}
        assert "*" not in (*rule["resources"], *rule["verbs"], *rule["apiGroups"])
