"""The operations of the client, against the embedded API server."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from colocate.clock import ManualClock
from colocate.cluster import json_patch
from colocate.cluster.client import Client, ClientSettings, Merge
from colocate.cluster.connection import Flags, find
from colocate.cluster.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PreconditionFailed,
    TooManyRequests,
    Unauthorized,
)
from colocate.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, NODES, PODS, Resource, Selection, on_node
from colocate.cluster.transport import Request
from colocate.lab.api.server import ApiServer
from colocate.lab.api.users import known
from tests.lab_api.samples import budget, config_map, node, pod

from .serving import ADMIN, connect


class Named(msgspec.Struct, frozen=True):
    """A shape of three fields: what most callers need of an object."""

    class Metadata(msgspec.Struct, frozen=True, rename="camel"):
        name: str
        uid: str = ""
        resource_version: str = ""
        annotations: dict[str, str] = {}

    metadata: Metadata
    data: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self.metadata.name


CM = CONFIG_MAPS.read_as(Named)
POD = PODS.read_as(Named)


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "part", "path"),
    [
        (PODS, "", "", "", "/api/v1/pods"),
        (PODS, "n", "p", "eviction", "/api/v1/namespaces/n/pods/p/eviction"),
        (NODES, "ignored", "a", "status", "/api/v1/nodes/a/status"),
        (DEPLOYMENTS, "n", "", "", "/apis/apps/v1/namespaces/n/deployments"),
        (PODS, "n", "a/b?c", "", "/api/v1/namespaces/n/pods/a%2Fb%3Fc"),
    ],
)
def test_paths(resource: Resource[Any], namespace: str, name: str, part: str, path: str) -> None:
    assert resource.path(namespace, name, part) == path


def test_a_name_that_would_climb_is_no_name() -> None:
    with pytest.raises(ValueError, match="not a name"):
        PODS.path("n", "..")


async def test_an_object_is_created_read_replaced_and_deleted(client: Client) -> None:
    made = await client.create(CM, config_map("a", x="1"))
    assert (await client.get(CM, "a")) == made
    body = config_map("a", x="2")
    body["metadata"]["resourceVersion"] = made.metadata.resource_version
    changed = await client.replace(CM, "a", body)
    assert changed.data == {"x": "2"}
    with pytest.raises(Conflict, match="the object has been modified"):
        await client.replace(CM, "a", body)
    await client.delete(CM, "a")
    with pytest.raises(NotFound, match=r'cannot get configmaps a in namespace default: .*"a" not found'):
        await client.get(CM, "a")


async def test_a_whole_object_is_read_where_no_shape_is_given(client: Client) -> None:
    made = await client.create(CONFIG_MAPS, config_map("a", x="1"))
    assert made["kind"] == "ConfigMap"


async def test_nothing_is_created_twice_or_in_a_dry_run(client: Client) -> None:
    await client.create(CM, config_map("a"), dry_run=True)
    await client.create(CM, config_map("a"))
    with pytest.raises(AlreadyExists):
        await client.create(CM, config_map("a"))


async def test_a_list_comes_in_pages_and_by_selection(server: ApiServer, clock: ManualClock) -> None:
    async with connect(server.url, clock, settings=ClientSettings(page=2)) as client:
        for number in range(5):
            body = config_map(f"c{number}")
            body["metadata"]["labels"] = {"odd": str(number % 2)}
            await client.create(CM, body)
        assert [one.name for one in await client.list(CM)] == [f"c{number}" for number in range(5)]
        odd = await client.list(CM, Selection("default", labels="odd=1"))
        assert [one.name for one in odd] == ["c1", "c3"]
        assert await client.list(CM, Selection("kube-system", fields="metadata.name=c1")) == []


async def test_a_list_whose_pages_expire_is_begun_again(
    server: ApiServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(server.url, clock, settings=ClientSettings(page=1)) as client:
        for name in "abc":
            await client.create(CM, config_map(name))
        asked = client.ask_once

        async def expire_between(request: Request) -> bytes:
            answer = await asked(request)
            server.store.expire()
            return answer

        monkeypatch.setattr(client, "ask_once", expire_between)
        assert [one.name for one in await client.list(CM)] == ["a", "b", "c"]


async def test_a_deletion_may_insist_on_the_very_object(client: Client) -> None:
    made = await client.create(CM, config_map("a"))
    with pytest.raises(Conflict, match="Precondition failed: UID"):
        await client.delete(CM, "a", uid="another")
    await client.delete(CM, "a", uid=made.metadata.uid, dry_run=True)
    await client.delete(CM, "a", uid=made.metadata.uid)
    assert await client.list(CM) == []


async def test_a_json_patch_holds_its_precondition(client: Client) -> None:
    await client.create(CM, config_map("a", x="1"))
    changed = await client.patch(CM, "a", json_patch.replace(("data", "x"), "1", "2"))
    assert changed.data == {"x": "2"}
    with pytest.raises(PreconditionFailed, match="cannot patch configmaps a"):
        await client.patch(CM, "a", json_patch.replace(("data", "x"), "1", "3"))
    seen = await client.get(CONFIG_MAPS, "a")
    patch = json_patch.set_if_absent(seen, ("metadata", "annotations", "a/b.c"), "d")
    assert (await client.patch(CM, "a", patch)).metadata.annotations == {"a/b.c": "d"}
    with pytest.raises(PreconditionFailed):
        await client.patch(CM, "a", patch)


async def test_merge_and_strategic_patches(client: Client) -> None:
    await client.create(NODES, node("n1"))
    taint = {"key": "k", "effect": "NoSchedule"}
    await client.patch(NODES, "n1", {"spec": {"taints": [taint]}})
    other = {"key": "l", "effect": "NoSchedule"}
    changed = await client.patch(NODES, "n1", {"spec": {"taints": [other]}}, merge=Merge.STRATEGIC)
    assert json_patch.find(changed, ("spec", "taints", 0, "key")) in ("k", "l")
    status = {"status": {"capacity": {"example.com/fan": "3"}}}
    changed = await client.patch(NODES, "n1", status, subresource="status")
    assert json_patch.find(changed, ("status", "capacity", "example.com/fan")) == "3"


async def test_a_pod_is_bound_once(client: Client) -> None:
    await client.create(NODES, node("n1"))
    made = await client.create(POD, pod("p"))
    with pytest.raises(Conflict, match="Precondition failed"):
        await client.bind("p", "n1", uid="another")
    await client.bind("p", "n1", uid=made.metadata.uid)
    with pytest.raises(Conflict, match='already assigned to node "n1"'):
        await client.bind("p", "n1")
    assert [one.name for one in await client.list(POD, on_node("n1"))] == ["p"]


async def test_an_eviction_that_a_budget_forbids_is_refused(client: Client) -> None:
    await client.create(NODES, node("n1"))
    await client.create(PODS, pod("p"))
    await client.create(Resource("poddisruptionbudgets", "", "policy"), budget("b", "p", minAvailable=1))
    await client.bind("p", "n1")
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await client.patch(PODS, "p", ready, subresource="status")
    with pytest.raises(TooManyRequests, match="disruption budget"):
        await client.evict("p")


async def test_what_breaks_a_rule_is_invalid(client: Client) -> None:
    with pytest.raises(Invalid, match="cannot create configmaps in namespace default"):
        await client.create(CM, config_map("NOT A NAME"))
    with pytest.raises(Invalid):
        await client.create(CM, {"metadata": 7})


async def test_a_missing_right_is_named(server: ApiServer, clock: ManualClock) -> None:
    server.authenticator.add_token("weak", known("weak"))
    async with connect(server.url, clock, "weak") as client:
        with pytest.raises(Forbidden) as raised:
            await client.list(PODS, Selection("default"))
        assert str(raised.value).endswith("; grant weak the verb list on pods in namespace default")
        with pytest.raises(Forbidden, match="grant weak the verb patch on nodes/status in the whole cluster"):
            await client.patch(NODES, "n", {}, subresource="status")


async def test_a_credential_that_is_not_good_is_said_to_be_so(server: ApiServer, clock: ManualClock) -> None:
    async with connect(server.url, clock, "bad") as client:
        with pytest.raises(Unauthorized, match="renew the token or certificate") as raised:
            await client.list(PODS)
    assert "bad" not in str(raised.value).split()


async def test_over_tls_with_a_certificate_and_with_a_token_from_a_kubeconfig(
    with_tls: ApiServer, tmp_path: Path
) -> None:
    from colocate.lab.api.kubeconfig import Credential

    with_tls.write_kubeconfig(tmp_path / "certificate")
    with_tls.authenticator.add_token("t", ADMIN)
    with_tls.write_kubeconfig(tmp_path / "token", Credential(token="t"), "kube-system")
    for name, namespace in (("certificate", "default"), ("token", "kube-system")):
        connection = find(Flags(kubeconfig=tmp_path / name), {})
        assert connection.namespace == namespace
        async with Client(connection) as client:
            made = await client.create(CM, config_map(name))
            assert made.name == name


async def test_many_requests_at_once_share_the_client(client: Client) -> None:
    await asyncio.gather(*(client.create(CM, config_map(f"c{number}")) for number in range(50)))
    assert len(await client.list(CM)) == 50
