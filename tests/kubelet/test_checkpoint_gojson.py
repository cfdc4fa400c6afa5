"""The checkpoint is read as Go's encoding/json reads, habit by habit, where the kubelet's table is silent."""

import re

import pytest
from tests.support.checkpoints import judge

from colocate.kubelet.checkpoint import CheckpointError, parse, render
from colocate.model.checkpoint import Checkpoint, Entry, Format


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
