"""The checkpoint is read, judged and written as the kubelet does it.

The table in tests/data/conformance was made with the kubelet's own code; the recording is a real kubelet's
file. What Go's encoding/json does where the table is silent is spelled out case by case below.
"""

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.checkpoints import checkpoints

from colocate.kubelet.checkpoint import CheckpointError, Document, checksum, hash_text, parse, render
from colocate.model.checkpoint import NO_TOPOLOGY, Checkpoint, Entry, Format

DATA = Path(__file__).parent.parent / "data"
RECORDING = DATA / "recordings/kubelet/checkpoint-1.34-two-resources.json"
CASES = json.loads((DATA / "conformance/checkpoints.json").read_text())["cases"]


def judge(blob: bytes, format: Format | None = None) -> str | None:
    """Where a reader gives up, in the table's words."""
    try:
        document = parse(blob, format)
    except CheckpointError:
        return "json"
    return None if document.sound else "checksum"


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
    assert checkpoint.held("nobody.example/has-it") == frozenset()


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


# Go's encoding/json, habit by habit ------------------------------------------------------------------


def entry_of(members: str, format: Format = Format.NUMA) -> Entry:
    """The entry that these members decode into, as Go text inside a file."""
    blob = f'{{"Data":{{"PodDeviceEntries":[{{{members}}}]}}}}'.encode("utf-8", "surrogateescape")
    entries = parse(blob, format).checkpoint.entries
    assert entries is not None
    return entries[0]


@pytest.mark.parametrize(
    ("members", "uid"),
    [
        ('"PodUID":"a"', "a"),
        ('"POdUId":"a"', "a"),
        ('"podUID ":"a"', ""),
        ('"Pod_UID":"a"', ""),
        ('"PodUID":"a","poduid":"b"', "b"),
        ('"PodUID":"a","PodUID":null', "a"),
        ('"PodUID":null', ""),
        ('"\\u0050odUID":"a"', "a"),
        ('"PodUID":"\\u0041\\/\\"\\\\\\b\\f\\n\\r\\t"', 'A/"\\\b\f\n\r\t'),
        ('"PodUID":"\\ud83d\\ude00"', "😀"),
        ('"PodUID":"\\ud83dx"', "\ufffdx"),
        ('"PodUID":"\\ude00\\ud83d"', "\ufffd\ufffd"),
        ('"PodUID":"\\ud83d\\ud83d\\ude00"', "\ufffd😀"),
        ('"PodUID":"\\ud83d\\u0041"', "\ufffdA"),
        ('"PodUID":"a\udce2\udc82z"', "a\ufffd\ufffdz"),  # one for every byte that is not UTF-8
        ('"PodUID":"\udced\udca0\udc80"', "\ufffd\ufffd\ufffd"),
        ('"PodUID":"\udcff\\n"', "\ufffd\n"),
        ('"PodUID":"\x7f\u2028\ufeff"', "\x7f\u2028\ufeff"),
        ('"unknown":{"a":[1e5,-0.5,true,false,null,{}]},"PodUID":"a"', "a"),
    ],
)
def test_strings_and_names(members: str, uid: str) -> None:
    assert entry_of(members).pod_uid == uid


def test_kelvin_and_long_s_count_as_letters() -> None:
    assert parse('{"Chec\u212a\u017fum":7}'.encode()).checksum == 7
    assert parse('{"Checkſum":7,"checksum":null}'.encode()).checksum == 7
    assert parse('{"Checksüm":7}'.encode()).checksum is None


@pytest.mark.parametrize(
    ("key", "node"),
    [
        ("0", 0),
        ("-0", 0),
        ("+1", 1),
        ("01", 1),
        ("-007", -7),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0" * 5000 + "3", 3),
        ("", None),
        (" 1", None),
        ("1 ", None),
        ("1e0", None),
        ("1.0", None),
        ("0x1", None),
        ("1_0", None),
        ("--1", None),
        ("+", None),
        ("٣", None),
        ("1\\n", None),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("9" * 5000, None),
    ],
)
def test_numa_keys(key: str, node: int | None) -> None:
    if node is None:
        with pytest.raises(CheckpointError, match="DeviceIDs"):
            entry_of(f'"DeviceIDs":{{"{key}":["a"]}}')
    else:
        assert entry_of(f'"DeviceIDs":{{"{key}":["a"]}}').devices == {node: ("a",)}


