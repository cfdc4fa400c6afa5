"""Who does not agree on which GPU a pod has."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec
import pytest

from colocate.gpus import (
    DOSLAB,
    GPUSHARE,
    AnswerKey,
    GpuDisagreement,
    GpuHolding,
    GpuPod,
    GpuRecords,
    GpuRecordSource,
    GpuSettings,
    dialect,
    disagreements,
    other_unit,
    overriding,
)
from colocate.model.device import Allocation
from colocate.model.gpu import GpuInventory
from tests.gpus.node import TWO, gpu_pod

A, B = (gpu.uuid for gpu in TWO.gpus)
SETTINGS = GpuSettings(dialects=(DOSLAB, GPUSHARE))
IDS = frozenset(("aaaa-0", "aaaa-1"))


def held(uid: str, gpu: str, ids: frozenset[str] = IDS, resource: str = DOSLAB.memory) -> GpuHolding:
    injected = Allocation(envs={"NVIDIA_VISIBLE_DEVICES": gpu}) if gpu else None
    return GpuHolding(key=AnswerKey(uid, resource, "c0"), pod=f"default/{uid}", ids=ids, injected=injected)


def found(
    pods: list[GpuPod] | None,
    *holdings: GpuHolding,
    inventory: GpuInventory = TWO,
    listed: Mapping[tuple[str, str, str], AbstractSet[str]] | None = None,
    running: Mapping[str, AbstractSet[str]] | None = None,
) -> tuple[GpuDisagreement, ...]:
    records = GpuRecords(None if pods is None else {pod.uid: pod for pod in pods}, holdings)
    return disagreements(records, inventory, SETTINGS, listed=listed, running=running)


def sources(found: tuple[GpuDisagreement, ...]) -> list[str]:
    return [each.source for each in found]


def test_records_that_agree_say_nothing() -> None:
    pod = gpu_pod("p", 2, gpus=A, time=1)
    listed = {("default/p", "c0", DOSLAB.memory): IDS}
    assert found([pod], held("p", A), listed=listed, running={"p": {A}}) == ()


def test_an_annotation_that_names_another_gpu_disagrees() -> None:
    [one] = found([gpu_pod("p", 2, gpus=B, time=1)], held("p", A))
    assert one.source is GpuRecordSource.ANNOTATION
    assert one.sentence == (
        f"default/p: its annotation doslab.io/gpu-uuid names {B}, and container c0 was started with {A}"
    )


def test_an_index_is_compared_with_the_uuid_that_it_stands_for() -> None:
    pod = gpu_pod("p", 2, gpus="1", time=1, dialect=GPUSHARE)
    assert found([pod], held("p", B, resource=GPUSHARE.memory)) == ()
    assert sources(found([pod], held("p", A, resource=GPUSHARE.memory))) == ["annotation"]


def test_a_gpu_that_the_driver_does_not_list_disagrees() -> None:
    [one] = found([gpu_pod("p", 2)], held("p", "GPU-gone"))
    assert one.source is GpuRecordSource.DRIVER
    assert "GPU-gone, which the driver does not list" in one.sentence
    assert found([gpu_pod("p", 2)], held("p", "GPU-gone"), inventory=GpuInventory()) == ()


def test_processes_on_a_gpu_that_a_pod_was_not_given_disagree() -> None:
    [one] = found([gpu_pod("p", 2)], held("p", A), running={"p": {A, B}})
    assert one.source is GpuRecordSource.DRIVER
    assert one.sentence == f"default/p: its processes run on {B}, and it has {A}"


def test_processes_of_a_pod_that_has_no_gpu_disagree() -> None:
    [one] = found([gpu_pod("p")], running={"p": {A}})
    assert one.sentence == f"default/p: its processes run on {A}, and it has none"


def test_ids_that_are_not_as_many_as_were_asked_for_disagree() -> None:
    assert sources(found([gpu_pod("p", 3)], held("p", A))) == ["checkpoint"]


def test_an_answer_that_cannot_be_read_disagrees() -> None:
    [one] = found([gpu_pod("p", 2)], held("p", ""))
    assert one.sentence.endswith("the checkpoint names no GPU for it")


def test_podresources_with_other_ids_disagree() -> None:
    listed = {("default/p", "c0", DOSLAB.memory): {"aaaa-0"}}
    assert sources(found([gpu_pod("p", 2)], held("p", A), listed=listed)) == ["podresources"]


def test_pods_that_have_ended_and_other_resources_are_passed_over() -> None:
    assert found([gpu_pod("p", 2, gpus=B, time=1, phase="Succeeded")], held("p", A)) == ()
    assert found([], held("p", A)) == ()
    assert found([gpu_pod("p", 2)], held("p", A, resource="nvidia.com/gpu")) == ()


def test_without_the_api_the_rest_is_compared() -> None:
    assert sources(found(None, held("p", "GPU-gone"))) == ["driver"]


@pytest.mark.parametrize(
    ("total", "unit", "other"),
    [
        ("16", 1, False),
        ("15", 1, False),
        ("17", 1, False),
        ("8", 2, False),
        ("16", 2, True),
        ("8", 1, True),
        ("", 1, False),
        ("x", 1, False),
        ("9" * 30, 1, True),
    ],
)
def test_a_unit_that_has_changed_is_seen_by_what_a_container_was_told(
    total: str, unit: int, other: bool
) -> None:
    """TWO has GPUs of 16 MiB."""
    envs = {"NVIDIA_VISIBLE_DEVICES": A, "DOSLAB_IO_GPU_RESOURCE_TOTAL": total}
    holding = GpuHolding(key=AnswerKey("p", DOSLAB.memory, "c0"), ids=IDS, injected=Allocation(envs=envs))
    assert other_unit(holding, TWO, dialect("doslab", unit)) is other


def with_env(pod: GpuPod, name: str) -> GpuPod:
    tree = msgspec.to_builtins(pod)
    tree["spec"]["containers"][0]["env"] = [{"name": name, "value": "all"}]
    return msgspec.convert(tree, GpuPod)


def test_pods_that_set_their_gpus_themselves_are_named() -> None:
    own = with_env(gpu_pod("own", 2), "NVIDIA_VISIBLE_DEVICES")
    thief = with_env(gpu_pod("thief", 0), "NVIDIA_VISIBLE_DEVICES")
    fine = with_env(gpu_pod("fine", 2), "OTHER")
    ended = with_env(gpu_pod("ended", 2, phase="Failed"), "NVIDIA_VISIBLE_DEVICES")
    first, second = overriding([own, thief, fine, ended], SETTINGS.dialects)
    assert "default/own: the env of container c0 sets NVIDIA_VISIBLE_DEVICES" in first.sentence
    assert "overrides the GPU that it is given" in first.sentence
    assert "takes GPUs without booking any" in second.sentence
    assert "ask for doslab.io/gpu-memory" in second.remedy
