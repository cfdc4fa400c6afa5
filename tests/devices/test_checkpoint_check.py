"""What is wrong with a checkpoint is found from the file alone, and what is right is left alone."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.devices.checkpoint_check import check
from colocate.devices.findings import Code, Finding, Severity
from colocate.kubelet.allocation import to_wire
from colocate.kubelet.checkpoint import (
    CheckpointDocument,
    CheckpointError,
    checksum,
    hash_text,
    parse,
    render,
)
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry, Format
from colocate.model.device import Allocation
from tests.support.checkpoints import checkpoints

DATA = Path(__file__).parent.parent / "data"
CASES = json.loads((DATA / "conformance/checkpoints.json").read_text())["cases"]
GPU = "vendor.example/gpu"


def entry(
    pod: str, *ids: str, container: str = "main", node: int = 0, envs: dict[str, str] | None = None
) -> Entry:
    return Entry(pod, container, GPU, {node: ids}, to_wire(Allocation(envs=envs or {})).SerializeToString())


def found(*entries: Entry, registered: tuple[str, ...] | None = ("a", "b", "c")) -> list[Finding]:
    checkpoint = Checkpoint(entries, {} if registered is None else {GPU: registered})
    return check(parse(render(checkpoint)).reading())


def codes(findings: list[Finding]) -> list[Code]:
    return [finding.code for finding in findings]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_checksum_is_judged_as_the_kubelet_judges_it(case: dict[str, Any]) -> None:
    try:
        findings = check(parse(case["blob"].encode()).reading())
    except CheckpointError:
        assert case["fails_at"] == "json"
    else:
        assert (Code.CHECKSUM not in codes(findings)) == case["valid"]


def test_the_recorded_file_is_sound() -> None:
    assert not check(
        parse((DATA / "recordings/kubelet/checkpoint-1.34-two-resources.json").read_bytes()).reading()
    )


def test_the_example_of_the_article_has_both_of_its_inconsistencies() -> None:
    checksums, injected, registered = check(
        parse((DATA / "seeds/003-checkpoint.json").read_bytes()).reading()
    )
    assert (checksums.code, checksums.severity) == (Code.CHECKSUM, Severity.ERROR)
    assert "216033768" in checksums.sentence
    assert "2703430300" in checksums.sentence
    assert injected.code is Code.INJECTED_OTHER
    assert injected.subject == "a2ab1d63-8519-4ff7-9501-edc58ae1d6a4/ubuntu-container"
    assert "holds GPU-709fac35-5f40-624b-90f7-b0a3db7a97a0-2 of" in injected.sentence
    assert "names GPU-fcda056f-77c6-7fdf-f7c7-6453511eaaa1" in injected.sentence
    assert (registered.code, registered.subject) == (Code.NOT_REGISTERED, "nvidia.com/gpu")


def test_a_file_that_states_no_checksum_is_told_so() -> None:
    (finding,) = check(parse(b'{"Data":{"PodDeviceEntries":null}}').reading())
    assert finding.sentence.startswith("the file states no checksum, but its data has ")


@pytest.mark.parametrize("format", [Format.PLAIN, Format.LIST])
def test_an_old_format_is_worth_knowing_and_no_fault(format: Format) -> None:
    checkpoint = Checkpoint((Entry("u", "c", GPU, ("a",), b""),), {GPU: ("a",)})
    (finding,) = check(parse(render(checkpoint, format)).reading())
    assert (finding.code, finding.severity) == (Code.OLD_FORMAT, Severity.INFO)
    assert ("no checksum" in finding.sentence) == (format is Format.PLAIN)


# Structure -------------------------------------------------------------------------------------------


def test_an_entry_that_lacks_something_is_reported_with_all_that_it_lacks() -> None:
    empty = Entry("", "", "", None, None)
    (finding,) = check(parse(render(Checkpoint((empty,), None))).reading())[:1]
    assert finding.code is Code.INCOMPLETE_ENTRY
    assert finding.sentence.endswith("names no pod uid and no container and no resource and no device")


def test_a_second_entry_for_the_same_is_reported_once() -> None:
    assert codes(found(entry("p", "a"), entry("p", "b"), entry("p", "c"))) == [Code.REPEATED_ENTRY]


def test_an_id_that_is_listed_twice_is_reported_and_one_near_two_nodes_is_not() -> None:
    assert codes(found(entry("p", "a", "a"))) == [Code.REPEATED_ID]
    assert codes(found(registered=("a", "b", "a"))) == [Code.REPEATED_ID]
    near_both = Entry("p", "main", GPU, {0: ("a",), 1: ("a",)}, None)
    assert not found(near_both)


def test_a_numa_node_below_none_is_reported() -> None:
    assert not found(entry("p", "a", node=NO_TOPOLOGY))
    assert codes(found(entry("p", "a", node=-2))) == [Code.NUMA_NODE]


def test_a_resource_that_cannot_be_named_so_is_reported_once() -> None:
    entries = tuple(Entry(pod, "main", "gpu", {0: (pod,)}, None) for pod in "ab")
    findings = check(parse(render(Checkpoint(entries, {"gpu": ("a", "b")}))).reading())
    assert codes(findings) == [Code.RESOURCE_NAME]


def test_what_was_injected_and_cannot_be_read_is_reported() -> None:
    (finding,) = found(Entry("p", "main", GPU, {0: ("a",)}, b"\xff\xff"))
    assert (finding.code, finding.severity) == (Code.INJECTION_UNREADABLE, Severity.ERROR)


# Devices ---------------------------------------------------------------------------------------------


def test_a_device_of_two_pods_is_an_error_that_names_both() -> None:
    (finding,) = found(entry("p", "a", "b"), entry("q", "b", "c"))
    assert (finding.code, finding.severity) == (Code.HELD_TWICE, Severity.ERROR)
    assert finding.sentence == f"b of {GPU} is held by pods p, q"


def test_devices_that_the_same_pods_share_are_one_finding() -> None:
    (finding,) = found(entry("p", "a", "b"), entry("q", "a", "b"))
    assert finding.sentence == f"a, b of {GPU} are held by pods p, q"


def test_a_device_that_an_init_container_hands_on_is_no_conflict() -> None:
    assert not found(entry("p", "a", container="warm"), entry("p", "a", "b", container="train"))


def test_the_same_id_of_another_resource_is_another_device() -> None:
    other = Entry("q", "main", "vendor.example/fan", {0: ("a",)}, None)
    checkpoint = Checkpoint((entry("p", "a"), other), {GPU: ("a",), "vendor.example/fan": ("a",)})
    assert not check(parse(render(checkpoint)).reading())


def test_a_held_device_that_is_not_registered_is_reported() -> None:
    (finding,) = found(entry("p", "a", "z"))
    assert (finding.code, finding.subject) == (Code.NOT_REGISTERED, "p/main")
    assert "holds z of" in finding.sentence


def test_a_resource_that_nobody_has_registered_is_one_finding() -> None:
    (finding,) = found(entry("p", "a"), entry("q", "b"), registered=None)
    assert (finding.code, finding.subject) == (Code.NOT_REGISTERED, GPU)
    assert finding.sentence.endswith("which 2 pods hold: p, q")


def test_a_device_of_somebody_else_that_was_injected_is_reported() -> None:
    mine = entry("p", "card-1", envs={"CARD": "card-2"})
    (finding,) = found(mine, entry("q", "card-2"), registered=("card-1", "card-2"))
    assert (finding.code, finding.subject) == (Code.INJECTED_OTHER, "p/main")


# Any checkpoint --------------------------------------------------------------------------------------


@given(checkpoints())
def test_any_checkpoint_that_was_written_is_read_back_the_same_with_a_right_checksum(
    checkpoint: Checkpoint,
) -> None:
    document = parse(render(checkpoint))
    findings = check(document.reading())
    assert document.checkpoint == checkpoint
    assert Code.CHECKSUM not in codes(findings)
    assert all(finding.sentence and finding.remedy and finding.subject is not None for finding in findings)


NIL_OR_EMPTY: dict[str, Any] = {"devices": {}, "alloc_resp": b"", "entries": (), "registered": {}}


def changed(value: Any, empty: Any, data: st.DataObject) -> Any:
    """The same data with one value in it changed; what is empty becomes nil, and what is nil empty."""
    if isinstance(value, dict) and value:
        key = data.draw(st.sampled_from(sorted(value)))
        return {**value, key: changed(value[key], (), data)}
    if isinstance(value, tuple) and value:
        at = data.draw(st.integers(0, len(value) - 1))
        return (*value[:at], changed(value[at], "", data), *value[at + 1 :])
    if isinstance(value, Entry | Checkpoint):
        field = data.draw(st.sampled_from(value.__struct_fields__))
        new = changed(getattr(value, field), NIL_OR_EMPTY.get(field, ""), data)
        return msgspec.structs.replace(value, **{field: new})
    if isinstance(value, str):
        return data.draw(st.text(max_size=12))
    if isinstance(value, bytes) and value:
        return data.draw(st.none() | st.binary(max_size=40))
    return empty if value is None else None


@given(checkpoints(), st.data())
def test_any_changed_value_is_noticed_unless_it_prints_alike(
    checkpoint: Checkpoint, data: st.DataObject
) -> None:
    other = changed(checkpoint, None, data)
    forged = CheckpointDocument(other, checksum(checkpoint), Format.NUMA)
    noticed = Code.CHECKSUM in codes(check(forged.reading()))
    assert noticed == (hash_text(other) != hash_text(checkpoint))


def test_ids_joined_by_a_space_print_alike_so_the_kubelet_does_not_notice() -> None:
    apart = Checkpoint((entry("p", "a", "b"),), {GPU: ("a", "b")})
    joined = Checkpoint((entry("p", "a b"),), {GPU: ("a b",)})
    assert apart != joined
    assert not check(CheckpointDocument(joined, checksum(apart), Format.NUMA).reading())
