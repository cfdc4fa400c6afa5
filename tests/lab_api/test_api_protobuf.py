"""Bodies in protobuf, as newer kubectl sends them: read as their JSON would be, or refused as a whole."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.lab.api import openapi, protobuf
from colocate.lab.api.protobuf_fields import MESSAGES
from colocate.lab.api.resources import RESOURCES
from colocate.lab.api.status import StatusError


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def block(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def envelope(kind: str, version: str, raw: bytes) -> bytes:
    return b"k8s\0" + block(1, block(1, version) + block(2, kind)) + block(2, raw)


META = block(1, block(1, "x") + block(2, "") + block(8, b"") + block(11, block(1, "a") + block(2, "b")))


CONTAINER = block(2, block(1, "c") + block(8, b""))


@pytest.mark.parametrize(
    ("kind", "version", "raw", "expected"),
    [
        ("Namespace", "v1", META + block(2, b"") + block(3, b""), {}),
        ("ConfigMap", "v1", META + block(2, block(1, "k") + block(2, "v")), {"data": {"k": "v"}}),
        ("ConfigMap", "v1", META + block(3, block(1, "k") + block(2, b"\0")), {"binaryData": {"k": "AA=="}}),
        ("PriorityClass", "scheduling.k8s.io/v1", META + number(2, -5) + number(3, 0), {"value": -5}),
        (
            "PriorityClass",
            "scheduling.k8s.io/v1",
            META + number(2, 0) + number(3, 1),
            {"value": 0, "globalDefault": True},
        ),
        (
            "PodDisruptionBudget",
            "policy/v1",
            META + block(2, block(1, number(1, 1) + number(2, 0) + block(3, "50%"))),
            {"spec": {"minAvailable": "50%"}},
        ),
        (
            "PodDisruptionBudget",
            "policy/v1",
            META + block(2, block(3, number(1, 0) + number(2, 0) + block(3, ""))),
            {"spec": {"maxUnavailable": 0}},
        ),
        (
            "Deployment",
            "apps/v1",
            META
            + block(
                2, number(1, 0) + block(3, block(2, block(2, block(1, "c") + block(8, b"")))) + block(4, b"")
            ),
            {"spec": {"replicas": 0, "template": {"spec": {"containers": [{"name": "c"}]}}}},
        ),
        (
            "Role",
            "rbac.authorization.k8s.io/v1",
            META + block(2, block(1, "get") + block(1, "list") + block(2, "") + block(3, "pods")),
            {"rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]},
        ),
        (
            "DeleteOptions",
            "v1",
            number(1, 0) + block(4, "Background"),
            {"gracePeriodSeconds": 0, "propagationPolicy": "Background"},
        ),
        (
            "Binding",
            "v1",
            META + block(2, block(1, "Node") + block(2, "") + block(3, "node-0001")),
            {"target": {"kind": "Node", "name": "node-0001"}},
        ),
        (
            "Lease",
            "coordination.k8s.io/v1",
            META
            + block(2, block(1, "") + number(2, 15) + block(4, number(1, 1_700_000_000) + number(2, 1_999))),
            {
                "spec": {
                    "holderIdentity": "",
                    "leaseDurationSeconds": 15,
                    "renewTime": "2023-11-14T22:13:20.000001Z",
                }
            },
        ),
        (
            "Event",
            "v1",
            META + block(2, block(1, "Pod")) + block(3, "Scheduled") + block(6, number(1, 1_700_000_000)),
            {
                "involvedObject": {"kind": "Pod"},
                "reason": "Scheduled",
                "firstTimestamp": "2023-11-14T22:13:20Z",
            },
        ),
        (
            "Event",
            "events.k8s.io/v1",
            META
            + block(2, b"")
            + block(7, "Scheduled")
            + block(8, block(1, "Pod"))
            + block(10, "to node-0001"),
            {"reason": "Scheduled", "regarding": {"kind": "Pod"}, "note": "to node-0001"},
        ),
    ],
)
def test_what_is_read(kind: str, version: str, raw: bytes, expected: Any) -> None:
    found = protobuf.read(envelope(kind, version, raw))
    assert (found.pop("kind"), found.pop("apiVersion")) == (kind, version)
    if raw.startswith(META):
        assert found.pop("metadata") == {"name": "x", "labels": {"a": "b"}}
    assert found == expected


def test_a_field_that_is_not_known_is_not_passed_over() -> None:
    with pytest.raises(StatusError) as refused:
        protobuf.read(envelope("ConfigMap", "v1", META + number(99, 1)))
    assert refused.value.code == 415
    with pytest.raises(StatusError) as refused:
        protobuf.read(envelope("Widget", "v1", META))
    assert refused.value.code == 415


def test_a_time_beyond_all_years_is_refused() -> None:
    with pytest.raises(StatusError) as refused:
        protobuf.read(envelope("Lease", "coordination.k8s.io/v1", block(2, block(4, number(1, 1 << 62)))))
    assert refused.value.code == 400


@pytest.mark.parametrize("raw", [b"\x0a\x05x", b"\x08" + b"\xff" * 11, b"\x0d1234", b"\x0a", number(1, 5)])
def test_what_is_not_protobuf(raw: bytes) -> None:
    with pytest.raises(StatusError) as refused:
        protobuf.read(envelope("ConfigMap", "v1", raw))
    assert refused.value.code == 400


@given(st.sampled_from(sorted(MESSAGES)), st.binary(max_size=60))
def test_no_bytes_do_worse_than_be_refused(kind: str, raw: bytes) -> None:
    try:
        found = protobuf.read(envelope(kind, "v1", raw))
    except StatusError as error:
        assert error.code in (400, 415)  # noqa: PT017 -- both outcomes are right
    else:
        assert found["kind"] == kind


def test_every_message_that_is_named_is_described() -> None:
    plain = {"text", "int", "flag", "bytes", "skip", "Quantity", "IntOrString", "Time", "MicroTime"}
    named = {field.type for fields in MESSAGES.values() for field in fields.values()}
    assert named - plain <= set(MESSAGES)


def test_openapi_names_every_kind_that_can_be_patched() -> None:
    kinds = {resource.kind for resource in RESOURCES if resource.is_stored}
    second = openapi.version_2("v1")
    named = {path["patch"][openapi.GVK]["kind"] for path in second["paths"].values()}
    assert named == kinds
    raw = openapi.version_2_protobuf("v1")
    fields = dict(protobuf._fields(memoryview(raw)))
    assert bytes(protobuf._bytes(fields[1])) == b"2.0"
    assert all(kind.encode() in raw for kind in kinds)
    for root in openapi.version_3_index()["paths"]:
        document = openapi.version_3(root, "v1")
        assert document is not None
        for path in document["paths"].values():
            assert "fieldValidation" in {one["name"] for one in path["patch"]["parameters"]}
    assert openapi.version_3("apis/nope/v1", "v1") is None
