"""Who wrote which field of a node: as recorded, and as clients can tell the kubelet's hand from another's."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from colocate.lab.api.managed_fields import FieldWriter, manager_of, recorded
from colocate.lab.api.objects import clone
from tests.lab_api.asking import JSON_PATCH, Http
from tests.lab_api.samples import node

KUBELET = FieldWriter("kubelet")
STATUS = FieldWriter("kubelet", "status")
NODES_PATH = "/api/v1/nodes"
FAN = "example.com/fan"


def test_a_node_is_signed_as_the_recorded_one(recordings: Path) -> None:
    document: dict[str, Any] = json.loads((recordings / "api/node.json").read_text())
    expected = document["metadata"].pop("managedFields")
    young = clone(document)
    for amounts in (young["status"]["capacity"], young["status"]["allocatable"]):
        del amounts["test.com/colocation-memory"]
    for condition in young["status"]["conditions"]:
        condition["lastHeartbeatTime"] = expected[0]["time"]
    young["status"]["conditions"][3] |= {"status": "False", "reason": "KubeletNotReady", "message": "no"}
    entries = recorded([], {}, young, KUBELET, expected[0]["time"])
    assert entries == expected[:1], "what a node is created with in its status has no owner"
    assert recorded(entries, young, document, STATUS, expected[1]["time"]) == expected


def test_a_write_that_changes_nothing_leaves_no_trace() -> None:
    body = {"metadata": {}, "status": {"capacity": {"cpu": "1"}}}
    assert recorded([], body, clone(body), STATUS, "now") == []


amounts = st.dictionaries(st.sampled_from(["cpu", FAN, "x/y"]), st.sampled_from("012"))


@given(st.lists(st.tuples(st.sampled_from(["kubelet", "kubectl", "curl"]), amounts), max_size=8))
def test_the_last_writer_of_a_value_owns_it(writes: list[tuple[str, dict[str, str]]]) -> None:
    entries: list[dict[str, Any]] = []
    body: dict[str, Any] = {"metadata": {}, "status": {"capacity": {}}}
    owners: dict[str, str] = {}
    for moment, (manager, capacity) in enumerate(writes):
        new = {"metadata": {}, "status": {"capacity": capacity}}
        before = body["status"]["capacity"]
        changed = {name for name, count in capacity.items() if before.get(name) != count}
        owners = {name: who for name, who in owners.items() if name in capacity} | dict.fromkeys(
            changed, manager
        )
        entries = recorded(entries, body, new, FieldWriter(manager, "status"), str(moment))
        body = new
    found = {
        name[2:]: entry["manager"]
        for entry in entries
        for name in entry["fieldsV1"]["f:status"].get("f:capacity", {})
        if name != "."
    }
    assert found == owners
    assert len({entry["manager"] for entry in entries}) == len(entries)


def test_a_client_is_named_by_what_it_says_or_by_its_program() -> None:
    assert manager_of("kubectl-patch", "kubectl/v1.34 (linux)") == "kubectl-patch"
    assert manager_of("", "curl/8.1") == "curl"
    assert manager_of("", "") == "unknown"
    assert len(manager_of("x" * 200, "")) == 128


async def test_the_server_signs_what_clients_write_and_takes_no_signature_of_theirs(api: Http) -> None:
    body = node("n1", zone="a")
    body["metadata"]["managedFields"] = [{"manager": "liar"}]
    body["status"]["capacity"] = {"cpu": "1"}
    await api.post(f"{NODES_PATH}?fieldManager=kubelet", body)
    patch = [{"op": "add", "path": "/status/capacity/example.com~1fan", "value": "3"}]
    await api.patch(f"{NODES_PATH}/n1/status?fieldManager=by-hand", patch, JSON_PATCH)
    entries = (await api.get(f"{NODES_PATH}/n1")).body["metadata"]["managedFields"]
    assert [(one["manager"], one.get("subresource")) for one in entries] == [
        ("kubelet", None),
        ("by-hand", "status"),
    ]
    assert entries[1]["fieldsV1"] == {"f:status": {"f:capacity": {f"f:{FAN}": {}}}}
