"""The extender protocol: what a real kube-scheduler posted is read, and what goes back decodes in Go."""

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.extender_calls import RECORDED

from colocate.wire import extender_answers as answers
from colocate.wire.extender_questions import (
    Asked,
    MetaPod,
    MetaVictims,
    Unreadable,
    read_names,
    read_preemption,
    read_question,
)

REQUESTS = [call["request"] for call in RECORDED]
OF_NAMES = REQUESTS[0]
OF_NODES = next(request for request in REQUESTS if request["Nodes"])


def body(request: Any) -> bytes:
    """As Go writes it."""
    return json.dumps(request, separators=(",", ":")).encode()


class Metadata(msgspec.Struct):
    name: str


class Container(msgspec.Struct):
    resources: dict[str, Any]


class Spec(msgspec.Struct):
    containers: list[Container]


class Pod(msgspec.Struct):
    """What these tests want to know of a pod."""

    metadata: Metadata
    spec: Spec


class Node(msgspec.Struct):
    metadata: Metadata
    status: dict[str, Any]


def _seen(asked: Asked) -> tuple[Any, ...]:
    return bytes(asked.sent_pod), asked.names, [bytes(raw) for raw in asked.sent_nodes or ()]


class TestQuestions:
    @pytest.mark.parametrize("request_", REQUESTS, ids=range(len(REQUESTS)))
    def test_recorded_ones_are_read(self, request_: Any) -> None:
        asked = read_question(body(request_))
        sent = request_["NodeNames"] or [node["metadata"]["name"] for node in request_["Nodes"]["items"]]
        assert list(asked.names) == sent
        pod = asked.pod(Pod)
        assert pod.metadata.name == request_["Pod"]["metadata"]["name"]
        (container,) = pod.spec.containers
        assert container.resources["requests"] == {"cpu": "50m", "memory": "100Mi"}

    def test_whole_nodes_bring_what_a_type_asks_for(self) -> None:
        asked = read_question(body(OF_NODES))
        nodes = asked.nodes(Node)
        assert nodes is not None
        assert [node.metadata.name for node in nodes] == list(asked.names)
        offered = [node["status"]["allocatable"] for node in OF_NODES["Nodes"]["items"]]
        assert [node.status["allocatable"] for node in nodes] == offered
        assert read_question(body(OF_NAMES)).nodes(Node) is None

    def test_a_pod_that_does_not_fit_the_type_is_unreadable(self) -> None:
        asked = read_question(b'{"Pod": {"metadata": {"name": 3}}, "Nodes": null, "NodeNames": ["a"]}')
        with pytest.raises(Unreadable, match="Expected `str`, got `int`"):
            asked.pod(Pod)

    @pytest.mark.parametrize("respell", [str.lower, str.upper, lambda name: name[0].lower() + name[1:]])
    @pytest.mark.parametrize("request_", [OF_NAMES, OF_NODES], ids=["names", "nodes"])
    def test_field_names_may_be_of_any_case(self, request_: Any, respell: Any) -> None:
        other = {respell(name): value for name, value in request_.items()}
        if request_["Nodes"]:
            other[respell("Nodes")] = {respell(name): value for name, value in request_["Nodes"].items()}
        assert _seen(read_question(body(other))) == _seen(read_question(body(request_)))

    def test_unknown_fields_are_passed_over(self) -> None:
        later = read_question(body({**OF_NAMES, "Later": {"a": [1]}}))
        assert _seen(later) == _seen(read_question(body(OF_NAMES)))

    def test_null_is_nothing(self) -> None:
        asked = read_question(body({"Pod": {}, "Nodes": {"metadata": {}, "items": None}, "NodeNames": None}))
        assert (list(asked.names), asked.nodes(Node)) == ([], [])
        assert list(read_question(body({"Pod": {}, "Nodes": None, "NodeNames": []})).names) == []

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            (b"", "is not JSON"),
            (b"<html>", "is not JSON"),
            (b'{"Pod": {', "is not JSON"),
            (b"\xff\xfe", "is not JSON"),
            (b'{"Pod": {}, "Nodes": null, "NodeNames": ["\xff"]}', "is not JSON"),
            (b"null", "is not what kube-scheduler writes"),
            (b"[]", "is not what kube-scheduler writes"),
            (b"{}", "has no Pod"),
            (b'{"Pod": 3, "NodeNames": ["a"]}', "has no Pod"),
            (b'{"Pod": null, "NodeNames": ["a"]}', "has no Pod"),
            (b'{"Pod": {}}', "neither NodeNames nor Nodes"),
            (b'{"Pod": {}, "Nodes": null, "NodeNames": null}', "neither NodeNames nor Nodes"),
            (b'{"Pod": {}, "Nodes": null, "NodeNames": [1]}', "Expected `str`, got `int`"),
            (b'{"Pod": {}, "Nodes": {"items": [{}]}, "NodeNames": null}', "missing required field `metadata`"),
            (b'{"Pod": {}, "nodes": 3, "NodeNames": null}', "is not what kube-scheduler writes"),
        ],
    )  # fmt: skip
    def test_anything_else_is_unreadable_in_a_sentence(self, text: bytes, complaint: str) -> None:
        with pytest.raises(Unreadable, match=complaint) as refused:
            read_question(text)
        assert "\n" not in str(refused.value)


