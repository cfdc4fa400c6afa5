"""What is read from Prometheus' answers, sound and unsound."""

import json
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from colocate.cluster.errors import Doing, ServerError
from colocate.cluster.usage.answers import Series, decode

DOING = Doing("query", "prometheus", name="cpu")


def body(result: object, kind: str = "vector", **more: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}, **more}).encode()


def series(value: object, **labels: str) -> dict[str, object]:
    return {"metric": labels, "value": [1.5, value]}


def test_a_vector_is_read() -> None:
    answer = decode(DOING, body([series("12.5", node="a"), series("+Inf", node="b")], isPartial=False))
    assert list(answer) == [Series({"node": "a"}, 1.5, 12.5), Series({"node": "b"}, 1.5, math.inf)]


def test_values_may_be_numbers() -> None:
    assert [one and one.value for one in decode(DOING, body([series(12), series(0.5)]))] == [12.0, 0.5]


def test_an_empty_result_is_a_vector_too() -> None:
    assert list(decode(DOING, body([]))) == []
    assert list(decode(DOING, body(None))) == []


def test_a_series_that_cannot_be_read_leaves_the_others_alone() -> None:
    odd = [
        series("twelve"),
        {"metric": {"node": 7}, "value": [1, "1"]},
        {"metric": {}, "histogram": [1, {"count": "1"}]},
        {"metric": {}, "values": [[1, "1"]]},
        {"value": [1, "1"]},
        7,
        None,
    ]
    answer = decode(DOING, body([*odd, series("1", node="a")]))
    assert list(answer) == [None] * len(odd) + [Series({"node": "a"}, 1.5, 1.0)]


def test_warnings_and_infos_are_kept() -> None:
    answer = decode(DOING, body([], warnings=["a store is gone"], infos=["no counter"]))
    assert answer.warnings == ("a store is gone", "no counter")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"<html>Log in</html>", "JSON is malformed.*: <html>Log in</html>"),
        (b"", "it is empty"),
        (body([series("1")])[:-20], "cannot be read: Input data was truncated"),
        (b"[]", "cannot be read: Expected `object`, got `array`"),
        (b"{}", "it is not from Prometheus: {}"),
        (b'{"status": "success"}', "it is not from Prometheus"),
        (b'{"status": "success", "data": {}}', "its resultType is '' and not vector"),
        (body([{"metric": {}, "values": []}], "matrix"), r"must not end in a range such as \[5m\]"),
        (body([1, "1"], "scalar"), "it is a scalar, which belongs to no node"),
        (body({"a": 1}), "its result is not a list"),
        (b'{"status": "error", "errorType": "timeout", "error": "query timed out"}', "query timed out"),
        (b'{"status": "error", "errorType": "timeout"}', "timeout"),
    ],
)
def test_what_is_no_vector_is_an_error_that_says_so(answer: bytes, words: str) -> None:
    with pytest.raises(ServerError, match=f"cannot query prometheus cpu: .*{words}"):
        decode(DOING, answer)


anything = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
value = st.tuples(anything, anything).map(list) | anything
one_series = st.fixed_dictionaries({}, optional={"metric": anything, "value": value, "values": anything})
answers = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["success", "error"]) | anything,
        "data": st.fixed_dictionaries(
            {},
            optional={
                "resultType": st.sampled_from(["vector", "matrix", "scalar"]) | anything,
                "result": st.lists(one_series | anything, max_size=4) | anything,
            },
        )
        | anything,
        "error": anything,
        "warnings": anything,
    },
)


@given(answers)
def test_any_json_is_a_vector_or_an_error(answer: object) -> None:
    try:
        read = list(decode(DOING, json.dumps(answer).encode()))
    except ServerError:
        read = []
    assert all(one is None or isinstance(one.value, float) for one in read)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_vector_or_an_error(answer: bytes) -> None:
    with pytest.raises(ServerError):
        decode(DOING, answer)


@given(
    st.lists(
        st.tuples(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3), st.floats()),
        max_size=10,
    )
)
def test_what_prometheus_writes_is_what_is_read(written: list[tuple[dict[str, str], float]]) -> None:
    result = [{"metric": labels, "value": [7, repr(number)]} for labels, number in written]
    read = list(decode(DOING, body(result)))
    assert [one and one.labels for one in read] == [labels for labels, _ in written]
    for one, (_, number) in zip(read, written, strict=True):
        assert one is not None
        assert one.value == number or (math.isnan(one.value) and math.isnan(number))
