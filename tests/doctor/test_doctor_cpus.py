"""The doctor on CPUs: static managers, which way in fits, and how the placer does."""

from pathlib import Path

import msgspec
import pytest
from tests.doctor.examining import found, only, patient
from tests.placer.placing import PlacingTest

from colocate.cpus.placer.report import placer_service
from colocate.doctor import cpu_checks
from colocate.doctor.check import Patient
from colocate.doctor.cpu_checks import fitting_way
from colocate.doctor.report import CheckVerdict
from colocate.kubelet.configuration import FLAG_FILES
from colocate.wire import control_socket as control


@pytest.fixture(autouse=True)
def _no_flags_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_checks, "FLAG_FILES", FLAG_FILES[:1])


def placed(root: Path) -> Patient:
    return msgspec.structs.replace(
        patient(root), placement_socket=root / "cpus.sock", placement_state=root / "state"
    )


async def test_a_static_manager_is_named_with_what_to_do(tmp_path: Path) -> None:
    assert (await only(placed(tmp_path), "cpu managers")).verdict is CheckVerdict.GOOD
    (tmp_path / "cpu_manager_state").write_text('{"policyName":"static"}')
    (tmp_path / "config.yaml").write_text("memoryManagerPolicy: Static\n")
    results = (await found(placed(tmp_path), "cpu managers"))["cpu managers"]
    assert [result.verdict for result in results] == [CheckVerdict.WARN] * 2
    assert "the kubelet's CPU manager is static" in results[0].reason
    assert f"remove {tmp_path}/memory_manager_state" in results[1].remedy


@pytest.mark.parametrize(
    ("name", "version", "nri", "said"),
    [
        ("containerd", "1.6.20~ds1", False, "'colocate cri-proxy' fits"),
        ("containerd", "v1.7.24", False, "can have NRI, but it is off"),
        ("containerd", "1.7.24", True, "'colocate nri' fits"),
        ("containerd", "2.1.9", True, "'colocate nri' fits"),
        ("cri-o", "1.30.0", False, "'colocate cri-proxy' fits"),
        ("other", "", False, "'colocate cri-proxy' fits"),
    ],
)
def test_the_way_that_fits_follows_from_the_runtime(name: str, version: str, nri: bool, said: str) -> None:
    assert said in fitting_way(name, version, nri=nri).reason


async def test_no_runtime_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"containerRuntimeEndpoint: unix://{tmp_path}/none.sock\n")
    assert (await only(placed(tmp_path), "placement way")).verdict is CheckVerdict.ABSENT


async def test_a_placer_that_cannot_see_the_machine_is_named_with_what_it_does_about_it(
    tmp_path: Path,
) -> None:
    test = PlacingTest(tmp_path)
    test.blind = "/sys: there is no devices/system/cpu/online"
    await test.again()
    async with control.serving(tmp_path / "cpus.sock", placer_service(test.placer)):
        told = await only(placed(tmp_path), "placement")
    assert told.verdict is CheckVerdict.BAD
    assert told.reason.endswith("cannot be read: /sys: there is no devices/system/cpu/online")
    assert "tries again within a minute" in told.remedy
    test.keeper.close()


async def test_a_placer_is_looked_at_as_it_runs(tmp_path: Path) -> None:
    assert (await only(placed(tmp_path), "placement")).verdict is CheckVerdict.ABSENT
    test = PlacingTest(tmp_path)
    async with control.serving(tmp_path / "cpus.sock", placer_service(test.placer)):
        assert (await only(placed(tmp_path), "placement")).verdict is CheckVerdict.BAD
        await test.runtime.connect(test.placer)
        assert (await only(placed(tmp_path), "placement")).reason == "0 containers placed, 4 whole CCXs free"
        await test.keeper.step("switch", lambda placements: placements.switch(True))
        assert (await only(placed(tmp_path), "placement")).reason == "placement is off on this node"
    (tmp_path / "state" / "cpus-state.json").write_text("garbage")
    (tmp_path / "state" / "cpus-state.json.set-aside").write_text("garbage")
    results = (await found(placed(tmp_path), "placement"))["placement"]
    assert "makes no sense" in results[0].reason
    assert "was set aside" in results[1].reason
    test.keeper.close()