class TestAnswers:
    def test_scores_are_integers_under_gos_names(self) -> None:
        assert answers.priorities(["a", 'b"\n'], [7, -3]) == (
            b'[{"Host":"a","Score":7},{"Host":"b\\"\\n","Score":-3}]'
        )
        assert answers.priorities([], []) == b"[]"

    def test_a_score_for_every_node_and_no_other(self) -> None:
        with pytest.raises(ValueError, match="1 scores for 2 nodes"):
            answers.priorities(["a", "b"], [1])

    def test_names_are_plain_where_none_is_escaped_whatever_the_pod_says(self) -> None:
        pod = {"metadata": {"annotations": {"note": 'a "quoted" word\n'}}}
        assert read_question(body({"Pod": pod, "Nodes": None, "NodeNames": ["n1", "n2"]})).plain
        assert not read_question(body({"Pod": pod, "Nodes": None, "NodeNames": ["n1", 'n"']})).plain

    def test_names_are_answered_with_names(self) -> None:
        asked = read_question(body(OF_NAMES))
        out, never = asked.names[0], asked.names[1]
        assert json.loads(answers.filtered(asked, {out: "too hot"}, {never: "no sample"})) == {
            "Nodes": None,
            "NodeNames": asked.names[2:],
            "FailedNodes": {out: "too hot"},
            "FailedAndUnresolvableNodes": {never: "no sample"},
            "Error": "",
        }

    def test_whole_nodes_go_back_byte_for_byte(self) -> None:
        asked = read_question(body(OF_NODES))
        nodes = [body(node) for node in OF_NODES["Nodes"]["items"]]
        answer = answers.filtered(asked, {}, {})
        assert answer.startswith(b'{"Nodes":{"items":[' + b",".join(nodes) + b']},"NodeNames":null,')
        answer = answers.filtered(asked, {asked.names[0]: "too hot"}, {})
        assert answer.startswith(b'{"Nodes":{"items":[' + b",".join(nodes[1:]) + b']},"NodeNames":null,')

    def test_where_all_fail_the_lists_are_empty_and_not_null(self) -> None:
        for request in (OF_NAMES, OF_NODES):
            asked = read_question(body(request))
            answer = json.loads(answers.filtered(asked, dict.fromkeys(asked.names, "hot"), {}))
            assert answer["NodeNames"] == [] if request is OF_NAMES else answer["Nodes"] == {"items": []}

    def test_an_error_is_told(self) -> None:
        assert json.loads(answers.filter_error("no metrics"))["Error"] == "no metrics"


