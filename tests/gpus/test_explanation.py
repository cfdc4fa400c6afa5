"""Why a pod has its GPUs, or none, in sentences."""

import msgspec

from colocate.gpus import (
    COUNT_WISH,
    DOSLAB,
    GpuAnswers,
    GpuMatch,
    GpuPod,
    GpuSettings,
    Unassumed,
    dialect,
    explain_pod,
    match,
)
from colocate.model.gpu import GpuInventory
from tests.gpus.node import KEY, TWO, booked, gpu_pod

A, B = (gpu.uuid for gpu in TWO.gpus)
SETTINGS = GpuSettings(keys=(KEY,))


def given(*pods: GpuPod, units: int) -> GpuAnswers:
    """The answers once the kubelet has asked for the first of these pods."""
    made = match([f"aaaa-{n}" for n in range(units)], DOSLAB, pods, GpuAnswers(), TWO, SETTINGS)
    assert isinstance(made, GpuMatch), made
    return made.answers


def why(
    pod: GpuPod,
    *others: GpuPod,
    answers: GpuAnswers | None = None,
    settings: GpuSettings = SETTINGS,
    inventory: GpuInventory = TWO,
) -> str:
    return " ".join(explain_pod(pod, [pod, *others], answers or GpuAnswers(), inventory, settings))


def test_a_pod_that_asks_for_nothing() -> None:
    assert why(gpu_pod("p")) == "default/p asks for nothing that this agent serves (doslab.io/gpu-memory)."


def test_a_pod_that_waits_for_a_gpu_of_its_wish() -> None:
    said = why(gpu_pod("p", 4, gpus=A, time=1, cores=30))
    assert "Container c0 asks for 4 of doslab.io/gpu-memory, which is 4 MiB and 30 of 100 cores." in said
    assert f"Its annotation names {A} (doslab.io/gpu-uuid)." in said
    assert "The kubelet has not asked for c0 yet. Asked now, it would be served." in said


def test_a_pod_that_a_scheduler_of_ours_has_booked_for() -> None:
    assert f"A scheduler with the key of this cluster names {A}" in why(booked(gpu_pod("p", 4), [A]))


def test_a_pod_whose_wish_does_not_fit() -> None:
    first = gpu_pod("first", 14, gpus=A, time=1)
    said = why(gpu_pod("p", 4, gpus=A, time=2), first, answers=given(first, units=14))
    assert (
        f"Asked now, it would be refused: GPU {A} has 2 MiB of 16 MiB free, and 4 MiB are asked for." in said
    )


def test_a_pod_for_which_nobody_has_booked() -> None:
    said = why(gpu_pod("p", 4))
    assert "No scheduler has named a GPU in its annotation doslab.io/gpu-uuid: the agent chooses." in said
    assert "Asked now, c0 would be served: 2 GPUs with room for it." in said
    assert "would be refused: 0 GPUs with room for it; the largest free piece is 16 MiB" in why(
        gpu_pod("p", 17)
    )
    strict = msgspec.structs.replace(SETTINGS, unassumed=Unassumed.REFUSE)
    assert "It cannot be served: it has no usable annotation" in why(gpu_pod("p", 4), settings=strict)


def test_a_pod_that_has_its_gpu() -> None:
    pod = gpu_pod("p", 4, gpus=B, time=1)
    said = why(pod, answers=given(pod, units=4))
    assert f"Container c0 has {B}: 4 MiB, not proven yet by the kubelet's records." in said


def test_a_pod_that_asks_for_two_gpus() -> None:
    said = why(gpu_pod("p", 4, count=2))
    assert "which is 4 MiB of each of 2 GPUs." in said


def test_a_pod_that_cannot_be_served() -> None:
    assert "It cannot be served: its annotation doslab.io/gpu-uuid names the GPU GPU-gone" in why(
        gpu_pod("p", 4, gpus="GPU-gone", time=1)
    )


def test_a_pod_that_asks_for_a_number_of_gpus_alone_is_not_said_to_wait_for_a_choice() -> None:
    said = why(gpu_pod("p", 0, count=1))
    assert "asks for doslab.io/gpu-count without doslab.io/gpu-memory" in said
    assert "the agent chooses" not in said


def test_a_pod_that_was_refused_and_has_failed_is_not_said_to_wait() -> None:
    said = why(gpu_pod("p", 4, gpus=A, time=1, phase="Failed"))
    assert "has not asked" not in said
    assert "its events say why" in said


def test_words_of_tenants_do_not_steer_the_terminal() -> None:
    assert "\x1b" not in why(gpu_pod("p", 4, gpus="\x1b[2J", time=1))


def test_a_pod_that_has_no_node_yet_is_told_what_it_would_get_here() -> None:
    said = why(gpu_pod("p", 4))
    assert said.startswith("It has no node yet: default-scheduler has to choose one")
    assert "Asked now, c0 would be served" in said


def test_a_count_in_limits_is_named_with_what_to_write() -> None:
    said = why(gpu_pod("p", 4, count=2))
    assert "of each of 2 GPUs" in said
    assert 'set the annotation colocate.dev/gpu-count: "2" in its place.' in said
    assert "in its place" not in why(gpu_pod("p", 4, annotations={COUNT_WISH: "2"}))


def test_bytes_for_units_are_named_with_what_to_write() -> None:
    pod = gpu_pod("p", 4)
    limits = {DOSLAB.memory: "4Gi"}
    container = msgspec.structs.replace(
        pod.spec.containers[0],
        resources=msgspec.structs.replace(pod.spec.containers[0].resources, limits=limits),
    )
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=(container,)))
    assert "4Gi is 4294967296 units of 1 MiB; write 4096" in why(pod)


def test_what_drains_is_said() -> None:
    settings = GpuSettings(dialects=(dialect("doslab", drains=True),))
    assert "doslab.io/gpu-memory drains on this node" in why(gpu_pod("p", 4), settings=settings)
