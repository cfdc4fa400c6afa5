"""A checkpoint is held against the other records: what differs is told, and silence proves nothing."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given

from colocate.devices.comparison import compare
from colocate.devices.findings import Code, Finding, Severity
from colocate.devices.pod_names import names
from colocate.kubelet.checkpoint import parse
from colocate.kubelet.podresources import as_facts
from colocate.model.checkpoint import Checkpoint, Entry
from colocate.model.records import KnownPod, ListedPod, NodeCounts, Records
from colocate.wire import podresources_pb2 as pr
from tests.support.checkpoints import checkpoints

GPU = "vendor.example/gpu"


def entry(uid: str, *ids: str, container: str = "main") -> Entry:
    return Entry(uid, container, GPU, {0: ids}, b"")


def listed(name: str, *ids: str, container: str = "main") -> ListedPod:
    return ListedPod("default", name, {container: {GPU: frozenset(ids)} if ids else {}})


def known(uid: str, name: str, phase: str = "Running", gpus: int = 0) -> KnownPod:
    return KnownPod(uid, "default", name, phase, {"main": {GPU: gpus}} if gpus else {})


def checkpoint(*entries: Entry, registered: tuple[str, ...] | None = ()) -> Checkpoint:
    return Checkpoint(entries, None if registered is None else {GPU: registered})


def codes(findings: list[Finding]) -> list[Code]:
    return [finding.code for finding in findings]


@given(checkpoints())
def test_nothing_is_concluded_from_silence(checkpoint: Checkpoint) -> None:
    assert compare(checkpoint, Records()) == []


@given(checkpoints())
def test_a_record_that_says_the_same_does_not_differ(checkpoint: Checkpoint) -> None:
    entries = {(e.pod_uid, e.container, e.resource): e for e in checkpoint.entries or ()}
    same = Checkpoint(tuple(entries.values()), checkpoint.registered)
    pods: dict[str, dict[str, dict[str, frozenset[str]]]] = {}
    for one in entries.values():
        pods.setdefault(one.pod_uid, {}).setdefault(one.container, {})[one.resource] = one.ids
    registered = {resource: frozenset(ids or ()) for resource, ids in (same.registered or {}).items()}
    counts = {resource: len(ids) for resource, ids in registered.items()}
    records = Records(
        listing=[ListedPod("n", uid, containers) for uid, containers in pods.items()],
        healthy=registered,
        pods=[KnownPod(uid, "n", uid, "Running") for uid in pods],
        node=NodeCounts(counts, counts),
    )
    assert compare(same, records) == []


def test_the_recorded_answers_agree_with_the_recorded_checkpoint(recordings: Path) -> None:
    recorded = parse((recordings / "kubelet/checkpoint-1.34-two-resources.json").read_bytes()).checkpoint
    answer = json.loads((recordings / "kubelet/podresources-1.34.json").read_text())["List"]["bytes"]
    listing = as_facts(pr.ListPodResourcesResponse.FromString(base64.b64decode(answer)))
    assert compare(recorded, Records(listing=listing)) == []
    assert set(names(recorded, listing, None).values()) == {"default/gpu-pod", "default/test-pod"}


# Pods ------------------------------------------------------------------------------------------------


def test_a_pod_that_the_api_does_not_know_lingers() -> None:
    (finding,) = compare(
        checkpoint(entry("gone", "a"), entry("here", "b")), Records(pods=[known("here", "p")])
    )
    assert (finding.code, finding.severity, finding.subject) == (Code.STALE_POD, Severity.INFO, "gone")
    assert finding.sentence == f"pod gone is unknown to the API, but holds 1 device of {GPU}"
    assert "--drop-pod gone" in finding.remedy


def test_a_pod_that_has_ended_lingers_under_its_name() -> None:
    (finding,) = compare(checkpoint(entry("u", "a")), Records(pods=[known("u", "job", "Succeeded")]))
    assert "has ended (default/job)" in finding.sentence


def test_a_pod_is_stale_once_however_much_it_holds() -> None:
    held = checkpoint(entry("u", "a"), entry("u", "b", container="side"))
    assert codes(compare(held, Records(pods=[]))) == [Code.STALE_POD]


def test_without_the_api_a_pod_that_podresources_does_not_list_lingers() -> None:
    records = Records(listing=[listed("p", "b"), listed("idle")])
    (finding,) = compare(checkpoint(entry("gone", "a"), entry("here", "b")), records)
    assert (finding.code, finding.subject) == (Code.STALE_POD, "gone")
    assert "podresources" in finding.sentence


TWICE = checkpoint(entry("dead", "a"), entry("alive", "a"), registered=("a",))


@pytest.mark.parametrize("held", [TWICE, checkpoint(*reversed(TWICE.entries or ()), registered=("a",))])
def test_of_two_holders_of_one_device_the_api_tells_which_is_gone(held: Checkpoint) -> None:
    listing, pods = [listed("p", "a")], [known("alive", "p", gpus=1)]
    assert names(held, listing, pods) == {"alive": "default/p"}
    (finding,) = compare(held, Records(listing=listing, pods=pods))
    assert (finding.code, finding.subject) == (Code.STALE_POD, "dead")
    assert "is unknown to the API" in finding.sentence


def test_of_two_holders_of_one_device_podresources_alone_cannot_tell_which_is_gone() -> None:
    listing = [listed("p", "a")]
    assert names(TWICE, listing, None) == {}
    (finding,) = compare(TWICE, Records(listing=listing))
    assert (finding.code, finding.severity, finding.subject) == (
        Code.STALE_POD,
        Severity.WARNING,
        "default/p",
    )
    assert "pods alive, dead hold the same devices" in finding.sentence


def test_two_holders_that_podresources_lists_both_are_both_alive() -> None:
    listing = [listed("p", "a"), listed("q", "a")]
    assert names(TWICE, listing, None) == {}
    assert compare(TWICE, Records(listing=listing)) == []


def test_who_holds_less_of_what_is_listed_is_the_one_that_is_gone() -> None:
    held = checkpoint(entry("dead", "a"), entry("alive", "a", "b"))
    (finding,) = compare(held, Records(listing=[listed("p", "a", "b")]))
    assert (finding.code, finding.subject) == (Code.STALE_POD, "dead")


def test_an_init_container_that_has_ended_is_no_difference() -> None:
    held = checkpoint(entry("u", "a", container="warm"), entry("u", "a", "b"))
    assert compare(held, Records(listing=[listed("p", "a", "b")])) == []


def test_other_ids_in_podresources_are_drift() -> None:
    records = Records(listing=[listed("p", "b", "c")], pods=[known("u", "p")])
    (finding,) = compare(checkpoint(entry("u", "a", "b")), records)
    assert (finding.code, finding.subject) == (Code.DRIFT, "default/p/main")
    assert finding.sentence.endswith("only the checkpoint has a, only podresources has c")


def test_a_listed_container_that_holds_nothing_of_a_recorded_resource_is_drift() -> None:
    records = Records(listing=[listed("p")], pods=[known("u", "p")])
    (finding,) = compare(checkpoint(entry("u", "a")), records)
    assert finding.code is Code.DRIFT
    assert finding.sentence.endswith("only the checkpoint has a")


def test_a_holder_that_the_checkpoint_does_not_have_is_told() -> None:
    (finding,) = compare(checkpoint(), Records(listing=[listed("p", "a")]))
    assert (finding.code, finding.subject) == (Code.MISSING_ENTRY, "default/p/main")


def test_a_running_pod_without_what_it_asks_for_is_told() -> None:
    pods = [known("u", "p", gpus=2), known("v", "q", gpus=1), known("w", "waits", "Pending", gpus=1)]
    missing = compare(checkpoint(entry("u", "a")), Records(pods=pods))
    assert [(f.code, f.subject) for f in missing] == [
        (Code.DRIFT, "default/p/main"),
        (Code.MISSING_ENTRY, "default/q/main"),
    ]


def test_a_request_for_what_no_plugin_here_serves_leaves_no_entry() -> None:
    assert compare(checkpoint(registered=None), Records(pods=[known("u", "p", gpus=2)])) == []


# Mirrors of static pods ------------------------------------------------------------------------------


def mirror(name: str, of: str, gpus: int = 0) -> KnownPod:
    return KnownPod("m", "default", name, "Running", {"main": {GPU: gpus}} if gpus else {}, of)


def test_a_pod_that_claims_a_victims_uid_neither_renames_the_victims_devices_nor_finds_fault_with_them() -> (
    None
):
    held, listing = checkpoint(entry("u", "a", "b"), registered=("a", "b")), [listed("victim", "a", "b")]
    real = known("u", "victim", gpus=2)
    for pods in ([mirror("thief", "u", 20), real], [real, mirror("thief", "u", 20)]):
        assert names(held, None, pods) == {"u": "default/victim"}
        assert names(held, listing, pods) == {"u": "default/victim"}
        assert compare(held, Records(listing=listing, pods=pods)) == []
    assert names(held, None, [mirror("thief", "u")]) == {}, "nothing proves it"
    assert names(held, listing, [mirror("thief", "u")]) == {"u": "default/victim"}


def test_a_static_pod_has_the_name_that_the_kubelets_records_give_its_uid() -> None:
    held, listing = checkpoint(entry("file", "a"), registered=("a",)), [listed("static", "a")]
    assert names(held, listing, [mirror("static", "file")]) == {"file": "default/static"}
    (finding,) = compare(held, Records(listing=listing, pods=[mirror("static", "file", 2)]))
    assert (finding.code, finding.subject) == (Code.DRIFT, "default/static/main")


def test_what_a_static_pod_may_hold_is_not_called_stale_on_the_mirrors_absence_of_proof() -> None:
    assert compare(checkpoint(entry("file", "a")), Records(pods=[mirror("static", "file")])) == []


# Resources -------------------------------------------------------------------------------------------


def node(capacity: int, allocatable: int) -> NodeCounts:
    return NodeCounts({GPU: capacity}, {GPU: allocatable})


def test_a_resource_whose_plugin_is_gone_is_told_by_either_source_once() -> None:
    registered = checkpoint(registered=("a", "b"))
    by_status = compare(registered, Records(node=node(2, 0)))
    by_listing = compare(registered, Records(healthy={}))
    by_both = compare(registered, Records(healthy={}, node=node(2, 0)))
    assert codes(by_status) == codes(by_listing) == codes(by_both) == [Code.PLUGIN_GONE]


def test_counts_that_differ_from_what_is_registered_are_told() -> None:
    registered = checkpoint(registered=("a", "b"))
    assert codes(compare(registered, Records(node=node(5, 5)))) == [Code.COUNTS_DIFFER]
    assert codes(compare(registered, Records(node=node(1, 1)))) == [Code.COUNTS_DIFFER]
    assert codes(compare(registered, Records(node=node(3, 2)))) == [Code.UNHEALTHY_DEVICES]
    assert not compare(registered, Records(node=node(2, 2)))


def test_other_healthy_devices_are_drift() -> None:
    (finding,) = compare(checkpoint(registered=("a", "b")), Records(healthy={GPU: frozenset("bc")}))
    assert (finding.code, finding.subject) == (Code.DRIFT, GPU)


def test_a_resource_that_no_plugin_has_registered_is_worth_knowing() -> None:
    by_hand, left_over = (
        compare(checkpoint(registered=None), Records(node=node(count, count))) for count in (3, 0)
    )
    assert [(f.code, f.severity) for f in by_hand] == [(Code.NOT_OF_A_PLUGIN, Severity.INFO)]
    assert [(f.code, f.severity) for f in left_over] == [(Code.PLUGIN_GONE, Severity.INFO)]


# Names -----------------------------------------------------------------------------------------------


def test_the_api_names_pods_by_uid_and_podresources_by_what_they_hold() -> None:
    held = checkpoint(entry("u", "a", "b"), entry("v", "c"), entry("w", "d"))
    listing = [listed("p", "a", "b"), listed("q", "c")]
    assert names(held, listing, [known("v", "renamed")]) == {"u": "default/p", "v": "default/renamed"}
    assert names(held, None, None) == {}


def test_a_pod_has_the_name_of_the_one_with_which_it_has_most_in_common() -> None:
    listing = [listed("p", "a", "b"), listed("q", "c")]
    for one in (listing, listing[::-1]):
        assert names(checkpoint(entry("u", "a", "b", "c")), one, None) == {"u": "default/p"}