class TestPreemption:
    POD = OF_NAMES["Pod"]

    def test_metadata_of_victims_is_passed_through(self) -> None:
        meta = {"n1": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 1}, "n2": {"Pods": None}}
        asked = read_preemption(
            body({"Pod": self.POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta})
        )
        assert asked.victims == {
            "n1": MetaVictims([MetaPod("u1"), MetaPod("u2")], 1),
            "n2": MetaVictims(None, 0),
        }
        assert json.loads(answers.preempting(asked.victims)) == {
            "NodeNameToMetaVictims": {
                "n1": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 1},
                "n2": {"Pods": None, "NumPDBViolations": 0},
            }
        }

    def test_whole_victims_are_answered_by_their_uids(self) -> None:
        whole = {"n1": {"Pods": [{**self.POD, "metadata": {"uid": "u1"}}], "NumPDBViolations": 2}, "n2": None}
        asked = read_preemption(
            body({"Pod": self.POD, "NodeNameToVictims": whole, "NodeNameToMetaVictims": None})
        )
        assert asked.victims == {"n1": MetaVictims([MetaPod("u1")], 2), "n2": MetaVictims([], 0)}

    def test_field_names_may_be_of_any_case(self) -> None:
        meta = {"N1": {"pods": [{"UID": "u1"}], "numpdbviolations": 3}, "n2": None}
        asked = read_preemption(body({"pod": self.POD, "nodenametometavictims": meta}))
        assert asked.victims == {"N1": MetaVictims([MetaPod("u1")], 3), "n2": MetaVictims()}

    def test_without_a_pod_it_is_unreadable(self) -> None:
        with pytest.raises(Unreadable, match="has no Pod"):
            read_preemption(b"{}")


_NAME = st.text(min_size=1, max_size=20)


@given(names=st.lists(_NAME, unique=True, max_size=30), failing=st.data())
def test_every_node_passes_or_fails_and_none_is_invented(names: list[str], failing: st.DataObject) -> None:
    asked = read_question(body({"Pod": OF_NAMES["Pod"], "Nodes": None, "NodeNames": names}))
    reasons = failing.draw(st.dictionaries(st.sampled_from(names), st.text())) if names else {}
    answer = json.loads(answers.filtered(asked, reasons, {}))
    assert answer["NodeNames"] == [name for name in names if name not in reasons]
    assert answer["FailedNodes"] == reasons


_PIECES = st.text(st.sampled_from('a"\\\n{}:,[]é'), max_size=6)


@given(
    scored=st.lists(st.tuples(_NAME | _PIECES, st.integers(-2, 102) | st.integers(0, 100))),
    pod=st.dictionaries(_PIECES, _PIECES, max_size=2),
    escaped=st.booleans(),
    reverse=st.booleans(),
)
def test_joined_or_encoded_an_answer_is_the_same(
    scored: list[tuple[str, int]], pod: dict[str, str], escaped: bool, reverse: bool
) -> None:
    names, scores = [name for name, _ in scored], [score for _, score in scored]
    fields = {"Pod": pod, "Nodes": None, "NodeNames": names}
    sent = dict(reversed(fields.items())) if reverse else fields
    asked = read_question(json.dumps(sent, ensure_ascii=escaped, separators=(",", ":")).encode("utf-8"))
    assert asked.names == (names or ())
    assert answers.priorities(asked.names, scores, plain=asked.plain) == answers.priorities(names, scores)


_KEYS = st.sampled_from(["Pod", "pod", "Nodes", "NODENAMES", "items", "metadata", "Pods"]) | st.text()
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner),
)


@given(_ANY)
def test_any_json_is_read_or_unreadable(value: Any) -> None:
    for read in (read_question, read_preemption):
        with suppress(Unreadable):
            read(body(value))


@pytest.mark.parametrize("asked_about", [OF_NAMES, OF_NODES], ids=["names", "nodes"])
def test_names_that_are_kept_read_as_those_that_were_asked_about(asked_about: dict[str, Any]) -> None:
    asked = read_question(body(asked_about))
    assert list(read_names(asked.kept_names)) == list(asked.names)
    assert len(asked.kept_names) < 200


def test_many_are_kept_as_they_came() -> None:
    sent = body({**OF_NAMES, "NodeNames": [f"node-{number}" for number in range(1000)]})
    assert read_question(sent).kept_names is sent


@given(st.lists(st.text()))
def test_odd_ones_are_kept_too(names: list[str]) -> None:
    nodes = {"items": [{"metadata": {"name": name}} for name in names]}
    of_names: dict[str, Any] = {"Pod": {}, "Nodes": None, "NodeNames": names}
    of_nodes: dict[str, Any] = {"Pod": {}, "Nodes": nodes, "NodeNames": None}
    for asked_about in (of_names, of_nodes):
        assert list(read_names(read_question(body(asked_about)).kept_names)) == names
