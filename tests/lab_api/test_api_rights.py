"""Who may do what: tokens, certificates, roles, and the words of a refusal."""

import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from colocate.clock import ManualClock
from colocate.lab.api.rbac import Authorizer, Deed
from colocate.lab.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    SERVICE_ACCOUNTS,
)
from colocate.lab.api.server import ApiServer
from colocate.lab.api.users import User, known, service_account
from tests.support.rights import bind_role

from .asking import Http
from .conftest import serving
from .samples import CONFIG_MAPS, NODES, PODS, config_map, node, pod

ANN = known("ann", "team")
ROBOT = service_account("default", "robot")
ACCOUNT = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}


def rule(verbs: str, resources: str, group: str = "", **more: Any) -> dict[str, Any]:
    return {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split(), **more}


def grant(server: ApiServer, subject: dict[str, str], *rules: dict[str, Any], namespace: str = "") -> None:
    """Bind a new role to a subject, in a namespace or cluster-wide."""
    bind_role(server.registry, f"r{server.registry.store.revision}", rules, subject, namespace)


USER = {"kind": "User", "name": "ann"}
GROUP = {"kind": "Group", "name": "team"}

TABLE = [
    (USER, [rule("get", "pods")], Deed("get", resource="pods", namespace="x", name="p"), True),
    (USER, [rule("get", "pods")], Deed("list", resource="pods"), False),
    (USER, [rule("get", "pods")], Deed("get", resource="nodes"), False),
    (USER, [rule("get", "pods")], Deed("get", resource="pods", subresource="status"), False),
    (USER, [rule("patch", "nodes/status")], Deed("patch", resource="nodes", subresource="status"), True),
    (USER, [rule("patch", "nodes/status")], Deed("patch", resource="nodes"), False),
    (USER, [rule("patch", "*/status")], Deed("patch", resource="nodes", subresource="status"), True),
    (USER, [rule("get", "*")], Deed("get", resource="pods", subresource="log"), True),
    (USER, [rule("*", "pods")], Deed("deletecollection", resource="pods"), True),
    (USER, [rule("get", "deployments")], Deed("get", group="apps", resource="deployments"), False),
    (USER, [rule("get", "deployments", "apps")], Deed("get", group="apps", resource="deployments"), True),
    (USER, [rule("get", "deployments", "*")], Deed("get", group="apps", resource="deployments"), True),
    (GROUP, [rule("get", "pods")], Deed("get", resource="pods"), True),
    ({"kind": "Group", "name": "other"}, [rule("get", "pods")], Deed("get", resource="pods"), False),
    (ACCOUNT, [rule("get", "pods")], Deed("get", resource="pods"), False),
    (USER, [rule("get", "nodes", resourceNames=["vm"])], Deed("get", resource="nodes", name="vm"), True),
    (USER, [rule("get", "nodes", resourceNames=["vm"])], Deed("get", resource="nodes", name="x"), False),
    (USER, [rule("list", "nodes", resourceNames=["vm"])], Deed("list", resource="nodes"), False),
    (USER, [{"verbs": ["get"], "nonResourceURLs": ["/logs/*"]}], Deed("get", path="/logs/a"), True),
    (USER, [{"verbs": ["get"], "nonResourceURLs": ["/logs"]}], Deed("get", path="/logs/a"), False),
    (USER, [{"verbs": ["get"], "nonResourceURLs": ["*"]}], Deed("get", resource="pods"), False),
    (USER, [rule("get", "pods"), rule("list", "pods")], Deed("list", resource="pods"), True),
]


@pytest.mark.parametrize(("subject", "rules", "deed", "allowed"), TABLE)
def test_rules(server: ApiServer, subject: Any, rules: Any, deed: Deed, allowed: bool) -> None:
    grant(server, subject, *rules)
    assert Authorizer(server.store).allows(ANN, deed) is allowed
    assert Authorizer(server.store).allows(known("bob"), deed) is False


def test_a_role_holds_in_its_namespace_alone(server: ApiServer) -> None:
    grant(server, ACCOUNT, rule("get", "pods"), namespace="default")
    authorizer = Authorizer(server.store)
    assert authorizer.allows(ROBOT, Deed("get", resource="pods", namespace="default"))
    assert not authorizer.allows(ROBOT, Deed("get", resource="pods", namespace="kube-system"))
    assert not authorizer.allows(ROBOT, Deed("get", resource="pods"))


