"""Questions that are made to be expensive to read: each is refused before it is decoded."""

from pathlib import Path

import msgspec
import pytest
from bench.extender_questions import questions_about_names, questions_about_nodes
from tests.support.cost import cost
from tests.support.nesting import DEEP

from colocate.load.api_objects import LoadPod
from colocate.wire.extender_questions import TooMany, Unreadable, read_preemption, read_question

MOST = 10_000
BYTES = 8 << 20
POD = b'{"metadata":{"uid":"u"},"spec":{"containers":[]}}'
READ = f"""
from colocate.errors import ColocateError
from colocate.load.api_objects import LoadPod
from colocate.wire.extender_questions import read_preemption, read_question

def read(body):
    try:
        if b"ToMetaVictims" in body[:200]:
            return len(read_preemption(body).victims)
        asked = read_question(body, {MOST})
        asked.pod(LoadPod)
        return len(asked.names)
    except ColocateError as error:
        return f"{{type(error).__name__}}: {{error}}"
"""


def repeated(head: bytes, item: bytes, tail: bytes, length: int = BYTES) -> bytes:
    return head + (item + b",") * ((length - len(head) - len(tail)) // (len(item) + 1) - 1) + item + tail


def numbered(head: bytes, item: bytes, tail: bytes, count: int) -> bytes:
    return head + b",".join(item % number for number in range(count)) + tail


def containers(length: int) -> bytes:
    head = b'{"Pod":{"metadata":{"uid":"u"},"spec":{"containers":['
    return repeated(head, b"{}", b']}},"Nodes":null,"NodeNames":["a"]}', length)


OF_NAMES = b'{"Pod":' + POD + b',"Nodes":null,"NodeNames":['
OF_NODES = b'{"Pod":' + POD + b',"NodeNames":null,"Nodes":{"items":['
OF_VICTIMS = b'{"Pod":' + POD + b',"NodeNameToVictims":null,"NodeNameToMetaVictims":'
HOSTILE = {
    "a pod of millions of containers": (containers(BYTES), "the body's Pod has "),
    "a pod of the largest size, all of it containers": (containers(4 << 20), "the body's Pod holds "),
    "millions of names": (repeated(OF_NAMES, b'"a"', b"]}"), "the body asks about "),
    "millions of empty nodes": (repeated(OF_NODES, b"{}", b"]}}"), "the body is not what"),
    "nodes of nothing but a name": (
        repeated(OF_NODES, b'{"metadata":{"name":""}}', b"]}}"),
        "the body asks about ",
    ),
    "millions of fields": (
        numbered(b'{"Pod":' + POD + b',"NodeNames":["a"],', b'"%x":0', b"}", 700_000),
        "the body holds ",
    ),
    "nodes of millions of fields": (
        numbered(b'{"Pod":' + POD + b',"NodeNames":null,"Nodes":{', b'"%x":0', b"}}", 700_000),
        "the body holds ",
    ),
    "a million nodes with victims": (numbered(OF_VICTIMS + b"{", b'"%x":null', b"}}", 700_000), "the body holds "),
    "a node with millions of victims": (
        repeated(OF_VICTIMS + b'{"a":{"Pods":[', b"{}", b"]}}}"),
        "the body holds ",
    ),
    "a pit without a bottom": (
        b'{"Pod":' + b"[" * (BYTES // 2) + b"]" * (BYTES // 2),
        "the body is nested more deeply",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "sentence"), HOSTILE.values(), ids=HOSTILE)
def test_a_question_that_would_fill_the_memory_is_refused_before_it_is_read(
    body: bytes, sentence: str, tmp_path: Path
) -> None:
    found = cost(READ, body, tmp_path)
    assert found.outcome.partition(": ")[2].startswith(sentence)
    # Nodes that each have a name are read so far; the others are counted in a copy at most.
    assert found.memory < (4.0 if b'"name":""' in body[:200] else 1.5)


def test_twenty_million_containers_cost_little_more_than_to_receive_them(tmp_path: Path) -> None:
    found = cost(READ, containers(57 << 20), tmp_path)
    assert found.outcome.startswith("TooMany: the body holds ")
    assert found.memory < 0.1
    assert found.passes < 4


@pytest.mark.parametrize(
    ("head", "item", "tail"),
    [
        (OF_NODES, b'{"metadata":{"name":""}}', b"]}}"),
        (b'{"Pod":' + POD + b',"NodeNames":null,', b'"Nodes":{"items":[]}', b"}"),
    ],
    ids=["nodes of nothing but a name", "the nodes again and again"],
)
def test_millions_of_nodes_cost_little_more_than_to_receive_them(
    head: bytes, item: bytes, tail: bytes, tmp_path: Path
) -> None:
    found = cost(READ, repeated(head, item, tail, 62 << 20), tmp_path)
    assert found.outcome.startswith("TooMany: the body holds ")
    assert found.memory < 0.1
    assert found.passes < 4


@pytest.mark.parametrize("count", [100, 500, 5000])
def test_the_largest_questions_of_a_kube_scheduler_are_read(count: int) -> None:
    for question in (*questions_about_names(count, 5000), *questions_about_nodes(count)):
        asked = read_question(question.body, MOST)
        assert len(asked.names) == count
        assert asked.pod(LoadPod).spec.containers


def test_a_large_pod_with_much_text_is_read() -> None:
    """Annotations hold other objects as text, whose commas are no values."""
    text = msgspec.json.encode([{"a": number} for number in range(15_000)]).decode()
    pod = {"metadata": {"name": "p", "uid": "u", "annotations": {"config": text}}}
    asked = read_question(msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": ["a"]}), MOST)
    assert asked.pod(LoadPod).metadata.name == "p"


def test_victims_of_a_large_cluster_are_read() -> None:
    pods = [{"UID": f"32487b56-41ce-4e28-a65d-{number:012x}"} for number in range(110)]
    nodes = {f"node-{number}": {"Pods": pods, "NumPDBViolations": 0} for number in range(1500)}
    body = {"Pod": {}, "NodeNameToVictims": None, "NodeNameToMetaVictims": nodes}
    assert len(read_preemption(msgspec.json.encode(body)).victims) == 1500


def test_nesting_that_would_exhaust_the_stack_is_too_much_wherever_it_is() -> None:
    for body in (
        b'{"x": ' + DEEP + b"}",
        b'{"Pod": {"x": ' + DEEP + b'}, "Nodes": null, "NodeNames": ["a"]}',
    ):
        # What is said first depends on how deep this Python goes.
        with pytest.raises((TooMany, Unreadable), match=r"nested more deeply|at most 100000 are read"):
            read_question(body, MOST)


LONG = b"n" * 254
LONG_NAMES = {
    "a pod's uid": b'{"Pod":{"metadata":{"uid":"%b"}},"Nodes":null,"NodeNames":["a"]}' % LONG,
    "a pod's name": b'{"Pod":{"metadata":{"name":"%b"}},"Nodes":null,"NodeNames":["a"]}' % LONG,
    "a pod's namespace": b'{"Pod":{"metadata":{"namespace":"%b"}},"Nodes":null,"NodeNames":["a"]}' % LONG,
    "a name of few": OF_NAMES + b'"a","%b"]}' % LONG,
    "a name of many": OF_NAMES + b'"a",' * 50_000 + b'"%b"]}' % LONG,
    "the name of a whole node": OF_NODES + b'{"metadata":{"name":"%b"}}]}}' % LONG,
}


@pytest.mark.parametrize("body", LONG_NAMES.values(), ids=LONG_NAMES)
def test_a_caller_that_sends_names_longer_than_any_has_none_of_them_kept(body: bytes) -> None:
    """Decisions are kept by the thousand: with uids of megabytes they would take all memory."""
    with pytest.raises(Unreadable, match="length <= 253"):
        read_question(body).pod(LoadPod)
    read_question(body.replace(LONG, LONG[:253])).pod(LoadPod)
