"""Whatever a client sends, the server answers with the right Status and lives."""

import gzip
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colocate.lab.api import bodies, protobuf
from colocate.lab.api.server import MAX_BODY, ApiServer
from colocate.lab.api.status import StatusError

from .asking import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Http
from .samples import CONFIG_MAPS, DEPLOYMENTS, NODES, PODS, config_map, deployment, node, pod

CODES = {
    "malformed JSON": ("POST", CONFIG_MAPS, b'{"metadata": ', "application/json", 400),
    "no body": ("POST", CONFIG_MAPS, b"", "application/json", 400),
    "a list": ("POST", CONFIG_MAPS, b"[]", "application/json", 400),
    "not UTF-8": ("POST", CONFIG_MAPS, b'{"a": "\xff"}', "application/json", 400),
    "too deep": ("POST", CONFIG_MAPS, b'{"a":' * 100_000, "application/json", 400),
    "deep but whole": (
        "POST",
        CONFIG_MAPS,
        b'{"metadata":{"name":"deep"},"a":' + b'{"a":' * 3_000 + b"1" + b"}" * 3_001,
        "application/json",
        400,
    ),
    "metadata is text": ("POST", CONFIG_MAPS, b'{"metadata": "x"}', "application/json", 400),
    "labels are numbers": (
        "POST",
        CONFIG_MAPS,
        b'{"metadata": {"labels": {"a": 1}}}',
        "application/json",
        400,
    ),
    "malformed YAML": ("POST", CONFIG_MAPS, b"a: [", "application/yaml", 400),
    "deep YAML": ("POST", CONFIG_MAPS, b"[" * 100_000, "application/yaml", 400),
    "YAML with aliases": ("POST", CONFIG_MAPS, b"a: &x [1]\nb: *x", "application/yaml", 400),
    "wrong content type": ("POST", CONFIG_MAPS, b"{}", "text/html", 415),
    "no protobuf": ("POST", CONFIG_MAPS, b"{}", "application/vnd.kubernetes.protobuf", 400),
    "CBOR": ("POST", CONFIG_MAPS, b"\xa0", "application/cbor", 415),
    "JSON as a patch": ("PATCH", f"{NODES}/vm", b"{}", "application/json", 415),
    "unknown operation": ("PATCH", f"{NODES}/vm", b'[{"op": "x", "path": "/a"}]', JSON_PATCH, 422),
    "a patch of no list": ("PATCH", f"{NODES}/vm", b'{"op": "add"}', JSON_PATCH, 400),
    "a patch of the name": ("PATCH", f"{NODES}/vm", b'{"metadata": {"name": "x"}}', MERGE_PATCH, 400),
    "a patch of the kind": ("PATCH", f"{NODES}/vm", b'{"kind": "Pod"}', MERGE_PATCH, 400),
    "a patch to a wrong type": ("PATCH", f"{NODES}/vm", b'{"spec": {"taints": 7}}', MERGE_PATCH, 400),
    "a patch with no merge key": (
        "PATCH",
        f"{NODES}/vm/status",
        b'{"status": {"conditions": [{"status": "True"}]}}',
        STRATEGIC_PATCH,
        400,
    ),
    "applying a text": ("PATCH", f"{NODES}/vm", b"text", APPLY_PATCH, 400),
    "a patch of what is not there": ("PATCH", f"{NODES}/nope", b"{}", MERGE_PATCH, 404),
    "another kind": ("POST", PODS, json.dumps(config_map("a")).encode(), "application/json", 400),
    "another version": ("POST", PODS, b'{"apiVersion": "v9", "kind": "Pod"}', "application/json", 400),
    "another namespace": ("POST", PODS, b'{"metadata": {"namespace": "x"}}', "application/json", 400),
    "no name": ("POST", CONFIG_MAPS, b"{}", "application/json", 422),
    "an unknown namespace": (
        "POST",
        "/api/v1/namespaces/x/configmaps",
        b'{"metadata":{"name":"a"}}',
        "",
        404,
    ),
    "an unknown resource": ("GET", "/api/v1/widgets", b"", "", 404),
    "an unknown group": ("GET", "/apis/example.com/v1/widgets", b"", "", 404),
    "an unknown subresource": ("GET", f"{PODS}/a/widget", b"", "", 404),
    "too long a path": ("GET", f"{PODS}/a/status/b", b"", "", 404),
    "a post to an object": ("POST", f"{PODS}/a", b"{}", "", 405),
    "a put to a list": ("PUT", PODS, b"{}", "", 405),
    "a namespaced kind without namespace": ("POST", "/api/v1/pods", b"{}", "", 405),
    "a strange method": ("OPTIONS", PODS, b"", "", 405),
    "a dry run of something": ("POST", f"{CONFIG_MAPS}?dryRun=Some", b'{"metadata":{"name":"a"}}', "", 422),
    "a limit that is no number": ("GET", f"{PODS}?limit=-1", b"", "", 400),
    "options that are none": ("DELETE", f"{NODES}/vm", b'{"gracePeriodSeconds": "x"}', "", 400),
    "an unknown policy": ("DELETE", f"{NODES}/vm?propagationPolicy=Sideways", b"", "", 400),
    "a binding to nowhere": ("POST", f"{PODS}/p/binding", b"{}", "", 422),
    "a binding to a number": ("POST", f"{PODS}/p/binding", b'{"target": {"name": 7}}', "", 422),
    "a binding of nothing": ("POST", f"{PODS}/q/binding", b'{"target": {"name": "vm"}}', "", 404),
    "a scale of text": ("PUT", f"{DEPLOYMENTS}/d/scale", b'{"spec": {"replicas": "x"}}', "", 400),
    "a scale below zero": ("PUT", f"{DEPLOYMENTS}/d/scale", b'{"spec": {"replicas": -1}}', "", 422),
}