def test_a_binding_holds_until_it_is_gone(server: ApiServer) -> None:
    grant(server, USER, rule("get", "pods"))
    deed = Deed("get", resource="pods")
    assert server.authorizer.allows(ANN, deed)
    server.store.remove(server.store.items(CLUSTER_ROLES.storage)[0].key)
    for stored in server.store.items(CLUSTER_ROLE_BINDINGS.storage):
        server.store.remove(stored.key)
    assert not server.authorizer.allows(ANN, deed)
    assert server.authorizer.allows(known("root", "system:masters"), deed)


async def test_a_component_can_do_no_more_than_its_role_says(api: Http, server: ApiServer) -> None:
    """The agent that cleans up a resource needs this, and nothing else."""
    server.authenticator.add_token("t", ROBOT)
    robot = api.as_bearer("t")
    await api.post(NODES, node("vm"))
    grant(server, ACCOUNT, rule("get", "nodes"), rule("patch", "nodes/status"))
    assert (await robot.get(f"{NODES}/vm")).code == 200
    assert (await robot.patch(f"{NODES}/vm/status", {"status": {"capacity": {"a.b/c": "1"}}})).code == 200
    for method, path in (("GET", NODES), ("PATCH", f"{NODES}/vm"), ("DELETE", f"{NODES}/vm"), ("GET", PODS)):
        assert (await robot.ask(method, path)).code == 403


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        (
            "GET",
            "/api/v1/nodes/vm",
            'nodes "vm" is forbidden: User "ann" cannot get resource "nodes" in API group "" '
            "at the cluster scope",
        ),
        (
            "GET",
            "/apis/apps/v1/namespaces/x/deployments",
            'deployments.apps is forbidden: User "ann" cannot list resource "deployments" '
            'in API group "apps" in the namespace "x"',
        ),
        (
            "PATCH",
            "/api/v1/nodes/vm/status",
            'nodes "vm" is forbidden: User "ann" cannot patch resource "nodes/status" in API group "" '
            "at the cluster scope",
        ),
        ("GET", "/metrics", 'forbidden: User "ann" cannot get path "/metrics"'),
        (
            "GET",
            "/api/v1/namespaces/x",
            'namespaces "x" is forbidden: User "ann" cannot get resource "namespaces" in API group "" '
            'in the namespace "x"',
        ),
        (
            "GET",
            "/api/v1/pods?watch=true",
            'pods is forbidden: User "ann" cannot watch resource "pods" in API group "" at the cluster scope',
        ),
    ],
)
async def test_the_words_of_a_refusal(
    api: Http, server: ApiServer, method: str, path: str, words: str
) -> None:
    server.authenticator.add_token("t", ANN)
    answer = await api.as_bearer("t").ask(method, path)
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["message"] == words


async def test_a_list_of_one_name_needs_the_right_to_that_name(api: Http, server: ApiServer) -> None:
    server.authenticator.add_token("t", ANN)
    grant(server, USER, rule("list watch", "nodes", resourceNames=["vm"]))
    ann = api.as_bearer("t")
    assert (await ann.get(f"{NODES}?fieldSelector=metadata.name%3Dvm")).code == 200
    assert (await ann.get(f"{NODES}?fieldSelector=metadata.name%3Dother")).code == 403
    assert (await ann.get(NODES)).code == 403


async def test_bad_and_missing_credentials(api: Http) -> None:
    refused = await api.as_bearer("nonsense").get(PODS)
    assert (refused.code, refused.body["reason"], refused.body["message"]) == (
        401,
        "Unauthorized",
        "Unauthorized",
    )
    anonymous = api.as_bearer("")
    assert 'User "system:anonymous" cannot list' in (await anonymous.get(PODS)).body["message"]
    assert (await anonymous.get("/healthz")).body == b"ok"
    assert (await anonymous.get("/version")).code == 200
    assert (await anonymous.get("/api/v1")).code == 403


async def test_discovery_is_open_to_every_known_user(api: Http, server: ApiServer) -> None:
    server.authenticator.add_token("t", ANN)
    ann = api.as_bearer("t")
    for path in ("/api", "/api/v1", "/apis", "/apis/apps/v1", "/openapi/v2", "/openapi/v3", "/version"):
        assert (await ann.get(path)).code == 200, path


async def test_service_account_tokens(api: Http, server: ApiServer, clock: ManualClock) -> None:
    server.registry.create(SERVICE_ACCOUNTS, "default", {"metadata": {"name": "robot"}})
    path = "/api/v1/namespaces/default/serviceaccounts/robot"
    asked = {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "spec": {"expirationSeconds": 600},
    }
    answer = await api.post(f"{path}/token", asked)
    assert answer.code == 201
    robot = api.as_bearer(answer.body["status"]["token"])
    review = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
    who = await robot.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert who.body["status"]["userInfo"]["username"] == "system:serviceaccount:default:robot"
    assert "system:serviceaccounts:default" in who.body["status"]["userInfo"]["groups"]
    await clock.advance(600)
    assert (await robot.get(PODS)).code == 401
    fresh = api.as_bearer((await api.post(f"{path}/token", asked)).body["status"]["token"])
    assert (await fresh.get(PODS)).code == 403
    await api.delete(path)
    server.registry.create(SERVICE_ACCOUNTS, "default", {"metadata": {"name": "robot"}})
    assert (await fresh.get(PODS)).code == 401, "the token of an account that was deleted"