@pytest.mark.parametrize(
    ("value", "response"),
    [
        ("null", None),
        ('""', b""),
        ("[]", b""),
        ('"Bw=="', b"\x07"),
        ('"Bx=="', b"\x07"),  # bits behind the end are not looked at
        ('"\\r\\nB\\nw=\\n=\\n"', b"\x07"),
        ('"QUJD"', b"ABC"),
        ("[1,255,null]", b"\x01\xff\x00"),
        ('"Bw"', "base64"),
        ('"Bw="', "base64"),
        ('"="', "base64"),
        ('"===="', "base64"),
        ('"QUJD="', "base64"),
        ('"QUI=QUI="', "base64"),
        ('"Qg==QQ=="', "base64"),
        ('"B w=="', "base64"),
        ('"-_=="', "base64"),
        ('"é==="', "base64"),
        ("[256]", "0 to 2^8"),
        ("[-1]", "0 to 2^8"),
        ("[1.0]", "0 to 2^8"),
        ('["1"]', "0 to 2^8"),
        ("7", "base64"),
        ("{}", "base64"),
    ],
)
def test_bytes(value: str, response: bytes | str | None) -> None:
    if isinstance(response, str):
        with pytest.raises(CheckpointError, match=rf"AllocResp.*{re.escape(response)}"):
            entry_of(f'"AllocResp":{value}')
    else:
        assert entry_of(f'"AllocResp":{value}').alloc_resp == response


@pytest.mark.parametrize(
    ("literal", "stated"),
    [
        ("0", 0),
        ("18446744073709551615", 2**64 - 1),
        ("null", None),
        ("18446744073709551616", "json"),
        ("9" * 5000, "json"),
        ("-1", "json"),
        ("-0", "json"),
        ("1.0", "json"),
        ("1e0", "json"),
        ("01", "json"),
        ("+1", "json"),
        ('"1"', "json"),
        ("true", "json"),
        ("[1]", "json"),
        ("NaN", "json"),
        ("Infinity", "json"),
    ],
)
def test_checksum_literals(literal: str, stated: int | str | None) -> None:
    blob = f'{{"Checksum":{literal}}}'.encode()
    if stated == "json":
        with pytest.raises(CheckpointError):
            parse(blob)
    else:
        assert parse(blob).checksum == stated


WRONG_TYPES = """
{"Data":[]}
{"Data":""}
{"Data":{"PodDeviceEntries":{}}}
{"Data":{"PodDeviceEntries":[[]]}}
{"Data":{"PodDeviceEntries":[{"PodUID":1}]}}
{"Data":{"PodDeviceEntries":[{"ContainerName":true}]}}
{"Data":{"PodDeviceEntries":[{"ResourceName":["r"]}]}}
{"Data":{"PodDeviceEntries":[{"DeviceIDs":"a"}]}}
{"Data":{"PodDeviceEntries":[{"DeviceIDs":[1]}]}}
{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"0":"a"}}]}}
{"Data":{"RegisteredDevices":[]}}
{"Data":{"RegisteredDevices":{"a":"b"}}}
{"Data":{"RegisteredDevices":{"a":[["b"]]}}}
"""


@pytest.mark.parametrize("text", WRONG_TYPES.split())
def test_wrong_types_are_refused_in_every_format(text: str) -> None:
    assert {judge(text.encode(), format) for format in (None, Format.NUMA, Format.LIST)} == {"json"}


NOT_JSON = rb"""
1 "" [] true {}{} {}, {,} {a:1} {'a':1} {"a"} {"a":} {"a":1,} {"a":[1,]} {"a":[1;2]} {"a":[1} {"a":1]
{"a":.5} {"a":1.} {"a":-} {"a":1e} {"a":+1} {"a":01} {"a":0x1} {"a":NaN} {"a":nul} {"a":True}
{"a":" {"a":"\x41"} {"a":"\u12g4"} {"a":"\u123 {"a":"\"} //{}
"""
CONTROL = [
    b"",
    b" ",
    b"\xef\xbb\xbf{}",
    b"\xff",
    b"\xa0{}",
    b"{}\x0b",
    b"{}\x00",
    b'{"a":"\x01"}',
    b'{"a":"\n"}',
]


@pytest.mark.parametrize("blob", NOT_JSON.split() + CONTROL)
def test_what_is_not_json_is_refused(blob: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"^the checkpoint ") as refused:
        parse(blob)
    assert ". " not in str(refused.value), "one sentence"


@pytest.mark.parametrize(
    ("blob", "found"),
    [
        (b"\xef\xbb\xbf{}", "a byte order mark"),
        (b"\xff\xfe{", "the byte 0xff"),
        (b"{]", "']'"),
        (b"[", "the end of the file"),
    ],
)
def test_what_stands_where_it_should_not_is_called_by_its_name(blob: bytes, found: str) -> None:
    with pytest.raises(CheckpointError, match=f"but is {re.escape(found)}"):
        parse(blob)


def test_members_that_kubelets_pass_over_are_known_by_their_paths() -> None:
    entry = '{"PodUID":"u","Since":1,"poduid":"v"}'
    blob = (
        f'{{"Data":{{"Future":{{}},"PodDeviceEntries":[{entry},{entry}],"Future":2}},"checksum":1,"More":[]}}'
    )
    expected = ("More", "Data.Future", "Data.PodDeviceEntries[].Since")
    assert parse(blob.encode(), Format.NUMA).unknown == expected
    plain = f'{{"PodDeviceEntries":[{entry}],"Future":1}}'
    assert parse(plain.encode()).unknown == ("Future", "PodDeviceEntries[].Since")
    assert parse(render(Checkpoint((), {}))).unknown == ()