@pytest.mark.parametrize("what", CODES)
async def test_bad_requests(api: Http, what: str) -> None:
    await api.post(NODES, node("vm"))
    await api.post(PODS, pod("p"))
    await api.post(DEPLOYMENTS, deployment("d", replicas=0))
    method, path, body, content_type, code = CODES[what]
    sent = None if method in ("GET", "OPTIONS") else body
    answer = await api.ask(method, path, sent, content_type or "application/json")
    assert answer.code == code, answer.body
    assert answer.body["kind"] == "Status"
    assert answer.body["status"] == "Failure"
    assert answer.body["code"] == code
    assert (await api.get(f"{NODES}/vm")).code == 200


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a/b", "/", "..", "a%2Fb", "A", "-a", "a" * 254, "ä", "a b"]
)
async def test_a_name_that_is_a_path(api: Http, name: str) -> None:
    answer = await api.post(CONFIG_MAPS, config_map(name))
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert "metadata.name: Invalid value" in answer.body["message"]
    assert answer.body["details"]["causes"][0]["field"] == "metadata.name"


@pytest.mark.parametrize("path", ["..%2F..%2Fetc%2Fpasswd", "%2e%2e", "a%2Fb", "a%00b", "%ff", "a%2F..%2Fb"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_path_for_a_name_in_the_address(api: Http, server: ApiServer, method: str, path: str) -> None:
    url = f"{api.url}{CONFIG_MAPS}/{path}"
    headers = {"Authorization": f"Bearer {server.admin().token}"}
    from yarl import URL

    async with api.session.request(method, URL(url, encoded=True), headers=headers) as response:
        assert response.status in (404, 405)
        assert (await response.json())["kind"] == "Status"


async def test_a_body_of_100_megabytes(api: Http) -> None:
    answer = await api.ask("POST", CONFIG_MAPS, io.BytesIO(b"x" * 100_000_000))
    assert (answer.code, answer.body["reason"]) == (413, "RequestEntityTooLarge")
    assert answer.body["message"] == f"Request entity too large: limit is {MAX_BODY}"
    assert (await api.post(CONFIG_MAPS, config_map("a"))).code == 201


async def test_a_body_of_unknown_length(api: Http, server: ApiServer) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"x" * 100_000

    headers = {"Authorization": f"Bearer {server.admin().token}"}
    async with api.session.post(f"{api.url}{CONFIG_MAPS}", data=endless(), headers=headers) as response:
        assert response.status == 413
        assert (await response.json())["kind"] == "Status"


async def test_compressed_bodies(api: Http) -> None:
    good = gzip.compress(json.dumps(config_map("a")).encode())
    assert (await api.ask("POST", CONFIG_MAPS, good, **{"Content-Encoding": "gzip"})).code == 201
    bomb = gzip.compress(b" " * 50_000_000)
    answer = await api.ask("POST", CONFIG_MAPS, bomb, **{"Content-Encoding": "gzip"})
    assert answer.code == 413
    assert (await api.ask("POST", CONFIG_MAPS, b"no gzip", **{"Content-Encoding": "gzip"})).code == 400
    assert (await api.get(f"{CONFIG_MAPS}/a")).code == 200


async def test_what_is_no_http_at_all(api: Http) -> None:
    import asyncio

    host, _, port = api.url.removeprefix("http://").partition(":")
    for sent in (
        b"\x16\x03\x01 not for you\r\n\r\n",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"\0" * 100,
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        writer.write_eof()
        await reader.read()
        writer.close()
        await writer.wait_closed()
    assert (await api.get("/healthz")).body == b"ok"


async def test_a_form_that_is_not_offered_is_not_acceptable(api: Http) -> None:
    answer = await api.get(PODS, accept="text/html")
    assert (answer.code, answer.body["reason"]) == (406, "NotAcceptable")
    assert (await api.get(PODS, accept="application/vnd.kubernetes.protobuf,*/*")).code == 200
    assert (await api.get(PODS, accept="")).code == 200


async def test_yaml_is_read(api: Http) -> None:
    body = b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata: {day: '2020-01-01'}\n"
    assert (await api.ask("POST", CONFIG_MAPS, body, "application/yaml")).code == 201
    dated = b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\ndata: {day: 2020-01-01}\n"
    assert (await api.ask("POST", CONFIG_MAPS, dated, "application/yaml")).code == 201


_FIELDS = (
    "metadata spec status name labels annotations containers env resources limits cpu rules subjects target "
    "template selector matchLabels finalizers ownerReferences value conditions taints replicas strategy"
)
fields = st.sampled_from(_FIELDS.split())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=4),
    max_leaves=20,
)
methods = st.sampled_from(["POST", "PUT", "PATCH", "DELETE"])
PATHS = [
    PODS,
    NODES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    "/api/v1/namespaces",
    "/api/v1/namespaces/default/events",
    "/api/v1/namespaces/default/serviceaccounts",
    "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/api/v1/namespaces/default/bindings",
    f"{PODS}/p/binding",
    f"{PODS}/p/eviction",
    f"{PODS}/p/status",
    f"{NODES}/vm/status",
]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(PATHS), body=json_values, method=st.sampled_from(["POST", "PUT", "PATCH", "DELETE"])
)
async def test_no_json_makes_the_server_stumble(api: Http, path: str, body: Any, method: str) -> None:
    content_type = MERGE_PATCH if method == "PATCH" else "application/json"
    if isinstance(body, dict) and isinstance(body.get("metadata"), dict):
        body["metadata"].setdefault("name", "p")
    answer = await api.ask(method, path, json.dumps(body).encode(), content_type)
    assert answer.code < 500, answer.body


