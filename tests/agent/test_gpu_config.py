"""The section `gpus` of the agent's configuration, and the file with mock GPUs."""

from pathlib import Path

import pytest

from colocate.agent.configuration import build
from colocate.agent.schema import Config
from colocate.errors import UserError
from colocate.gpus import COLOCATE, GPUSHARE, Gem, GpuSettings, HamiCore, HealthSettings
from colocate.gpus.agent.mock_file import load_mock_gpus


def read(gpus: str) -> Config:
    return build(f"version: 1\ngpus: {{{gpus}}}".encode(), "agent.yaml").config


def test_unless_told_otherwise_it_is_off_and_as_those_who_decide_have_it() -> None:
    section = Config().gpus
    assert not section.enabled
    assert section.settings() == GpuSettings(dialects=(COLOCATE,))
    assert section.health.settings() == HealthSettings()
    assert section.resources == ()


def test_dialects_have_units_of_their_own() -> None:
    section = read(
        "enabled: true, dialects: [{name: gpushare}, {name: volcano, unit: 8Mi}, {name: doslab, unit: 1Gi}]"
    ).gpus
    first, second, third = section.settings().dialects
    assert first == GPUSHARE
    assert (second.name, second.unit) == ("volcano", 8)
    assert (third.name, third.unit) == ("doslab", 1024)
    assert section.resources == ("aliyun.com/gpu-mem", "volcano.sh/gpu-memory", "doslab.io/gpu-memory")


