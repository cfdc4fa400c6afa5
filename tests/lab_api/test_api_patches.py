"""Patches: the examples of the RFCs, what is peculiar to Kubernetes, and what holds of every patch."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.lab.api import patch, patch_strategic
from colocate.lab.api.patch import PatchType
from colocate.lab.api.status import StatusError
from colocate.model import json_patch
from colocate.model.json_patch import PatchFailed

RFC_7386 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]

RFC_6902: list[tuple[Any, list[dict[str, Any]], Any]] = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    (
        {"foo": ["bar", "baz"]},
        [{"op": "add", "path": "/foo/1", "value": "qux"}],
        {"foo": ["bar", "qux", "baz"]},
    ),
    ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
    (
        {"baz": "qux", "foo": "bar"},
        [{"op": "replace", "path": "/baz", "value": "boo"}],
        {"baz": "boo", "foo": "bar"},
    ),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    (
        {"foo": "bar"},
        [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    (
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
        {"foo": "bar", "baz": "qux"},
    ),
    ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    (
        {"foo": ["bar"]},
        [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
        {"foo": ["bar", ["abc", "def"]]},
    ),
    ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
    ({"a": 1}, [{"op": "add", "path": "", "value": {"b": 2}}], {"b": 2}),
]

RFC_6902_FAILS: list[tuple[Any, dict[str, Any]]] = [
    ({"baz": "qux"}, {"op": "test", "path": "/baz", "value": "bar"}),
    ({"foo": "bar"}, {"op": "add", "path": "/baz/bat", "value": "qux"}),
    ({"/": 9, "~1": 10}, {"op": "test", "path": "/~01", "value": "10"}),
    ({"a": 1}, {"op": "test", "path": "/a", "value": True}),
    ({"a": [1]}, {"op": "add", "path": "/a/2", "value": 1}),
    ({"a": [1]}, {"op": "add", "path": "/a/01", "value": 1}),
    ({"a": [1]}, {"op": "remove", "path": "/a/-"}),
    ({"a": [1]}, {"op": "remove", "path": "/a/-1"}),
    ({"a": [1]}, {"op": "remove", "path": "/a/" + "9" * 5000}),
    ({"a": 1}, {"op": "remove", "path": "/b"}),
    ({"a": 1}, {"op": "remove", "path": ""}),
    ({"a": 1}, {"op": "replace", "path": "/b", "value": 1}),
    ({"a": 1}, {"op": "replace", "path": "/a"}),
    ({"a": 1}, {"op": "copy", "from": "/b", "path": "/c"}),
    ({"a": {"b": 1}}, {"op": "move", "from": "/a", "path": "/a/b"}),
    ({"a": 1}, {"op": "add", "path": "a", "value": 1}),
    ({"a": 1}, {"op": "frobnicate", "path": "/a"}),
    ({"a": 1}, {"op": "add", "path": 7, "value": 1}),
]

names = st.text("ab/~", max_size=2)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab/~", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
json_objects = st.dictionaries(names, json_values, max_size=4)


@pytest.mark.parametrize(("document", "change", "expected"), RFC_7386)
def test_merge_patch_examples(document: Any, change: Any, expected: Any) -> None:
    assert patch.merge(document, change) == expected


@pytest.mark.parametrize(("document", "operations", "expected"), RFC_6902)
def test_json_patch_examples(document: Any, operations: list[Any], expected: Any) -> None:
    assert json_patch.apply(document, operations) == expected


@pytest.mark.parametrize(("document", "operation"), RFC_6902_FAILS)
def test_json_patch_that_cannot_be_applied(document: Any, operation: dict[str, Any]) -> None:
    with pytest.raises(PatchFailed):
        json_patch.apply(document, [operation])


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return value


@given(json_objects, json_objects)
def test_merge_patch_is_idempotent_and_leaves_its_arguments(document: Any, change: Any) -> None:
    before = copy.deepcopy((document, change))
    once = patch.merge(document, change)
    assert patch.merge(once, change) == once
    assert (document, change) == before


@given(json_objects)
def test_merge_patch_of_nothing_is_the_patch_without_nulls(change: Any) -> None:
    assert patch.merge({}, change) == without_nulls(change)


def escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


@given(json_objects, st.text("ab/~", min_size=1, max_size=2), json_values)
def test_what_json_patch_adds_can_be_tested_and_removed(document: Any, key: str, value: Any) -> None:
    path = f"/{escaped(key)}"
    original = {name: one for name, one in document.items() if name != key}
    added = json_patch.apply(original, [{"op": "add", "path": path, "value": value}])
    assert added[key] == value
    operations = [{"op": "test", "path": path, "value": value}, {"op": "remove", "path": path}]
    assert json_patch.apply(added, operations) == original
    moved = json_patch.apply(added, [{"op": "move", "from": path, "path": "/moved"}])
    assert moved == original | {"moved": value}


@given(json_objects, st.lists(st.dictionaries(st.sampled_from(["op", "path", "from", "value"]), json_values)))
def test_no_json_patch_does_worse_than_fail(document: Any, operations: Any) -> None:
    before = json.dumps(document)
    try:
        json_patch.apply(document, operations)
    except (PatchFailed, ValueError):
        pass
    assert json.dumps(document) == before


def test_a_document_cannot_be_copied_into_itself_without_end() -> None:
    double = {"op": "copy", "from": "", "path": "/again"}
    with pytest.raises(PatchFailed, match="copies more than"):
        json_patch.apply({"a": "x" * 1000}, [double] * 10_000)


# Strategic merge


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


def test_containers_merge_by_name_and_env_inside_them() -> None:
    document = pod(
        {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "2"}
    )
    change = pod({"name": "a", "env": [{"name": "Y", "value": "2"}]}, {"name": "c", "image": "3"})
    env = [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]
    assert patch_strategic.apply(document, change) == pod(
        {"name": "a", "image": "1", "env": env}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}
    )


def test_an_element_can_be_deleted_and_a_list_replaced() -> None:
    document = pod({"name": "a"}, {"name": "b"})
    assert patch_strategic.apply(document, pod({"name": "a", "$patch": "delete"})) == pod({"name": "b"})
    assert patch_strategic.apply(document, pod({"name": "c"}, {"$patch": "replace"})) == pod({"name": "c"})


@pytest.mark.parametrize("field", ["tolerations", "taints", "rules"])
def test_other_lists_are_replaced(field: str) -> None:
    document = {"spec": {field: [{"key": "a"}, {"key": "b"}]}}
    assert patch_strategic.apply(document, {"spec": {field: [{"key": "c"}]}}) == {
        "spec": {field: [{"key": "c"}]}
    }


def test_conditions_merge_by_type() -> None:
    document = {
        "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk", "status": "False"}]}
    }
    change = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    found = patch_strategic.apply(document, change)["status"]["conditions"]
    assert found == [{"type": "Ready", "status": "False"}, {"type": "Disk", "status": "False"}]


def test_directives_of_maps_and_primitive_lists() -> None:
    document = {
        "metadata": {"labels": {"a": "1"}, "finalizers": ["x", "y"]},
        "spec": {"strategy": {"a": 1, "b": 2}},
    }
    change = {
        "metadata": {
            "labels": {"$patch": "replace", "b": "2"},
            "$deleteFromPrimitiveList/finalizers": ["x"],
            "finalizers": ["z"],
            "$setElementOrder/finalizers": ["z", "y"],
        },
        "spec": {"strategy": {"$retainKeys": ["b"], "b": 3}},
    }
    assert patch_strategic.apply(document, change) == {
        "metadata": {"labels": {"b": "2"}, "finalizers": ["y", "z"]},
        "spec": {"strategy": {"b": 3}},
    }
    assert patch_strategic.apply({"a": {"b": 1}, "c": 1}, {"a": {"$patch": "delete"}}) == {"c": 1}


@pytest.mark.parametrize(
    "change", [pod({"image": "x"}), {"a": {"$patch": "explode"}}, {"$unknown": 1}, {"$retainKeys": 7}]
)
def test_a_strategic_patch_that_makes_no_sense(change: Any) -> None:
    with pytest.raises(StatusError) as refused:
        patch.apply(PatchType.STRATEGIC, pod({"name": "a"}), change)
    assert refused.value.code == 400


plain_objects = json_objects.map(lambda value: {f"k{key}": one for key, one in value.items()})


@given(plain_objects, plain_objects)
def test_without_named_lists_a_strategic_patch_is_a_merge_patch(document: Any, change: Any) -> None:
    assert patch_strategic.apply(document, change) == patch.merge(document, change)


@given(plain_objects, plain_objects)
def test_a_strategic_patch_is_idempotent(document: Any, change: Any) -> None:
    once = patch_strategic.apply(document, change)
    assert patch_strategic.apply(once, change) == once


def test_applying_merges_and_never_removes() -> None:
    document = pod({"name": "a", "image": "1"}, nodeName="vm")
    configuration = pod({"name": "a", "image": "2", "command": None}, nodeName=None)
    assert patch.apply_configuration(document, configuration) == pod(
        {"name": "a", "image": "2"}, nodeName="vm"
    )
    assert patch.apply_configuration(None, {"a": 1, "b": None}) == {"a": 1}


@pytest.mark.parametrize(
    ("type", "change", "code"),
    [
        (PatchType.JSON, {"op": "add"}, 400),
        (PatchType.JSON, [7], 400),
        (PatchType.JSON, [{"op": "add", "path": "", "value": 7}], 422),
        (PatchType.JSON, [{"op": "test", "path": "", "value": {}}] * 10_001, 413),
        (PatchType.MERGE, ["a"], 400),
        (PatchType.MERGE, 7, 400),
        (PatchType.STRATEGIC, "a", 400),
        (PatchType.APPLY, None, 400),
    ],
)
def test_bad_patches_get_their_status(type: PatchType, change: Any, code: int) -> None:
    with pytest.raises(StatusError) as refused:
        patch.apply(type, {}, change)
    assert refused.value.code == code
