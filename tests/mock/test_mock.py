"""Mock devices as a kubelet meets them, and their faults."""

import asyncio

import pytest

from colocate.clock import ManualClock
from colocate.devices.mock.faults import Clear, Fail, Hang, Healthy, Return, Slow, Unhealthy, Vanish
from colocate.devices.mock.plugin import MockPlugin
from colocate.devices.mock.section import MockResource
from colocate.errors import UserError
from colocate.kubelet import Refused
from colocate.model.pod import Phase
from colocate.testing import TestNode

GPU = "mock/gpu"


def gpus(count: int) -> MockResource:
    return MockResource(name=GPU, count=count)


async def three_gpus(node: TestNode) -> MockPlugin:
    """A plugin whose devices the kubelet knows."""
    mock = MockPlugin(gpus(3), node.clock)
    await node.serve(mock)
    await node.devices(GPU, 3)
    return mock


async def test_a_pod_gets_mock_devices(node: TestNode) -> None:
    await three_gpus(node)
    pod = await node.run_pod({GPU: 2})
    assert node.env(pod) == {"MOCK_GPU": ",".join(sorted(node.held(pod)))}


async def test_a_device_breaks_and_works_again(node: TestNode) -> None:
    mock = await three_gpus(node)
    mock.change(Unhealthy(("gpu-0001",)))
    await node.devices(GPU, 2)
    mock.change(Healthy(("gpu-0001",)))
    await node.devices(GPU, 3)


async def test_a_device_vanishes_and_returns(node: TestNode) -> None:
    mock = await three_gpus(node)
    mock.change(Vanish(("gpu-0000", "gpu-0002")))
    await node.devices(GPU, 1)
    mock.change(Return(("gpu-0000", "gpu-0002")))
    await node.devices(GPU, 3)


async def test_allocate_fails_as_often_as_ordered(node: TestNode) -> None:
    mock = await three_gpus(node)
    mock.change(Fail("the fan is broken", times=1))
    refused = await node.run_pod({GPU: 1}, phase=Phase.FAILED)
    assert "the fan is broken" in str(refused.status)
    await node.run_pod({GPU: 1})


async def test_a_hanging_plugin_says_nothing_to_anyone_until_it_is_cleared(node: TestNode) -> None:
    mock = MockPlugin(gpus(2), node.clock)
    await node.serve(mock, allocate_timeout=5.0)
    await node.devices(GPU, 2)
    mock.change(Hang())
    mock.change(Unhealthy(("gpu-0001",)))
    pod = asyncio.create_task(node.run_pod({GPU: 1}))
    for _ in range(30):
        await node.clock.advance(10)
        await asyncio.sleep(0.001)
    assert not pod.done(), "no deadline helps against a plugin that hangs"
    assert len(node.kubelet.devices.table.healthy(GPU)) == 2, "its list does not come either"
    mock.change(Clear())
    await pod


async def test_a_slow_allocate_takes_its_time() -> None:
    clock = ManualClock()
    mock = MockPlugin(gpus(1), clock)
    mock.change(Slow(30))
    waiting = asyncio.create_task(mock.allocate(["gpu-0000"]))
    await clock.until_someone_sleeps()
    await clock.advance(29)
    assert not waiting.done()
    await clock.advance(1)
    assert (await waiting).envs == {"MOCK_GPU": "gpu-0000"}


async def test_a_vanished_device_is_given_to_nobody() -> None:
    mock = MockPlugin(gpus(1), ManualClock())
    mock.change(Vanish(("gpu-0000",)))
    with pytest.raises(Refused, match="no longer has the device 'gpu-0000'"):
        await mock.allocate(["gpu-0000"])


def test_an_unknown_device_is_refused_with_those_that_exist() -> None:
    mock = MockPlugin(gpus(2), ManualClock())
    with pytest.raises(UserError) as refused:
        mock.change(Unhealthy(("gpu-0000", "gpu-1")))
    assert str(refused.value) == (
        "mock/gpu has no device 'gpu-1'; did you mean 'gpu-0001'? known ids are gpu-0000, gpu-0001"
    )
    assert not mock.faults.unhealthy


async def test_faults_stay_with_the_devices_that_are_still_there_after_a_reload(node: TestNode) -> None:
    mock = await three_gpus(node)
    mock.change(Unhealthy(("gpu-0001", "gpu-0002")))
    mock.change(Fail("no"))
    mock.configure(gpus(2))
    await node.devices(GPU, 1)
    assert mock.faults.unhealthy == {"gpu-0001"}
    mock.configure(gpus(5))
    await node.devices(GPU, 4)
    assert mock.faults.fail == Fail("no")


async def test_ids_are_the_same_after_a_restart(node: TestNode) -> None:
    first = await node.serve(MockPlugin(gpus(3), node.clock))
    await node.devices(GPU, 3)
    pod = await node.run_pod({GPU: 1})
    await node.stop(first)
    await node.serve(MockPlugin(gpus(3), node.clock))
    await node.devices(GPU, 3)
    assert node.held(pod) <= {"gpu-0000", "gpu-0001", "gpu-0002"}