def test_what_is_said_reaches_those_who_decide() -> None:
    section = read(
        "injection: cdi, cdiKind: x.com/gpu, unassumed: refuse, health: {recovery: 1m, ignoredXids: [13]}, "
        "hamiCore: {enabled: true, folder: /v, lock: /l, oversubscribe: true}, "
        "gem: {enabled: true, folder: /g, library: lib.so, ip: 10.0.0.1, port: 50051}"
    ).gpus
    settings = section.settings()
    assert (settings.injection, settings.cdi_kind, settings.unassumed) == ("cdi", "x.com/gpu", "refuse")
    assert settings.hami_core == HamiCore(folder="/v", lock="/l", oversubscribe=True)
    assert settings.gem == Gem(folder="/g", library="lib.so", ip="10.0.0.1", port=50051)
    assert section.health.settings() == HealthSettings(recovery=60, ignored_xids=frozenset((13,)))


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (
            "dialects: []",
            "gpus.dialects: the list is empty; name at least one of colocate, doslab, gpushare, volcano",
        ),
        (
            "dialects: [{name: doslap}]",
            "gpus.dialects[0].name: there is no dialect 'doslap'; did you mean 'doslab'? known dialects are "
            "colocate, doslab, gpushare, volcano",
        ),
        (
            "dialects: [{name: doslab}, {name: doslab}]",
            "gpus.dialects[1].name: 'doslab' is already in the list, at [0]; remove one of them",
        ),
        (
            "dialects: [{name: doslab, unit: 100}]",
            "gpus.dialects[0].unit: 100 bytes is no unit; did you mean 100Mi?",
        ),
        (
            "dialects: [{name: doslab, unit: 0}]",
            "gpus.dialects[0].unit: 0 bytes is no unit; write it in whole Mi or Gi, such as 256Mi",
        ),
        (
            "dialects: [{name: doslab, unit: -1Mi}]",
            "gpus.dialects[0].unit: -1048576 bytes is no unit; write it in whole Mi or Gi, such as 256Mi",
        ),
        ("mock: gpus.yaml", "gpus.mock: 'gpus.yaml' is not an absolute path; begin it with '/'"),
        (
            "injection: env2",
            "gpus.injection: 'env2' is not known here; choose one of env, cdi (did you mean env?)",
        ),
        ("cdiKind: gpu", "gpus.cdiKind: 'gpu' is no kind of CDI device; write it like nvidia.com/gpu"),
        ("health: {refresh: 0s}", "gpus.health.refresh: 0s is out of range; choose 1s to 5m"),
        ("health: {recovery: 8000h}", "gpus.health.recovery: 2.88e+07s is out of range; choose 0s to 168h"),
        ("health: {ignoredXids: [0]}", "gpus.health.ignoredXids[0]: 0 is no XID; write a number from 1 on"),
        ("hamiCore: {folder: x}", "gpus.hamiCore.folder: 'x' is not an absolute path; begin it with '/'"),
        ("gem: {port: 70000}", "gpus.gem.port: 70000 is not a port; choose one up to 65535"),
        ("gem: {library: ../x.so}", "gpus.gem.library: '../x.so' is not the name of a file in gem.folder"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(gpus: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        read(gpus)
    assert str(refused.value) == f"agent.yaml: {said}"


def test_a_name_that_something_else_serves_is_refused() -> None:
    file = (
        b"version: 1\ngpus: {enabled: true}\nmock: {resources: [{name: colocate.dev/gpu-memory, count: 1}]}"
    )
    with pytest.raises(UserError, match=r"gpus.dialects\[0\]: it serves .* which mock.resources\[0\] has"):
        build(file, "agent.yaml")


def mock_file(folder: Path, text: str) -> Path:
    file = folder / "gpus.yaml"
    file.write_text(text)
    return file


SEED = """
version: 1
gpus:
  - model: Tesla T4
    memory: 15360Mi
    count: 2
    numa: 0
  - model: NVIDIA A100-SXM4-80GB
    memory: 80Gi
    uuid: GPU-709fac35-5f40-624b-90f7-b0a3db7a97a0
    numa: 1
    mig: true
"""


def test_mock_gpus_of_any_model_and_size(tmp_path: Path) -> None:
    first, second, third = load_mock_gpus(mock_file(tmp_path, SEED), "node-1")
    assert (first.model, first.memory, first.numa, first.mig) == ("Tesla T4", 15360 << 20, 0, False)
    assert second.uuid != first.uuid
    assert second.uuid.startswith("GPU-")
    assert (third.uuid, third.memory, third.mig) == (
        "GPU-709fac35-5f40-624b-90f7-b0a3db7a97a0",
        80 << 30,
        True,
    )


def test_their_uuids_stay_and_are_those_of_no_other_node(tmp_path: Path) -> None:
    file = mock_file(tmp_path, SEED)
    here, again, there = (load_mock_gpus(file, node) for node in ("node-1", "node-1", "node-2"))
    assert [gpu.uuid for gpu in here] == [gpu.uuid for gpu in again]
    assert not {gpu.uuid for gpu in here[:2]} & {gpu.uuid for gpu in there[:2]}


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ("[{model: T4}]", "gpus[0].memory: this field is missing and has no default; add it"),
        ("[{memory: 0}]", "gpus[0].memory: 0 bytes is no GPU's memory; write it like 16Gi, from 1Mi to 4Ti"),
        (
            "[{memory: 5Ti}]",
            "gpus[0].memory: 5497558138880 bytes is no GPU's memory; write it like 16Gi, from 1Mi to 4Ti",
        ),
        ("[{memory: 1Gi, count: 0}]", "gpus[0].count: 0 is out of range; choose 1 to 64"),
        ("[{memory: 1Gi, count: 65}]", "gpus[0].count: 65 is out of range; choose 1 to 64"),
        ("[{memory: 1Gi, numa: -1}]", "gpus[0].numa: -1 is not a NUMA node; give a number from 0 to 1023"),
        (
            "[{memory: 1Gi, count: 2, uuid: GPU-1}]",
            "gpus[0].uuid: count is 2; give a UUID to single GPUs only",
        ),
        (
            "[{memory: 1Gi, uuid: '../x'}]",
            "gpus[0].uuid: '../x' is not a UUID; write letters, digits and dashes, such as GPU-709fac35",
        ),
        (
            "[{memory: 1Gi, uuid: GPU-1}, {memory: 1Gi, uuid: GPU-1}]",
            "gpus[1].uuid: 'GPU-1' is already in the list; give another",
        ),
        (
            "[{memory: 1Gi, colour: red}]",
            "gpus[0].colour: there is no such field; known fields are memory, model, count, uuid, numa, mig",
        ),
    ],
)
def test_a_mock_file_that_cannot_be_is_refused_with_a_sentence(tmp_path: Path, gpus: str, said: str) -> None:
    file = mock_file(tmp_path, f"version: 1\ngpus: {gpus}")
    with pytest.raises(UserError) as refused:
        load_mock_gpus(file, "node")
    assert str(refused.value) == f"{file}: {said}"


def test_a_mock_file_that_is_not_there_says_where_to_find_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read .* docs/gpus.md shows one"):
        load_mock_gpus(tmp_path / "absent.yaml", "node")
