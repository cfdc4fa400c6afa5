"""What `colocate gpu status` says of a node, and what Prometheus is told."""

import msgspec
import pytest
from prometheus_client import REGISTRY

from colocate.cli.gpu_status import WIDTH, drawn, gpu_lines
from colocate.errors import UserError
from colocate.gpus import (
    GPUSHARE,
    ContainerBooking,
    GpuBook,
    GpuDisagreement,
    GpuHealth,
    GpuRecordSource,
    HealthSettings,
    PodBooking,
    dialect,
)
from colocate.gpus.agent import metrics
from colocate.gpus.agent.mock_faults import (
    GpuFault,
    LoseGpu,
    RaiseXid,
    RecoverGpu,
    ReplaceGpu,
    SilenceDriver,
    UseGpu,
    apply_fault,
)
from colocate.gpus.agent.monitor import KnownGpu
from colocate.gpus.agent.report import GpuReport, gpu_report
from colocate.host.gpu_source import GpuReading, Xid
from colocate.host.mock_gpus import MockGpu, MockGpus
from colocate.model.gpu import GpuInventory

GIB = 1 << 30
T4, A100, OLD = "GPU-aaaa1111-1", "GPU-bbbb1111-2", "GPU-dead0000-3"


def known(index: int, uuid: str, gib: int, trouble: str = "", **fields: object) -> KnownGpu:
    reading = GpuReading(uuid=uuid, index=index, memory=gib * GIB, used=GIB, processes=(), **fields)  # type: ignore[arg-type]
    return KnownGpu(reading, GpuHealth(trouble, 100.0) if trouble else GpuHealth())


def pod(uid: str, gpu: str, memory: int, cores: int = 0, key: str = "") -> PodBooking:
    booking = ContainerBooking(container="main", gpus=(gpu,), memory=memory, cores=cores)
    return PodBooking(uid=uid, key=key, containers=(booking,))


def report(gpus: list[KnownGpu], *pods: PodBooking, unit: int = 1) -> GpuReport:
    inventory = GpuInventory(tuple(gpu.fact for gpu in gpus))
    return gpu_report(
        "node-1",
        0.0,
        {gpu.uuid: gpu for gpu in gpus},
        GpuBook.of_gpus(inventory, pods),
        [dialect("doslab", unit), GPUSHARE],
        health=HealthSettings(),
        now=160.0,
        used={T4: {"uid-1": 3 * GIB}},
        mock=True,
        notes=["a note"],
    )


def lines(told: GpuReport) -> list[str]:
    return list(gpu_lines(told, colours=False))


def test_gpus_are_drawn_with_who_has_what() -> None:
    told = report(
        [known(0, T4, 16, model="Tesla T4", numa=0)],
        pod("uid-1", T4, 4096, 30, "team/train"),
        pod("uid-2", T4, 8192, key="team/infer"),
    )
    assert lines(told) == [
        "node-1: 1 GPU (mock GPUs)",
        "  doslab.io/gpu-memory: 16384 devices of 1 MiB",
        "  aliyun.com/gpu-mem: 16 devices of 1 GiB",
        "",
        f"GPU 0: Tesla T4, 16 GiB, NUMA node 0, {T4}",
        "  [AAAAAAAAAAAAAAAAAAAABBBBBBBBBB..........]",
        "  12 GiB and 30 of 100 cores booked, 4 GiB free; 1 GiB in use",
        "     POD         CONTAINERS  MEMORY  CORES  IN USE",
        "  A  team/infer  main        8 GiB   -      0 B",
        "  B  team/train  main        4 GiB   30     3 GiB",
        "note: a note",
    ]


def test_a_sick_gpu_says_why_and_until_when() -> None:
    told = lines(report([known(0, T4, 16, trouble="XID 48")]))
    assert "  unhealthy: XID 48; healthy again in 240 s if nothing else happens" in told


def test_one_that_does_not_answer_promises_nothing() -> None:
    told = lines(report([known(0, T4, 16, trouble="it is lost", problem="it is lost")]))
    assert "  unhealthy: it is lost" in told


def test_a_gpu_in_mig_mode_is_shown_as_left_out() -> None:
    told = lines(report([known(0, T4, 16, mig=True)]))
    assert "  in MIG mode: left out" in told
    assert "  doslab.io/gpu-memory: 0 devices of 1 MiB" in told


def test_a_gpu_that_is_gone_is_shown_while_pods_have_it() -> None:
    told = lines(report([known(0, T4, 16)], pod("uid-9", OLD, 1024)))
    assert f"gone: 0 B, {OLD}" in told
    assert "  unhealthy: it is not there any more" in told
    assert "  A  pod uid-9  main        1 GiB   -      ?" in told


