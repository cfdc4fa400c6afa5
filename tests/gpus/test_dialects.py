"""What pods ask for in each dialect, and what they cannot ask for."""

from collections.abc import Mapping

import msgspec
import pytest

from colocate.errors import UserError
from colocate.gpus import (
    COLOCATE,
    COUNT_WISH,
    DIALECTS,
    DOSLAB,
    GPUSHARE,
    VOLCANO,
    Dialect,
    GpuAsk,
    GpuPod,
    asks_of,
    counted_in_limits,
    dialect,
    pods,
)


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
    ("name", "unit", "words"), [("hami", None, "known are colocate, doslab"), ("doslab", 0, "1 or more")]
)
def test_a_dialect_or_unit_that_cannot_be_is_refused(name: str, unit: int | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        dialect(name, unit)


def wishing(count: str, **limits: object) -> GpuPod:
    shape = {
        "metadata": {"name": "p", "uid": "u", "annotations": {COUNT_WISH: count}},
        "spec": {"containers": [{"name": "a", "resources": {"limits": {**limits}}}, {"name": "plain"}]},
    }
    return msgspec.convert(shape, GpuPod)


@pytest.mark.parametrize("spoken", DIALECTS.values())
def test_an_annotation_asks_for_several_gpus_in_every_dialect(spoken: Dialect) -> None:
    asked = asks_of(wishing("2", **{spoken.memory: 3}), spoken)
    assert [each.count for each in asked.containers] == [2]
    assert not asked.problem


@pytest.mark.parametrize("count", ["0", "-1", "65", "2.0", "²", "", "all", "9" * 5000, "\x1b[31m2"])
def test_a_number_of_gpus_that_cannot_be_is_refused(count: str) -> None:
    asked = asks_of(wishing(count, **{COLOCATE.memory: 3}), COLOCATE)
    assert "write a number of GPUs from 1 to 64" in asked.problem
    assert len(asked.problem) < 300
    assert asked.problem.isprintable()


def test_an_annotation_alone_asks_for_nothing_however_wrong_it_is() -> None:
    assert not asks_of(wishing("all"), COLOCATE)
    assert not asks_of(wishing("2"), COLOCATE)


def test_a_count_in_limits_is_understood_and_its_cost_is_named() -> None:
    both = wishing("2", **{DOSLAB.memory: 3, DOSLAB.count: 2})
    assert asks_of(both, DOSLAB).containers[0].count == 2
    assert 'set the annotation colocate.dev/gpu-count: "2" in its place' in counted_in_limits(both, DOSLAB)
    assert not counted_in_limits(wishing("2", **{DOSLAB.memory: 3}), DOSLAB)
    assert not counted_in_limits(both, COLOCATE)
    apart = wishing("3", **{DOSLAB.memory: 3, DOSLAB.count: 2})
    assert "the pod's annotation colocate.dev/gpu-count for 3" in asks_of(apart, DOSLAB).problem


def test_our_own_count_is_no_resource() -> None:
    asked = asks_of(wishing("2", **{COLOCATE.memory: 3, COUNT_WISH: 2}), COLOCATE)
    assert "make it an annotation of the pod" in asked.problem


@pytest.mark.parametrize(
    ("spoken", "written", "words"),
    [
        (DOSLAB, "4Gi", "4Gi is 4294967296 units of 1 MiB; write 4096"),
        (COLOCATE, "4Gi", "4Gi is 4294967296 units of 256 MiB; write 16"),
        (COLOCATE, "4200Mi", "4200Mi is 4404019200 units of 256 MiB; write 17"),
        (GPUSHARE, "4Gi", "4Gi is 4294967296 units of 1 GiB; write 4"),
        (DOSLAB, "4G", "4G is 4000000000 units of 1 MiB; write 3815"),
        (COLOCATE, "4G", "4G is 4000000000 units of 256 MiB; write 15"),
        (DOSLAB, "2Ti", "2Ti is 2199023255552 units of 1 MiB; write 2097152"),
    ],
)
def test_who_writes_bytes_for_units_is_told_what_to_write(spoken: Dialect, written: str, words: str) -> None:
    assert words in asks_of(wishing("1", **{spoken.memory: written}), spoken).problem


@pytest.mark.parametrize("written", ["4096", 4096, "4k", "4Ki"])
def test_units_written_short_are_units(written: object) -> None:
    asked = asks_of(wishing("1", **{DOSLAB.memory: written}), DOSLAB)
    assert asked.containers[0].units in (4000, 4096)


def containers(name: str, number: int, limits: Mapping[str, object]) -> tuple[dict[str, object], ...]:
    return tuple({"name": f"{name}{place}", "resources": {"limits": limits}} for place in range(number))


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("limits", [{DOSLAB.memory: 1}, {DOSLAB.memory: 0}, {DOSLAB.cores: 1}])
def test_of_a_pod_with_thousands_of_containers_few_are_looked_at(
    limits: dict[str, object], init: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def ask(container: pods.GpuContainer, *_: object, **__: object) -> GpuAsk | None:
        looked.append(container.name)
        return None

    many = containers("c", 2000, limits)
    plain = containers("p", 2000, {"cpu": "1"})
    asking = pod(*plain, init=many) if init else pod(*plain, *many)
    assert "more than 16 of its containers ask for doslab.io/gpu-memory" in asks_of(asking, DOSLAB).problem
    monkeypatch.setattr(pods, "_ask", ask)
    asks_of(asking, DOSLAB)
    assert len(looked) == pods.MOST_ASKING


def test_as_many_containers_as_may_ask_are_served() -> None:
    half, limits = pods.MOST_ASKING // 2, {DOSLAB.memory: 1}
    asked = asks_of(pod(*containers("c", half, limits), init=containers("i", half, limits)), DOSLAB)
    assert len(asked.containers) == pods.MOST_ASKING
    assert not asked.problem
