"""The kubelet's settings are found where it finds them, and a change touches the one value alone."""

from pathlib import Path

import pytest

from colocate.errors import UserError
from colocate.kubelet.configuration import RUNTIME_ENDPOINT, field, find, flag, with_field, with_flag
from colocate.kubelet.managers import check_managers, static_managers
from colocate.kubelet.paths import KubeletPaths

NAME = "container-runtime-endpoint"
SEED = (
    'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock '
    '--pod-infra-container-image=registry.k8s.io/pause:3.9"\n'
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (SEED, "unix:///run/containerd/containerd.sock"),
        (f"A='--x --{NAME} unix:///a.sock'\n", "unix:///a.sock"),
        (f"A=--{NAME}=unix:///a.sock\n", "unix:///a.sock"),
        (f'A="--{NAME}=a --{NAME}=b"\n', "b"),
        (f'# A="--{NAME}=a"\nA="--x=--{NAME}"\n', None),
        ("", None),
    ],
)
def test_a_flag_is_read_as_the_kubelet_reads_it(text: str, value: str | None) -> None:
    assert flag(text, NAME) == value


def test_another_value_for_a_flag_leaves_the_rest_as_it_is() -> None:
    changed = with_flag(SEED, NAME, "unix:///p.sock")
    assert changed == SEED.replace("unix:///run/containerd/containerd.sock", "unix:///p.sock")
    assert with_flag(changed, NAME, "unix:///run/containerd/containerd.sock") == SEED


@pytest.mark.parametrize(
    "text", ['KUBELET_KUBEADM_ARGS="--pod=1"\n', 'KUBELET_KUBEADM_ARGS=""\n', "", "# nothing\n", "X=1"]
)
def test_a_flag_that_is_added_can_be_taken_out(text: str) -> None:
    added = with_flag(text, NAME, "unix:///p.sock")
    assert flag(added, NAME) == "unix:///p.sock"
    without = with_flag(added, NAME, None)
    assert flag(without, NAME) is None
    assert "--pod=1" not in text or '"--pod=1"' in without


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\ncontainerRuntimeEndpoint: unix:///x.sock\nb: 2\n", "unix:///x.sock"),
        ('containerRuntimeEndpoint: "unix:///x.sock"  # why\n', "unix:///x.sock"),
        ('containerRuntimeEndpoint: ""\n', None),
        ("nested:\n  containerRuntimeEndpoint: unix:///x.sock\n", None),
        ("a: 1\n", None),
    ],
)
def test_a_field_is_read_at_the_top_alone(text: str, value: str | None) -> None:
    assert field(text, "containerRuntimeEndpoint") == value


def test_another_value_for_a_field_leaves_the_rest_as_it_is() -> None:
    text = "a: 1\n# about\ncontainerRuntimeEndpoint: unix:///x.sock  # why\nb: 2\n"
    changed = with_field(text, "containerRuntimeEndpoint", "unix:///p.sock")
    assert changed == text.replace("x.sock", "p.sock")
    assert with_field("a: 1", "containerRuntimeEndpoint", "u") == "a: 1\ncontainerRuntimeEndpoint: u\n"
    assert with_field("a: 1\nb: 2\n", "b", None) == "a: 1\n"


def test_a_flag_counts_before_a_field_and_a_later_file_before_an_earlier_one(tmp_path: Path) -> None:
    first, second, config = (tmp_path / name for name in ("first", "second", "config.yaml"))
    files = (first, second)
    assert find(RUNTIME_ENDPOINT, files, config) is None
    config.write_text("containerRuntimeEndpoint: unix:///config\n")
    for file, value in ((config, "config"), (first, "first"), (second, "second")):
        if file is not config:
            file.write_text(f'ARGS="--{NAME}=unix:///{value}"\n')
        place = find(RUNTIME_ENDPOINT, files, config)
        assert place is not None
        assert (place.file, place.value) == (file, f"unix:///{value}")


@pytest.mark.parametrize(
    ("file", "text", "manager"),
    [
        ("cpu_manager_state", '{"policyName":"static","defaultCpuSet":"0-1"}', "CPU manager"),
        ("memory_manager_state", '{"policyName":"Static"}', "memory manager"),
        ("config.yaml", "cpuManagerPolicy: static\n", "CPU manager"),
        ("config.yaml", "memoryManagerPolicy: Static\n", "memory manager"),
        ("flags", 'ARGS="--cpu-manager-policy=static"\n', "CPU manager"),
    ],
)
def test_a_static_manager_is_refused(tmp_path: Path, file: str, text: str, manager: str) -> None:
    (tmp_path / file).write_text(text)
    paths, flags, config = KubeletPaths(tmp_path), (tmp_path / "flags",), tmp_path / "config.yaml"
    assert static_managers(paths, flags, config) == {manager: str(tmp_path / file)}
    with pytest.raises(UserError, match=f"the kubelet's {manager} is static"):
        check_managers(paths, flags, config)


def test_a_kubelet_without_static_managers_is_fine(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text('{"policyName":"none","defaultCpuSet":""}')
    (tmp_path / "memory_manager_state").write_text("garbage")
    check_managers(KubeletPaths(tmp_path), (tmp_path / "flags",), tmp_path / "config.yaml")
