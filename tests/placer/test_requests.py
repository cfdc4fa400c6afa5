"""What a container asks for, read from what a kubelet tells its runtime."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.cpus import CpuWishes
from colocate.cpus.placer.requests import (
    cpu_of,
    limit_of,
    merged,
    qos_of,
    request_of,
    shares_of,
)
from colocate.cpus.placer.section import CpuDefaults
from colocate.model.container import RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.model.pod import QosClass
from tests.placer.fake_runtime import resources

UID = "7c9f0a1e-52d0-4a77-9f2b-5d4e00000001"


@pytest.mark.parametrize(
    ("parent", "qos"),
    [
        (f"/kubepods/besteffort/pod{UID}", QosClass.BEST_EFFORT),
        (f"/kubepods/burstable/pod{UID}", QosClass.BURSTABLE),
        (f"/kubepods/pod{UID}", QosClass.GUARANTEED),
        (f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice", QosClass.BEST_EFFORT),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID}.slice", QosClass.BURSTABLE),
        (f"/kubepods.slice/kubepods-pod{UID}.slice", QosClass.GUARANTEED),
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID}.slice", QosClass.GUARANTEED),
        (f"/burstable/kubepods/pod{UID}", QosClass.GUARANTEED),
        ("/k8s.io/besteffort/x", QosClass.BEST_EFFORT),
    ],
)
def test_the_class_is_read_from_the_name_of_the_pods_group(parent: str, qos: QosClass) -> None:
    assert qos_of(parent, RuntimeResources()) is qos


def test_without_a_kubelets_group_the_figures_tell_the_class() -> None:
    assert qos_of("", resources(2000, 2000, 1 << 30)) is QosClass.GUARANTEED
    assert qos_of("", resources(2000, 2000)) is QosClass.BURSTABLE
    assert qos_of("/other", resources(2000)) is QosClass.BURSTABLE
    assert qos_of("/other", RuntimeResources(cpu_shares=2)) is QosClass.BEST_EFFORT


@given(cpu=st.integers(3, 256_000))
def test_a_request_comes_back_from_its_shares_as_it_was(cpu: int) -> None:
    assert cpu_of(RuntimeResources(cpu_shares=shares_of(cpu)), QosClass.BURSTABLE) == cpu


def test_shares_cannot_say_more_than_256_cpus_and_a_limit_can() -> None:
    large = RuntimeResources(cpu_shares=262144, cpu_quota=30_000_000, cpu_period=100_000)
    assert cpu_of(large, QosClass.GUARANTEED) == 300_000
    assert cpu_of(RuntimeResources(cpu_shares=2), QosClass.BURSTABLE) == 0
    assert cpu_of(resources(4000), QosClass.BEST_EFFORT) == 0


@pytest.mark.parametrize(
    ("quota", "period", "limit"),
    [
        (0, 0, None),
        (-1, 100_000, None),
        (150_000, 100_000, 1500),
        (5_000, 10_000, 500),
        (150_000, 0, 1500),
        (1, 10**6, 1),
    ],
)
def test_a_limit_is_quota_by_period(quota: int, period: int, limit: int | None) -> None:
    assert limit_of(RuntimeResources(cpu_quota=quota, cpu_period=period)) == limit


def test_an_update_says_only_what_changes() -> None:
    old = resources(2000, 4000, 1 << 30)
    assert merged(old, RuntimeResources(cpu_shares=1024)) == RuntimeResources(
        cpu_shares=1024, cpu_quota=400_000, cpu_period=100_000, memory_limit=1 << 30
    )


def sandbox(namespace: str = "default", **annotations: str) -> RuntimeSandbox:
    named = {name.replace("_", "/", 1).replace("__", "."): text for name, text in annotations.items()}
    return RuntimeSandbox(
        id="5a",
        uid=UID,
        namespace=namespace,
        name="p",
        cgroup_parent="/kubepods/burstable/podx",
        annotations=named,
    )


DEFAULTS = CpuDefaults(namespaces={"batch": "spread"}, burstable="pack")


@pytest.mark.parametrize(
    ("pod", "wishes"),
    [
        (sandbox(), CpuWishes(pack=True)),
        (sandbox("batch"), CpuWishes(spread=True)),
        (sandbox("batch", **{"colocate.dev/cpus": "pack"}), CpuWishes(pack=True)),
        (sandbox("batch", **{"colocate.dev/cpus": ""}), CpuWishes()),
        (sandbox("batch", **{"colocate.dev/cpus.main": "exclusive"}), CpuWishes(exclusive=True)),
        (sandbox("batch", **{"colocate.dev/cpus": "nonsense"}), CpuWishes()),
    ],
)
def test_a_pods_own_wishes_go_before_its_namespaces_and_those_before_its_class(
    pod: RuntimeSandbox, wishes: CpuWishes
) -> None:
    container = RuntimeContainer(sandbox_id="5a", name="main", resources=resources(1500, 3000))
    request = request_of(pod, container, DEFAULTS, beside=(1,))
    assert request.wishes == wishes
    assert (request.cpu, request.limit, request.beside) == (1500, 3000, (1,))
    assert request.key == ("5a", "main")