def test_null_and_empty_documents_read_as_nothing_and_fail_at_the_checksum() -> None:
    for blob in (b"null", b"{}", b" { } \r\n\t"):
        assert judge(blob) == judge(blob, Format.NUMA) == judge(blob, Format.LIST) == "checksum"


def test_nesting_is_limited_where_go_limits_it() -> None:
    deepest = b'{"x":' + b"[" * 9_999 + b"]" * 9_999 + b',"Checksum":1}'
    assert parse(deepest).checksum == 1
    with pytest.raises(CheckpointError, match="deeper than 10000"):
        parse(deepest.replace(b"[]", b"[[]]"))


def test_repeated_structs_and_maps_merge() -> None:
    document = parse(
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"a":["1"],"b":["2",null],"c":null}},'
        b'"data":{"RegisteredDevices":{"b":["3"]},"registereddevices":{"d":[]}},"Data":null}'
    )
    assert document.checkpoint == Checkpoint((), {"a": ("1",), "b": ("3",), "c": None, "d": ()})


def test_repeated_lists_decode_over_the_elements_that_are_there() -> None:
    def entries(*texts: str) -> tuple[Entry, ...] | None:
        members = ",".join(f'"PodDeviceEntries":{text}' for text in texts)
        return parse(f'{{"Data":{{{members}}}}}'.encode(), Format.NUMA).checkpoint.entries

    first = '[{"PodUID":"a","DeviceIDs":{"0":["x"]}},{"PodUID":"b"}]'
    merged = Entry("a", "m", "", {0: ("x",), 1: ("y",)}, None)
    stale = Entry("b", "", "", None, None)
    assert entries(first, '[{"ContainerName":"m","DeviceIDs":{"1":["y"]}}]') == (merged,)
    assert entries(first, "[{}]", "[null,{},{}]") == (
        Entry("a", "", "", {0: ("x",)}, None),
        stale,
        Entry("", "", "", None, None),
    )
    assert entries(first, "[]", "[{}]") == (Entry("", "", "", None, None),)
    assert entries(first, "null", "[{}]") == (Entry("", "", "", None, None),)
    assert entries(first, "null") is None
    assert entries(first, "[]") == ()


def test_repeated_lists_of_strings_and_bytes_keep_what_null_does_not_replace() -> None:
    assert entry_of('"DeviceIDs":["a","b"],"DeviceIDs":[null,"c",null]', Format.LIST).devices == (
        "a",
        "c",
        "",
    )
    assert entry_of('"DeviceIDs":["a","b"],"DeviceIDs":["c"]', Format.LIST).devices == ("c",)
    assert entry_of('"DeviceIDs":{"0":["a"]},"DeviceIDs":{"0":[null]}').devices == {0: ("",)}
    assert entry_of('"AllocResp":"Bwg=","AllocResp":[null,1,null]').alloc_resp == b"\x07\x01\x00"


def test_an_error_says_where_it_is() -> None:
    for blob, expected in (
        (b'{"Data":{},\n"Checksum":x}', r"byte 23 \(line 2\) should be a JSON value but is 'x'"),
        (b'{"Data":"abc', r"byte 12 \(line 1\).*end of the file"),
        (b'{"Data":"a\x00"}', r"byte 10 \(line 1\) .*'\\x00'"),
        (
            b'{"data":{"PodDeviceEntries":[{},{"PodUID":[]}]}}',
            r"Data\.PodDeviceEntries\[1\]\.PodUID .* a list",
        ),
        (b"[]", "the document should be an object but is a list"),
    ):
        with pytest.raises(CheckpointError, match=expected):
            parse(blob)


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
    assert parse(render(checkpoint, Format.PLAIN)) == Document(checkpoint, None, Format.PLAIN)


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
    forged = Document(other, checksum(one), Format.NUMA)
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


def seconds(devices: int) -> float:
    """The least time, over a few tries, to read, check and write a file of so many devices."""
    ids = tuple(f"GPU-{i:08d}-5f40-624b-90f7-b0a3db7a97a0" for i in range(devices))
    entries = tuple(
        Entry(f"{i:036d}", "main", "vendor.example/gpu", {i % 8: ids[i : i + 10]}, b"\x0a\x16NVIDIA")
        for i in range(0, devices, 10)
    )
    blob = render(Checkpoint(entries, {"vendor.example/gpu": ids}))
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        document = parse(blob)
        assert document.sound
        best = min(best, time.process_time() - start)
    return best


def test_ten_times_the_devices_cost_about_ten_times_as_much() -> None:
    assert any(seconds(20_000) <= 12 * seconds(2_000) for _ in range(3))