async def test_reviews_of_tokens_and_of_others(api: Http, server: ApiServer) -> None:
    server.authenticator.add_token("t", ANN)
    grant(server, USER, rule("list", "pods"))
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    kind = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1"}
    good = await api.post(path, kind | {"spec": {"token": "t"}})
    assert good.body["status"]["user"]["username"] == "ann"
    bad = await api.post(path, kind | {"spec": {"token": "x"}})
    assert "authenticated" not in bad.body["status"]
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    asked = {"user": "ann", "resourceAttributes": {"verb": "list", "resource": "pods"}}
    assert (await api.post(path, {"spec": asked})).body["status"] == {"allowed": True}
    asked["resourceAttributes"] = {"verb": "delete", "resource": "pods"}
    assert (await api.post(path, {"spec": asked})).body["status"] == {"allowed": False}
    assert (await api.post(path, {"spec": {"user": "ann"}})).code == 400
    assert (await api.post(path, {"spec": {"resourceAttributes": 7}})).code == 400


async def test_impersonation_is_a_right(api: Http, server: ApiServer) -> None:
    server.authenticator.add_token("t", ANN)
    headers = {"Impersonate-User": "bob"}
    refused = await api.as_bearer("t").ask("GET", PODS, **headers)
    assert 'User "ann" cannot impersonate resource "users"' in refused.body["message"]
    assert 'User "bob" cannot list' in (await api.ask("GET", PODS, **headers)).body["message"]
    groups = headers | {"Impersonate-Group": "system:masters"}
    assert (await api.ask("GET", PODS, **groups)).code == 200


def client_context(server: ApiServer, folder: Path, pair: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=server.authority.certificate.decode())
    (folder / "client.pem").write_bytes(pair.certificate + pair.key)
    context.load_cert_chain(folder / "client.pem")
    return context


async def test_client_certificates(server: ApiServer, tmp_path: Path) -> None:
    grant(server, GROUP, rule("list", "pods"))
    async with serving(server, tls=True):
        context = client_context(server, tmp_path, server.authority.client("ann", "team"))
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{server.url}{PODS}", ssl=context) as response:
                assert response.status == 200
            async with session.get(f"{server.url}{NODES}", ssl=context) as response:
                assert 'User "ann" cannot list' in (await response.json())["message"]
        stranger = ApiServer(type(server.store)(), server.clock).authority.client("root", "system:masters")
        context = client_context(server, tmp_path, stranger)
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"{server.url}{PODS}", ssl=context)


async def test_a_kubeconfig_is_for_its_owner_alone(server: ApiServer, tmp_path: Path) -> None:
    async with serving(server, tls=True):
        server.write_kubeconfig(tmp_path / "config", namespace="kube-system")
    path = tmp_path / "config"
    assert path.stat().st_mode & 0o777 == 0o600
    config = yaml.safe_load(path.read_text())
    assert config["clusters"][0]["cluster"]["server"] == server.url
    assert "client-key-data" in config["users"][0]["user"]
    assert config["contexts"][0]["context"]["namespace"] == "kube-system"
    assert list(tmp_path.iterdir()) == [path]


async def test_a_restarted_server_knows_its_clients_again(server: ApiServer) -> None:
    async with serving(server) as http:
        token = server.admin().token
        await http.post(CONFIG_MAPS, config_map("a"))
    again = ApiServer(server.store, server.clock)
    async with serving(again) as http:
        assert again.admin().token == token
        assert (await http.get(f"{CONFIG_MAPS}/a")).code == 200
    assert again.authority.certificate == server.authority.certificate


async def test_namespaces_may_be_read_by_those_who_live_there(api: Http, server: ApiServer) -> None:
    server.authenticator.add_token("t", User("ann"))
    grant(server, USER, rule("get", "namespaces"), namespace="default")
    ann = api.as_bearer("t")
    assert (await ann.get("/api/v1/namespaces/default")).code == 200
    assert (await ann.get("/api/v1/namespaces/kube-system")).code == 403
    assert (await api.post(PODS, pod("p"))).code == 201
