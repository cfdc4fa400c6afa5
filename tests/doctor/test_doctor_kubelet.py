"""The doctor on the kubelet: its folders and sockets, who listens there, and the agent beside it."""

import asyncio
import socket
from pathlib import Path

from tests.doctor.examining import found, only, patient
from tests.support.plugins import FAN, Fans

from colocate.clock import ManualClock
from colocate.doctor.report import CheckVerdict, good
from colocate.kubelet import KubeletPaths
from colocate.testing import TestNode
from colocate.wire import methods
from colocate.wire.rpc import Service, serve, stop_server


async def test_a_healthy_node_has_nothing_to_complain_of(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    await node.run_pod({FAN: 1})
    results = await found(
        patient(node.paths.root), "folders", "registration", "device plugins", "podresources"
    )
    assert {r.verdict for all in results.values() for r in all} == {CheckVerdict.GOOD}
    assert "v1beta1" in results["registration"][0].reason
    assert results["device plugins"][0].reason.startswith("1 of 1 answer")
    assert results["podresources"] == (good("the kubelet knows 1 pod; 1 with devices"),)


async def test_asking_for_registration_registers_nothing(node: TestNode) -> None:
    before = node.kubelet.sync_status()
    await only(patient(node.paths.root), "registration")
    assert node.kubelet.sync_status() == before


async def test_a_stopped_kubelet_is_told_apart_from_one_that_was_never_there(
    node: TestNode, tmp_path: Path
) -> None:
    await node.kubelet.stop()
    stopped = await only(patient(node.paths.root), "registration")
    assert stopped.verdict is CheckVerdict.BAD
    assert "nothing listens on" in stopped.reason
    await node.kubelet.start()
    never = await found(patient(tmp_path / "kubelet"))
    assert never["presence"][0].verdict is CheckVerdict.BAD
    assert not never.keys() & {"folders", "registration", "device plugins"}


async def test_a_kubelet_that_refuses_podresources_is_a_warning_with_its_words(node: TestNode) -> None:
    node.kubelet.faults.podresources_refusal = "too many requests"
    result = await only(patient(node.paths.root), "podresources")
    assert result.verdict is CheckVerdict.WARN
    assert "too many requests" in result.reason


async def test_sockets_that_nobody_serves_are_named_with_the_way_to_be_rid_of_them(node: TestNode) -> None:
    left = node.paths.device_plugins / "gone.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    [result] = (await found(patient(node.paths.root), "device plugins"))["device plugins"]
    assert result.verdict is CheckVerdict.WARN
    assert result.remedy.endswith(f"rm {left}")


async def test_a_plugin_that_hangs_is_bad_because_it_stalls_every_pod(node: TestNode) -> None:
    asked = asyncio.Event()

    async def hang(_: object) -> object:
        asked.set()
        return await asyncio.Event().wait()

    server = await serve(node.paths.device_plugins / "slow.sock", Service({methods.OPTIONS: hang}))
    clock = ManualClock()
    looking = asyncio.create_task(only(patient(node.paths.root, clock=clock), "device plugins"))
    await asked.wait()
    await clock.advance(5)
    result = await looking
    assert (result.verdict, result.remedy) == (CheckVerdict.BAD, "restart this plugin")
    assert "slow.sock" in result.reason
    await stop_server(server)


async def test_a_kubelet_that_does_not_know_our_api_is_bad(node: TestNode) -> None:
    node.kubelet.faults.register_refusal = "requested API version is not supported. Supported: [v2]"
    result = await only(patient(node.paths.root), "registration")
    assert result.verdict is CheckVerdict.BAD
    assert "does not know v1beta1" in result.reason


async def test_folders_that_are_missing_or_are_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "plugins_registry").touch()
    missing, file = (await found(patient(tmp_path), "folders"))["folders"]
    assert (missing.verdict, file.verdict) == (CheckVerdict.WARN, CheckVerdict.BAD)
    assert "does not exist" in missing.reason
    assert "is not a folder" in file.reason


async def test_a_path_too_long_for_sockets_is_said_before_a_plugin_fails_on_it(tmp_path: Path) -> None:
    paths = KubeletPaths(tmp_path / ("long" * 15))
    paths.device_plugins.mkdir(parents=True)
    result = (await found(patient(paths.root), "folders"))["folders"][0]
    assert result.verdict is CheckVerdict.WARN
    assert "107" in result.reason


async def test_an_agent_that_was_killed_is_noticed(tmp_path: Path) -> None:
    assert (await only(patient(tmp_path), "agent")).verdict is CheckVerdict.ABSENT
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(tmp_path / "agent.sock"))
        control.listen()
        assert (await only(patient(tmp_path), "agent")).verdict is CheckVerdict.GOOD
    assert (await only(patient(tmp_path), "agent")).verdict is CheckVerdict.BAD