@given(st.binary(max_size=200))
def test_no_bytes_break_the_readers(data: bytes) -> None:
    for content_type in (*bodies.ACCEPTED, "application/apply-patch+yaml"):
        try:
            bodies.read(content_type, data)
        except StatusError as error:
            assert error.code in (400, 415)  # noqa: PT017 -- both outcomes are right
    try:
        protobuf.read(b"k8s\0" + data)
    except StatusError as error:
        assert error.code in (400, 415)  # noqa: PT017 -- both outcomes are right


async def test_a_fault_of_the_server_itself_is_told_and_survived(
    api: Http, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(server.registry, "get", broken)
    answer = await api.get(f"{PODS}/a")
    assert (answer.code, answer.body["reason"]) == (500, "InternalError")
    monkeypatch.undo()
    assert (await api.get(f"{PODS}/a")).code == 404


async def test_a_client_that_goes_away_while_sending(api: Http, server: ApiServer) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b'{"metadata":'
        raise ConnectionResetError

    headers = {"Authorization": f"Bearer {server.admin().token}"}
    with pytest.raises((aiohttp.ClientError, ConnectionResetError)):
        await api.session.post(f"{api.url}{CONFIG_MAPS}", data=broken(), headers=headers)
    assert (await api.get(CONFIG_MAPS)).body["items"] == []
