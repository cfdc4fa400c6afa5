"""What pods ask for in each dialect, and what they cannot ask for."""

import msgspec
import pytest

from colocate.errors import UserError
from colocate.gpus import DIALECTS, DOSLAB, GPUSHARE, VOLCANO, Dialect, GpuAsk, GpuPod, asks_of, dialect


def pod(*containers: dict[str, object], init: tuple[dict[str, object], ...] = ()) -> GpuPod:
    spec = {"containers": containers, "initContainers": init}
    return msgspec.convert({"metadata": {"name": "p", "uid": "u"}, "spec": spec}, GpuPod)


@pytest.mark.parametrize(
    ("spoken", "units", "memory"), [(DOSLAB, 2048, 2048), (GPUSHARE, 2, 2048), (VOLCANO, 2048, 2048)]
)
def test_memory_is_counted_in_the_units_of_the_dialect(spoken: Dialect, units: int, memory: int) -> None:
    asked = asks_of(pod({"name": "a", "resources": {"limits": {spoken.memory: units}}}), spoken)
    assert asked.containers == (GpuAsk(container="a", units=units, memory=memory),)


def test_a_unit_of_the_cluster_replaces_that_of_the_dialect() -> None:
    asked = asks_of(pod({"name": "a", "resources": {"limits": {DOSLAB.memory: "3"}}}), dialect("doslab", 256))
    assert [each.memory for each in asked.containers] == [768]


def test_every_container_asks_for_itself_in_the_order_of_admission() -> None:
    asked = asks_of(
        pod(
            {"name": "a", "resources": {"limits": {DOSLAB.memory: "8", DOSLAB.cores: "30"}}},
            {"name": "plain"},
            {"name": "b", "resources": {"limits": {DOSLAB.memory: 4, DOSLAB.count: 2}}},
            init=(
                {"name": "i", "resources": {"limits": {DOSLAB.memory: 1}}},
                {"name": "s", "restartPolicy": "Always", "resources": {"limits": {DOSLAB.memory: 2}}},
            ),
        ),
        DOSLAB,
    )
    assert asked.containers == (
        GpuAsk(container="i", units=1, memory=1, init=True),
        GpuAsk(container="s", units=2, memory=2, init=True, sidecar=True),
        GpuAsk(container="a", units=8, memory=8, cores=30),
        GpuAsk(container="b", units=4, memory=4, count=2),
    )
    assert not asked.problem


def test_a_pod_of_another_dialect_asks_for_nothing() -> None:
    assert not asks_of(pod({"name": "a", "resources": {"limits": {GPUSHARE.memory: 1}}}), DOSLAB)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({DOSLAB.count: 2}, "doslab.io/gpu-count without doslab.io/gpu-memory"),
        ({DOSLAB.cores: 2}, "doslab.io/gpu-core without doslab.io/gpu-memory"),
        ({DOSLAB.memory: 8, DOSLAB.cores: 101}, "a GPU has 100"),
        ({DOSLAB.memory: 8, DOSLAB.count: 0}, "of no GPU"),
        ({DOSLAB.memory: -8}, "a whole number that is not negative"),
        ({DOSLAB.memory: "eight"}, "a whole number that is not negative"),
        ({DOSLAB.memory: "1e99"}, "a whole number that is not negative"),
        ({DOSLAB.memory: "\x1b[2J"}, r"\x1b"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_remedy(limits: dict[str, object], words: str) -> None:
    asked = asks_of(pod({"name": "a", "resources": {"limits": limits}}), DOSLAB)
    assert words in asked.problem
    assert "container a " in asked.problem


def test_no_two_dialects_share_a_name() -> None:
    memory = [each.memory for each in DIALECTS.values()]
    keys = [key for each in DIALECTS.values() for some in each.annotations for key in some.all]
    assert len(set(memory)) == len(memory)
    assert len(set(keys)) == len(keys)


def test_the_set_that_a_pod_speaks_is_found() -> None:
    assert DOSLAB.keys_of({"DOSLAB_IO_GPU_ASSIGNED": "false"}).gpus == "DOSLAB_IO_GPU_UUID"
    assert DOSLAB.keys_of({"doslab.io/gpu-uuid": "GPU-1"}).assigned == "doslab.io/gpu-assigned"
    assert DOSLAB.keys_of({"other": "x"}) is DOSLAB.annotations[0]


@pytest.mark.parametrize(
    ("name", "unit", "words"), [("hami", None, "known are doslab"), ("doslab", 0, "1 or more")]
)
def test_a_dialect_or_unit_that_cannot_be_is_refused(name: str, unit: int | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        dialect(name, unit)
