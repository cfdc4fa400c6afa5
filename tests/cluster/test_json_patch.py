"""JSON patches: pointers, preconditions, and what they would do."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import assume, given

from colocate.cluster import json_patch as jp
from colocate.cluster.json_patch import Add, Replace, Test
from colocate.model.json_patch import PatchFailed, equal, parse_pointer, pointer

steps = st.lists(st.text("ab/~01", min_size=1, max_size=4), min_size=1, max_size=3)
leaves = st.none() | st.booleans() | st.integers(-2, 2) | st.text("xy~/", max_size=2)
documents = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ((), ""),
        (("status", "capacity", "example.com/fan"), "/status/capacity/example.com~1fan"),
        (("a~b",), "/a~0b"),
        (("~1",), "/~01"),
        (("/",), "/~1"),
        (("spec", "containers", 0), "/spec/containers/0"),
        (("",), "/"),
    ],
)
def test_pointers_are_escaped(way: tuple[str | int, ...], text: str) -> None:
    assert pointer(*way) == text


@given(steps)
def test_a_pointer_reads_back_as_it_was_written(way: list[str]) -> None:
    assert parse_pointer(pointer(*way)) == way


def test_on_the_wire_an_operation_names_itself() -> None:
    patch = (*jp.replace(("a", "b"), 1, 2), *jp.remove(("c",), None), Add("/d/-", [3]))
    assert msgspec.json.decode(msgspec.json.encode(patch)) == [
        {"op": "test", "path": "/a/b", "value": 1},
        {"op": "replace", "path": "/a/b", "value": 2},
        {"op": "test", "path": "/c", "value": None},
        {"op": "remove", "path": "/c"},
        {"op": "add", "path": "/d/-", "value": [3]},
    ]


@given(documents, steps, leaves, leaves)
def test_a_replacement_is_refused_where_the_value_is_another(
    document: Any, way: list[str], old: Any, new: Any
) -> None:
    found = jp.find(document, way)
    try:
        changed = jp.apply(document, jp.replace(way, old, new))
    except PatchFailed:
        assert found is None or not equal(found, old)
    else:
        assert equal(found, old)
        assert equal(jp.find(changed, way), new)


@given(documents)
def test_a_preview_leaves_the_document_alone(document: Any) -> None:
    before = msgspec.json.encode(document)
    jp.apply(document, (Test("", document), Replace("", {"new": []})))
    assert msgspec.json.encode(document) == before


def seen(**fields: object) -> dict[str, object]:
    return {"metadata": {"name": "a", "resourceVersion": "7"}, **fields}


def test_a_field_is_set_only_where_it_was_absent() -> None:
    node = seen(status={"capacity": {"cpu": "4"}})
    assert jp.set_if_absent(node, ("status", "capacity", "cpu"), "5") == ()
    patch = jp.set_if_absent(node, ("status", "capacity", "x/fan"), "5")
    assert patch == (Test("/metadata/resourceVersion", "7"), Add("/status/capacity/x~1fan", "5"))


def test_maps_on_the_way_to_an_absent_field_are_made() -> None:
    patch = jp.set_if_absent(seen(), ("metadata", "annotations", "a"), "b")
    changed = jp.apply(seen(), patch)
    assert jp.find(changed, ("metadata", "annotations")) == {"a": "b"}


def test_an_absent_field_is_not_set_once_the_object_has_changed() -> None:
    patch = jp.set_if_absent(seen(), ("metadata", "annotations", "a"), "b")
    later = {"metadata": {"name": "a", "resourceVersion": "8", "annotations": {"other": "c"}}}
    with pytest.raises(PatchFailed):
        jp.apply(later, patch)


def test_an_object_that_was_never_read_has_no_precondition() -> None:
    with pytest.raises(ValueError, match="resourceVersion"):
        jp.unchanged({"metadata": {}})


@given(st.dictionaries(st.text("ab/", max_size=2), leaves, max_size=3), st.text("ab/", max_size=2), leaves)
def test_a_value_is_brought_about_from_whatever_there_was(
    fields: dict[str, object], name: str, value: object
) -> None:
    assume(fields.get(name, 0) is not None)  # An explicit null is gone as soon as a server has read it.
    document = seen(data=fields)
    changed = jp.apply(document, jp.set_value(document, ("data", name), value))
    assert equal(jp.find(changed, ("data", name)), value)


@pytest.mark.parametrize("text", ["a", "a/b"])
def test_what_does_not_begin_with_a_slash_is_no_pointer(text: str) -> None:
    with pytest.raises(PatchFailed, match="not a JSON pointer"):
        parse_pointer(text)
