"""GPUs by NVIDIA's own binding, over a stand-in for the driver's library that takes nothing but what nvml.h has."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from tests.support.fake_nvml import GIB, FakeGpu, NvmlLibrary, installed

from colocate.host import nvml
from colocate.host.gpu_source import GpuProcess, GpuReading, GpuUnavailable, Xid
from colocate.host.nvml import Nvml

LOST = pynvml.NVML_ERROR_GPU_IS_LOST


@pytest.fixture
def library() -> Iterator[NvmlLibrary]:
    with installed(NvmlLibrary(FakeGpu(1), FakeGpu(2, 80 * GIB, "NVIDIA A100-SXM4-80GB"))) as made:
        yield made


def test_a_survey_tells_all_of_every_gpu(library: NvmlLibrary, tmp_path: Path) -> None:
    first, second = library.gpus
    first.used, first.processes = 3 * GIB, [(4711, 2 * GIB), (4712, GIB)]
    second.mig = pynvml.NVML_DEVICE_MIG_ENABLE
    node = tmp_path / "bus/pci/devices/0000:02:00.0/numa_node"
    node.parent.mkdir(parents=True)
    node.write_text("1\n")
    assert Nvml(tmp_path).survey().gpus == (
        GpuReading(
            uuid=first.uuid,
            index=0,
            model="Tesla T4",
            memory=16 * GIB,
            used=3 * GIB,
            numa=1,
            processes=(GpuProcess(4711, 2 * GIB), GpuProcess(4712, GIB)),
        ),
        GpuReading(
            uuid=second.uuid,
            index=1,
            model="NVIDIA A100-SXM4-80GB",
            memory=80 * GIB,
            used=0,
            mig=True,
            processes=(),
        ),
    )


def test_errors_are_told_with_their_gpu(library: NvmlLibrary) -> None:
    source = Nvml()
    source.survey()
    assert library.registered == {gpu.uuid for gpu in library.gpus}
    library.events.put((library.gpus[1], 48))
    assert source.wait_for_xid(1) == Xid(48, library.gpus[1].uuid)
    assert source.wait_for_xid(0) is None


def test_an_error_of_a_gpu_that_cannot_say_who_it_is_names_none(library: NvmlLibrary) -> None:
    source = Nvml()
    source.survey()
    library.failing["nvmlDeviceGetUUID"] = LOST
    library.events.put((library.gpus[0], 79))
    assert source.wait_for_xid(1) == Xid(79)


def test_a_gpu_that_falls_off_the_bus_stays_known_and_comes_back(library: NvmlLibrary) -> None:
    source = Nvml()
    before = source.survey().gpus
    library.failing["nvmlDeviceGetHandleByIndex_v2/0"] = LOST
    lost, other = source.survey().gpus
    assert (lost.uuid, lost.memory, lost.used) == (before[0].uuid, before[0].memory, None)
    assert "does not answer for it" in lost.problem
    assert other == before[1]
    del library.failing["nvmlDeviceGetHandleByIndex_v2/0"]
    assert source.survey().gpus == before
    assert library.registered == {gpu.uuid for gpu in library.gpus}
    # A driver shows a GPU that has come back to those only who have let go of it.
    assert library.called.count("nvmlShutdown") == 1


def test_one_that_never_said_who_it_is_is_told_of_in_words(library: NvmlLibrary) -> None:
    library.failing["nvmlDeviceGetUUID/0"] = LOST
    survey = Nvml().survey()
    assert [gpu.uuid for gpu in survey.gpus] == [library.gpus[1].uuid]
    assert survey.unknown[0].startswith("GPU 0: NVML does not answer for it")


def test_a_gpu_in_the_place_of_another_is_another(library: NvmlLibrary) -> None:
    source = Nvml()
    source.survey()
    library.gpus[0] = FakeGpu(3)
    assert source.survey().gpus[0].uuid == library.gpus[0].uuid
    assert library.gpus[0].uuid in library.registered


_NEEDED = ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2")
_OF_A_GPU = ("nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo")
_EXTRAS = (
    *("nvmlEventSetCreate", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"),
    *("nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMigMode"),
    *("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
)


@pytest.mark.parametrize("function", _NEEDED)
@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_driver_that_fails_is_asked_afresh(library: NvmlLibrary, function: str, error: int) -> None:
    source = Nvml()
    library.failing[function] = error
    with pytest.raises(GpuUnavailable):
        source.survey()
    library.failing.clear()
    assert len(source.survey().gpus) == 2
    source.close()
    assert library.initialised == 0


@pytest.mark.parametrize("function", _OF_A_GPU)
def test_a_gpu_that_fails_leaves_the_others_alone(library: NvmlLibrary, function: str) -> None:
    source = Nvml()
    before = source.survey().gpus
    library.failing[f"{function}/0"] = pynvml.NVML_ERROR_UNKNOWN
    lost, other = source.survey().gpus
    assert lost.problem
    assert other == before[1]


@pytest.mark.parametrize("function", _EXTRAS)
@pytest.mark.parametrize("way", ["fails", "is missing"])
def test_what_a_driver_does_not_tell_is_left_out(library: NvmlLibrary, function: str, way: str) -> None:
    if way == "fails":
        library.failing[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    else:
        library.missing.add(function)
    gpus = Nvml().survey().gpus
    assert [gpu.uuid for gpu in gpus] == [gpu.uuid for gpu in library.gpus]
    assert not any(gpu.problem for gpu in gpus)


@pytest.mark.parametrize(
    "function", ["nvmlEventSetWait_v2", "nvmlEventSetCreate", "nvmlDeviceRegisterEvents"]
)
def test_errors_that_cannot_be_heard_are_no_silence(library: NvmlLibrary, function: str) -> None:
    library.failing[function] = pynvml.NVML_ERROR_UNKNOWN
    source = Nvml()
    source.survey()
    with pytest.raises(GpuUnavailable):
        source.wait_for_xid(0)


def test_two_gpus_with_one_uuid_are_not_believed(library: NvmlLibrary) -> None:
    library.gpus[1].uuid = library.gpus[0].uuid
    with pytest.raises(GpuUnavailable, match="same UUID"):
        Nvml().survey()


def test_without_a_driver_it_says_so() -> None:
    with pytest.raises(GpuUnavailable, match="no NVIDIA driver answers"):
        Nvml().survey()


def test_without_the_binding_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(GpuUnavailable, match="the extra 'gpu' of kube-colocate"):
        Nvml().survey()


def test_every_name_that_is_used_of_the_binding_is_in_it_and_takes_as_many_arguments() -> None:
    tree = ast.parse(inspect.getsource(nvml))
    calls = [
        (call.func.attr, len(call.args))
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _is_binding(call.func)
    ]
    told = [
        (call.args[1].attr, len(call.args) - 2)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "_told"
        if isinstance(call.args[1], ast.Attribute)
    ]
    assert len(calls) >= 6
    assert len(told) >= 6
    for name, count in (*calls, *told):
        inspect.signature(getattr(pynvml, name)).bind(*range(count))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_binding(node)}
    assert {"NVMLError", "NVML_ERROR_TIMEOUT", "nvmlEventTypeXidCriticalError"} <= used
    assert not [name for name in used if not hasattr(pynvml, name)]


def _is_binding(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "nvml"


def test_importing_it_does_not_import_the_binding() -> None:
    code = "import sys, colocate.host.nvml; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