def test_a_message_that_is_nearly_full_is_told() -> None:
    many = [known(number, f"GPU-{number}abc0000", 80, numa=1) for number in range(8)]
    told = "  doslab.io/gpu-memory: 131072 devices of 5 MiB, 90% of what a kubelet takes"
    assert told in lines(report(many, unit=5))


def test_a_bar_is_as_wide_as_it_should_be_and_shows_every_share() -> None:
    pods = [pod(f"uid-{number}", T4, 1 if number else 12000) for number in range(5)]
    bar = drawn(report([known(0, T4, 16)], *pods).gpus[0], colours=False)
    assert len(bar) == WIDTH
    assert set(bar) == set("ABCDE.")


def test_names_of_pods_do_not_steer_the_terminal() -> None:
    told = report([known(0, T4, 16)], pod("uid-1", T4, 1024, key="team/\x1b[2Jevil"))
    assert not any("\x1b" in line for line in lines(told))


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_prometheus_is_told_of_gpus_and_pods_and_forgets_those_that_are_gone() -> None:
    metrics.tell(report([known(0, T4, 16)], pod("uid-1", T4, 4096, 30, "team/train")))
    assert sample("colocate_gpu_healthy", gpu=T4) == 1
    assert sample("colocate_gpu_memory_bytes", gpu=T4, state="total") == 16 * GIB
    assert sample("colocate_gpu_memory_bytes", gpu=T4, state="booked") == 4 * GIB
    assert sample("colocate_gpu_memory_bytes", gpu=T4, state="used") == GIB
    assert sample("colocate_gpu_cores_booked", gpu=T4) == 30
    of_pod = {"gpu": T4, "namespace": "team", "pod": "train"}
    assert sample("colocate_gpu_pod_memory_bytes", **of_pod, state="booked") == 4 * GIB
    assert sample("colocate_gpu_pod_memory_bytes", **of_pod, state="used") == 3 * GIB
    assert sample("colocate_gpu_pod_cores_booked", **of_pod) == 30
    metrics.tell(report([known(0, A100, 80, trouble="XID 79")]))
    assert sample("colocate_gpu_healthy", gpu=A100) == 0
    assert sample("colocate_gpu_healthy", gpu=T4) is None
    assert sample("colocate_gpu_pod_cores_booked", **of_pod) is None


def test_records_that_do_not_agree_are_counted_and_shown() -> None:
    wrong = GpuDisagreement(
        source=GpuRecordSource.ANNOTATION,
        pod="team/train",
        uid="uid-1",
        sentence="team/train: odd",
        remedy="x",
    )
    told = msgspec.structs.replace(report([known(0, T4, 16)]), mismatches=(wrong,))
    metrics.tell(told)
    assert sample("colocate_gpu_mismatches", source="annotation") == 1
    assert sample("colocate_gpu_mismatches", source="driver") == 0
    assert "annotation disagrees: team/train: odd" in lines(told)


def test_mock_faults_do_what_they_are_called() -> None:
    first = MockGpu(uuid=T4, model="Tesla T4", memory=16 * GIB)
    source = MockGpus([first])
    apply_fault(source, RaiseXid("0", 48))
    assert source.wait_for_xid(1) == Xid(48, T4)
    apply_fault(source, UseGpu("0", 2 * GIB))
    assert source.survey().gpus[0].used == 2 * GIB
    apply_fault(source, LoseGpu("0"))
    assert source.survey().gpus[0].problem
    apply_fault(source, RecoverGpu("0"))
    assert not source.survey().gpus[0].problem
    apply_fault(source, ReplaceGpu("0", "GPU-new"))
    assert source.survey().gpus[0].uuid == "GPU-new"
    apply_fault(source, ReplaceGpu("0"))
    assert source.survey().gpus[0].uuid.startswith("GPU-")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (RaiseXid("7", 48), "'7' names no mock GPU; known are 0"),
        (RaiseXid("0", 0), "0 is no XID"),
        (UseGpu("0", 17 * GIB), "and cannot use"),
        (UseGpu("0", -1), "and cannot use"),
        (ReplaceGpu("0", T4), "there is a mock GPU"),
    ],
)
def test_mock_faults_that_cannot_be_are_refused(fault: GpuFault, said: str) -> None:
    source = MockGpus([MockGpu(uuid=T4, model="Tesla T4", memory=16 * GIB)])
    with pytest.raises(UserError, match=said):
        apply_fault(source, fault)
    assert source.survey().gpus[0].uuid == T4


def test_a_silent_driver_is_silent_until_it_is_not() -> None:
    source = MockGpus([])
    apply_fault(source, SilenceDriver("gone"))
    assert source.silent == "gone"
    apply_fault(source, SilenceDriver())
    assert source.silent == ""
