"""What every watch cache keeps of a pod: what is read of it, however much a tenant has written into it."""

import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from colocate.gpus import ANNOUNCED, DIALECTS, LONGEST, SEAL, VISIBLE, GpuPod, asks_of
from colocate.gpus.agent.pods import flag_patch
from colocate.gpus.packing import MODELS, demand_of
from colocate.gpus.packing.objects import PackedNode, PackedPod
from colocate.load import LoadPod, bound_pod, pod_facts
from colocate.load.annotations import SCALING
from colocate.memory.agent.objects import MAY_MOVE, ApiPod

CAPACITY = 256 << 10
"""Characters: all annotations of a pod together have no more in the API."""
SHAPES = (GpuPod, PackedPod, ApiPod, LoadPod)
DOSLAB = DIALECTS["doslab"]


def pod(annotations: Mapping[str, str], **container: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "namespace": "b", "uid": "c", "annotations": dict(annotations)},
        "spec": {"containers": [{"name": "main", **container}], "nodeName": "n1"},
    }


def read(body: Mapping[str, Any], shape: type[Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body), type=shape)


def size(found: object) -> int:
    """Bytes of an object and all that it holds, each counted once."""
    seen: dict[int, object] = {}
    waiting = [found]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, msgspec.Struct):
            waiting += [getattr(each, name) for name in each.__struct_fields__]
        elif isinstance(each, Mapping):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, tuple):
            waiting += each
    return sum(sys.getsizeof(each) for each in seen.values())


LARGE: dict[str, dict[str, Any]] = {
    "annotations that are not read": pod({"example.com/long": "x" * CAPACITY}),
    "many annotations": pod({f"example.com/{i}": "x" for i in range(CAPACITY // 20)}),
    "annotations that are read": pod(
        dict.fromkeys((*LONGEST, MAY_MOVE, SCALING, ANNOUNCED), "x" * (CAPACITY // 40))
    ),
    "variables": pod({}, env=[{"name": f"A{i}", "value": "x" * 10} for i in range(20_000)]),
    "one variable many times": pod({}, env=[{"name": VISIBLE, "value": "all"}] * 20_000),
    "resources of which nothing is asked": pod(
        {}, resources={"limits": {f"example.com/{i}": "0" for i in range(20_000)}}
    ),
    "owners": {
        **pod({}),
        "metadata": {"uid": "c", "ownerReferences": [{"kind": "X", "name": f"{i}"} for i in range(20_000)]},
    },
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("large", LARGE)
def test_a_pod_is_kept_in_a_few_kilobytes_whatever_is_written_into_it(large: str, shape: type[Any]) -> None:
    assert size(read(LARGE[large], shape)) < 48 << 10


@pytest.mark.parametrize(("said", "makes_room"), [({"example.com/mine": "x"}, False), (None, True)])
def test_a_patch_removes_no_annotation_that_is_not_read(
    said: Mapping[str, str] | None, makes_room: bool
) -> None:
    found = read({"metadata": {"uid": "c", **({"annotations": said} if said else {})}}, GpuPod)
    assert found.annotations == {}
    paths = [operation.path for operation in flag_patch(found, {SEAL: "x"})]
    assert ("/metadata/annotations" in paths) is makes_room


def test_every_annotation_that_a_dialect_speaks_is_read() -> None:
    keys = {key for dialect in DIALECTS.values() for each in dialect.annotations for key in each.all}
    said = dict.fromkeys((*keys, SEAL, MODELS), "1")
    assert read(pod({**said, "example.com/other": "x"}), GpuPod).annotations == said


def test_every_resource_of_a_dialect_is_read_and_every_variable_that_it_sets() -> None:
    for dialect in DIALECTS.values():
        limits = {name: "1" for name in (dialect.memory, dialect.cores, dialect.count) if name}
        env = [{"name": name, "value": ""} for name in (VISIBLE, *dialect.envs)]
        found = read(pod({}, resources={"limits": limits}, env=env), GpuPod)
        assert asks_of(found, dialect).containers[0].units == 1
        assert found.spec.containers[0].resources.limits == limits
        assert [each.name for each in found.spec.containers[0].env] == [VISIBLE, *dialect.envs]


@pytest.mark.parametrize("key", sorted(LONGEST))
def test_a_text_that_is_too_long_stays_too_long_for_every_reader(key: str) -> None:
    longest = LONGEST[key]
    assert len(read(pod({key: "x" * longest}), GpuPod).annotations[key]) == longest
    assert len(read(pod({key: "x" * CAPACITY}), GpuPod).annotations[key]) == longest + 1


def test_too_many_models_are_refused_by_the_same_sentence_however_many_they_are() -> None:
    limits = {DOSLAB.memory: "1"}
    for length in (LONGEST[MODELS] + 1, CAPACITY):
        found = read(pod({MODELS: "x" * length}, resources={"limits": limits}), GpuPod)
        with pytest.raises(ValueError, match="names too many models"):
            demand_of(found, (DOSLAB,))


def test_a_node_is_kept_with_what_its_agent_announces_alone() -> None:
    said = {ANNOUNCED: "[]", "example.com/long": "x" * CAPACITY}
    found = read({"metadata": {"name": "n", "annotations": said}}, PackedNode)
    assert found.metadata.annotations == {ANNOUNCED: "[]"}
    said[ANNOUNCED] = "x" * CAPACITY
    assert size(read({"metadata": {"annotations": said}}, PackedNode)) < 80 << 10


def test_the_controller_is_found_among_any_number_of_owners() -> None:
    others = [{"kind": "X", "name": f"{i}"} for i in range(1000)]
    owners = [*others, {"kind": "ReplicaSet", "name": "web-1", "controller": True}]
    body = {**pod({}), "metadata": {"uid": "c", "namespace": "b", "ownerReferences": owners}}
    assert read(body, GpuPod).controller == "ReplicaSet"
    assert pod_facts(read(body, LoadPod)).owner == "b/ReplicaSet/web-1"


def test_what_is_asked_for_counts_among_any_number_of_resources_of_which_nothing_is() -> None:
    limits = {**{f"example.com/{i}": "0" for i in range(1000)}, "example.com/memory": "3", "memory": "1Gi"}
    body = pod({}, resources={"limits": limits, "requests": {**limits, "memory": "0", "cpu": "2"}})
    found = read(body, ApiPod)
    assert found.asks_for("example.com/memory")
    assert found.spec.containers[0].resources.limits == {"example.com/memory": "3", "memory": "1Gi"}
    assert found.spec.containers[0].resources.requests["memory"] == "0"
    bound = bound_pod(read(body, LoadPod), 0.0)
    assert bound is not None
    assert bound.pod.shape.containers[0].request.cpu == 2000


def test_a_scaling_that_is_too_long_is_none() -> None:
    found = pod_facts(read(pod({SCALING: '{"cpu": 50' + " " * CAPACITY + "}"}), LoadPod))
    assert found.shape.scaling.empty
