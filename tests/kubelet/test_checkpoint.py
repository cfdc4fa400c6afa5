"""The checkpoint is read, judged and written as the kubelet does it.

The table in tests/data/conformance was made with the kubelet's own code; the recording is a real kubelet's
file. What Go's encoding/json does where the table is silent: test_checkpoint_gojson.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.checkpoints import checkpoints, judge
from tests.support.growth import check_growth

from colocate.kubelet.checkpoint import CheckpointDocument, checksum, hash_text, parse, render
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry, Format

DATA = Path(__file__).parent.parent / "data"
RECORDING = DATA / "recordings/kubelet/checkpoint-1.34-two-resources.json"
CASES = json.loads((DATA / "conformance/checkpoints.json").read_text())["cases"]


# The kubelet's own verdicts --------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_agrees_with_the_kubelet(case: dict[str, Any]) -> None:
    blob = case["blob"].encode()
    of_that_age = {"v1": Format.LIST, "v2": Format.NUMA}[case["format"]]

    assert judge(blob) == case["fails_at"]
    assert judge(blob, of_that_age) == case["fails_at"]
    assert (judge(blob, Format.NUMA) is None) == case["kubelet_1_34_loads"]
    if case["fails_at"] != "json":
        document = parse(blob, of_that_age)
        assert document.checksum == case["checksum"]
        assert (document.checksum == document.computed) == case["valid"]
        if "hash_input" in case:
            assert hash_text(document.checkpoint, of_that_age) == case["hash_input"]
        if case["kind"] in ("written-by-kubelet", "golden"):
            assert render(document.checkpoint, of_that_age) == blob


def test_recorded_file_is_sound_and_reproduced_byte_for_byte() -> None:
    blob = RECORDING.read_bytes()
    document = parse(blob)
    assert document.format is Format.NUMA
    assert document.sound
    assert render(document.checkpoint) == blob


def test_recorded_file_names_the_holders() -> None:
    checkpoint = parse(RECORDING.read_bytes()).checkpoint
    assert checkpoint.entries
    for entry in checkpoint.entries:
        assert entry.ids
        assert entry.ids <= checkpoint.held(entry.resource)
    assert checkpoint.held("absent.example/resource") == frozenset()


def test_example_edited_for_an_article_is_noticed() -> None:
    document = parse((DATA / "seeds/003-checkpoint.json").read_bytes())
    assert (document.checksum, document.computed) == (216033768, 2703430300)
    assert not document.sound


# Formats ---------------------------------------------------------------------------------------------

DATA_OF_1_9 = b'{"PodDeviceEntries":[{"PodUID":"u","DeviceIDs":["a","b"]}],"RegisteredDevices":{"r":["a"]}}'


def test_plain_file_has_nothing_to_check() -> None:
    document = parse(DATA_OF_1_9)
    assert document.format is Format.PLAIN
    assert document.checksum is None
    assert not document.sound
    assert document.checkpoint.held("") == {"a", "b"}
    assert parse(render(document.checkpoint, Format.PLAIN)) == document


def test_file_without_ids_is_taken_for_the_newest_unless_only_the_older_checksum_agrees() -> None:
    checkpoint = Checkpoint((Entry("u", "c", "r", None, None),), None)
    assert parse(render(checkpoint, Format.NUMA)).format is Format.NUMA
    assert parse(render(checkpoint, Format.LIST)).format is Format.LIST
    assert parse(b'{"Data":{"PodDeviceEntries":[{}]},"Checksum":1}').format is Format.NUMA


def test_ids_in_both_forms_are_refused() -> None:
    assert judge(b'{"Data":{"PodDeviceEntries":[{"DeviceIDs":["a"]},{"DeviceIDs":{"0":["b"]}}]}}') == "json"


def test_ids_of_one_format_cannot_be_written_in_the_other() -> None:
    listed = Checkpoint((Entry("u", "c", "r", ("a",), None),), None)
    by_node = Checkpoint((Entry("u", "c", "r", {NO_TOPOLOGY: ("a",)}, None),), None)
    for checkpoint, format in ((listed, Format.NUMA), (by_node, Format.LIST), (by_node, Format.PLAIN)):
        with pytest.raises(ValueError, match="pod u "):
            render(checkpoint, format)


# Writing ---------------------------------------------------------------------------------------------


def test_written_strings_are_escaped_as_go_escapes_them() -> None:
    text = "\"\\/<>&'\b\f\n\r\t\x00\x1f\x7f\x80\u2027\u2028\u2029é😀\ufffd"
    short = r"\"\\/\u003c\u003e\u0026'\b\f\n\r\t\u0000\u001f"
    expected = f'"{short}\x7f\x80\u2027' r"\u2028\u2029" 'é😀\ufffd":[]'
    assert expected.encode() in render(Checkpoint(None, {text: ()}))


def test_keys_are_written_in_the_order_of_strings_and_hashed_in_the_order_of_integers() -> None:
    by_node = Entry("u", "c", "r", {10: ("a",), 2: ("a",), 0: ("a",), NO_TOPOLOGY: ("a",)}, None)
    checkpoint = Checkpoint((by_node,), {"é": (), "b": (), "B": ()})
    assert b'{"-1":["a"],"0":["a"],"10":["a"],"2":["a"]}' in render(checkpoint)
    assert '{"B":[],"b":[],"é":[]}'.encode() in render(checkpoint)
    assert "map[-1:[a] 0:[a] 2:[a] 10:[a]]" in hash_text(checkpoint)


Registered = dict[str, tuple[str, ...] | None] | None


@given(checkpoints())
@settings(deadline=None)
def test_what_is_written_reads_back(checkpoint: Checkpoint) -> None:
    document = parse(render(checkpoint))
    assert document.format is Format.NUMA
    assert document.checkpoint == checkpoint
    assert document.sound


@given(checkpoints(Format.LIST))
@settings(deadline=None)
def test_what_is_written_in_the_older_formats_reads_back(checkpoint: Checkpoint) -> None:
    document = parse(render(checkpoint, Format.LIST))
    assert document.checkpoint == checkpoint
    assert document.sound
    assert parse(render(checkpoint, Format.PLAIN)) == CheckpointDocument(checkpoint, None, Format.PLAIN)


@given(checkpoints())
@settings(deadline=None)
def test_python_agrees_about_what_is_written(checkpoint: Checkpoint) -> None:
    written = json.loads(render(checkpoint))
    assert written["Checksum"] == checksum(checkpoint)
    assert msgspec.convert(written["Data"]["RegisteredDevices"], Registered) == checkpoint.registered


@given(checkpoints(), checkpoints())
@settings(deadline=None)
@example(Checkpoint(None, {"r": ("a", "b")}), Checkpoint(None, {"r": ("a b",)}))
@example(Checkpoint(None, {"r": ()}), Checkpoint(None, {"r": None}))
@example(Checkpoint((), None), Checkpoint(None, None))
def test_a_change_is_noticed_unless_it_does_not_show_in_the_hashed_text(
    one: Checkpoint, other: Checkpoint
) -> None:
    forged = CheckpointDocument(other, checksum(one), Format.NUMA)
    assert forged.sound == (hash_text(one) == hash_text(other))


def test_ids_joined_by_a_space_are_a_change_that_the_kubelet_does_not_see() -> None:
    apart, joined = Checkpoint(None, {"r": ("a", "b")}), Checkpoint(None, {"r": ("a b",)})
    assert apart != joined
    assert checksum(apart) == checksum(joined)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_read_or_refused(blob: bytes) -> None:
    for format in (None, *Format):
        judge(blob, format)


SMALL = [case["blob"] for case in CASES if len(case["blob"]) < 2000]
DAMAGE = [b"null", b"[]", b"{}", b'""', b'"', b"\\", b"\\ud800", b"-1", b","]


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_any_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    blob = bytearray(data.draw(st.sampled_from(SMALL)).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(blob)))
        length = data.draw(st.integers(0, 6))
        blob[at : at + length] = data.draw(st.binary(max_size=3) | st.sampled_from(DAMAGE))
    judge(bytes(blob))


# Cost ------------------------------------------------------------------------------------------------


def reading(devices: int) -> Callable[[], object]:
    """Reads and checks a file of so many devices."""
    ids = tuple(f"GPU-{i:08d}-5f40-624b-90f7-b0a3db7a97a0" for i in range(devices))
    entries = tuple(
        Entry(f"{i:036d}", "main", "vendor.example/gpu", {i % 8: ids[i : i + 10]}, b"\x0a\x16NVIDIA")
        for i in range(0, devices, 10)
    )
    blob = render(Checkpoint(entries, {"vendor.example/gpu": ids}))
    return lambda: parse(blob)


def test_ten_times_the_devices_cost_about_ten_times_as_much() -> None:
    check_growth(reading, 1_000, 10_000, at_most=12)
