"""Selectors, quantities and ages: the small languages of the API."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.lab.api import quantities
from colocate.lab.api.ages import human
from colocate.lab.api.selectors import ObjectSelection, from_object, parse_fields, parse_labels, to_text

keys = st.sampled_from(["app", "tier", "example.com/zone", "a.b-c_d"])
values = st.sampled_from(["", "web", "db", "x-1", "Y_2.z"])
labels = st.dictionaries(keys, values, max_size=4)


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        ("app=web", {"app": "web"}, {"app": "db"}),
        ("app==web", {"app": "web"}, {}),
        ("app!=web", {}, {"app": "web"}),
        ("app in (web, db)", {"app": "db"}, {"app": "x"}),
        ("app notin (web)", {}, {"app": "web"}),
        ("app", {"app": ""}, {}),
        ("!app", {}, {"app": "web"}),
        ("app=web,tier!=db", {"app": "web"}, {"app": "web", "tier": "db"}),
        ("app=,tier", {"app": "", "tier": "x"}, {"app": "web", "tier": "x"}),
        ("n>5", {"n": "6"}, {"n": "5"}),
        ("n<5", {"n": "4"}, {"n": "many"}),
        ("in=notin", {"in": "notin"}, {}),
        ("", {"a": "b"}, None),
    ],
)
def test_label_selectors(text: str, matching: dict[str, str], other: dict[str, str] | None) -> None:
    selector = parse_labels(text)
    assert selector.matches(matching)
    assert other is None or not selector.matches(other)


@pytest.mark.parametrize(
    "text", ["a b", "=b", "a in b", "a in (b", "a=b,", ",a", "a=b c", "a in (b c)", "a=$", "(a)"]
)
def test_label_selectors_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="unable to parse"):
        parse_labels(text)


@given(st.text(max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    for parse in (parse_labels, lambda given: parse_fields(given, "pods")):
        try:
            parse(text)
        except ValueError:
            pass


@given(labels, st.lists(st.tuples(keys, st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]), values)))
def test_the_text_of_a_selector_object_means_the_same(given_labels: Any, wanted: Any) -> None:
    expressions = [
        {"key": key, "operator": operator, "values": [value] if operator.endswith("In") else []}
        for key, operator, value in wanted
    ]
    selector = {"matchExpressions": expressions}
    assert parse_labels(to_text(selector)).matches(given_labels) == from_object(selector).matches(
        given_labels
    )


@given(labels, labels)
def test_equality_is_inclusion(wanted: dict[str, str], given_labels: dict[str, str]) -> None:
    selector = from_object({"matchLabels": wanted})
    assert selector.matches(given_labels) == (wanted.items() <= given_labels.items())


POD = {
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {"nodeName": "vm", "schedulerName": "plain"},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("metadata.name=p", True),
        ("metadata.namespace!=default", False),
        ("spec.nodeName=vm,status.phase==Running", True),
        ("spec.nodeName=", False),
        ("spec.schedulerName=plain", True),
        ("status.podIP=", True),
        ("spec.hostNetwork=false", True),
        ("", True),
    ],
)
def test_field_selectors(text: str, holds: bool) -> None:
    assert parse_fields(text, "pods").matches(POD) is holds


def test_field_selectors_of_nodes_and_events() -> None:
    node = {"metadata": {"name": "n"}, "spec": {}}
    assert parse_fields("spec.unschedulable=false", "nodes").matches(node)
    event = {
        "involvedObject": {"name": "p", "kind": "Pod"},
        "reason": "Failed",
        "source": {"component": "kubelet"},
    }
    selector = parse_fields("involvedObject.name=p,regarding.kind=Pod,reason=Failed,source=kubelet", "events")
    assert selector.matches(event)
    assert not parse_fields("involvedObject.name=q", "events").matches(event)


@pytest.mark.parametrize("text", ["spec.image=x", "spec.nodeName", "=x", "status.qosClass=x"])
def test_fields_that_cannot_be_selected_by(text: str) -> None:
    with pytest.raises(ValueError, match=r"field label not supported|invalid selector"):
        parse_fields(text, "pods")


def test_a_selection_needs_both() -> None:
    selection = ObjectSelection(parse_labels("app=web"), parse_fields("spec.nodeName=vm", "pods"))
    assert not selection.matches(POD)
    assert selection.matches(POD | {"metadata": {"labels": {"app": "web"}}})


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("0.5", "500m"),
        ("1", "1"),
        (4, "4"),
        (0.1, "100m"),
        ("1000m", "1"),
        ("1000", "1k"),
        ("1.5Gi", "1536Mi"),
        ("1024Ki", "1Mi"),
        ("64Mi", "64Mi"),
        ("0", "0"),
        ("0Mi", "0"),
        ("1e3", "1k"),
        ("100n", "100n"),
        ("-5", "-5"),
        ("0.5Ki", "512"),
    ],
)
def test_canonical_quantities(given_text: object, expected: str) -> None:
    assert quantities.canonical(given_text) == expected


@given(st.integers(0, 10**15), st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_a_canonical_quantity_is_the_same_amount(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    once = quantities.canonical(text)
    assert quantities.parse(once) == quantities.parse(text)
    assert quantities.canonical(once) == once


@pytest.mark.parametrize("text", ["", "x", "1x", "1 Gi", "--1", "1e", True, None, "1e9999"])
def test_quantities_that_are_none(text: object) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        quantities.parse(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (451, "7m31s"),
        (600, "10m"),
        (68 * 60, "68m"),
        (3 * 3600, "3h"),
        (5 * 3600 + 600, "5h10m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (3 * 86_400 + 4 * 3600, "3d4h"),
        (8 * 86_400, "8d"),
        (500 * 86_400, "500d"),
        (3 * 365 * 86_400 + 20 * 86_400, "3y20d"),
        (9 * 365 * 86_400, "9y"),
    ],
)
def test_ages(seconds: float, shown: str) -> None:
    assert human(seconds) == shown
