"""Hardware is opened before its devices are listed, and closed when it is no longer needed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.support.plugins import FAN, Fans, ids, metric
from tests.support.waiting import until

from colocate.errors import UserError
from colocate.kubelet import Allocation, DeviceList, OnStop, Plugins, Settings
from colocate.testing import TestNode


class Recorded(Fans):
    """Fans that write down what is asked of them."""

    def __init__(self) -> None:
        super().__init__("fan-0", "fan-1")
        self.calls: list[str] = []

    async def devices(self) -> AsyncIterator[DeviceList]:
        self.calls.append("devices")
        try:
            async for devices in super().devices():
                yield devices
        finally:
            self.calls.append("devices end")

    async def allocate(self, ids: Sequence[str]) -> Allocation:
        self.calls.append("allocate")
        return await super().allocate(ids)


class Hardware(Recorded):
    """With hooks that are coroutines."""

    async def open(self) -> None:
        self.calls.append("open")

    async def close(self) -> None:
        self.calls.append("close")


class Threaded(Recorded):
    """With hooks that are plain functions, of which a test can hold up each."""

    def __init__(self) -> None:
        super().__init__()
        self.may_open, self.may_close = threading.Event(), threading.Event()
        self.threads: set[int] = set()

    def open(self) -> None:
        self.calls.append("opening")
        self.threads.add(threading.get_ident())
        self.may_open.wait()
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("closing")
        self.threads.add(threading.get_ident())
        self.may_close.wait()
        self.calls.append("close")


def errors(where: str) -> float:
    return metric("colocate_plugin_errors_total", resource=FAN, where=where)


@pytest.mark.parametrize("on_stop", list(OnStop))
async def test_a_plugin_is_opened_first_and_closed_last_and_once(node: TestNode, on_stop: OnStop) -> None:
    hardware = Hardware()
    group = await node.serve(hardware, on_stop=on_stop)
    await node.devices(FAN, 2)
    await node.run_pod({FAN: 1})
    await node.kubelet.restart()
    await node.devices(FAN, 2)
    await node.stop(group)
    assert hardware.calls == ["open", "devices", "allocate", "devices end", "close"]


async def test_a_list_that_is_no_longer_awaited_ends_before_the_hardware_is_closed(
    node: TestNode,
) -> None:
    class Stopped(Hardware):
        async def devices(self) -> AsyncIterator[DeviceList]:
            async for devices in super().devices():
                group.stop()
                yield devices

    hardware = Stopped()
    group = Plugins(hardware, settings=Settings(paths=node.paths), clock=node.clock)
    await group.run()
    assert hardware.calls == ["open", "devices", "devices end", "close"]


async def test_plain_functions_run_in_threads_of_their_own(node: TestNode) -> None:
    hardware = Threaded()
    hardware.may_close.set()
    group = await node.serve(hardware)
    await until(lambda: hardware.calls == ["opening"], "open to be called")
    assert not ids(node)
    hardware.may_open.set()
    await node.devices(FAN, 2)
    await node.stop(group)
    assert hardware.calls == ["opening", "open", "devices", "devices end", "closing", "close"]
    assert threading.get_ident() not in hardware.threads


async def test_an_open_that_fails_is_tried_again_and_nothing_is_registered_before(node: TestNode) -> None:
    class Late(Hardware):
        async def open(self) -> None:
            await super().open()
            if len(self.calls) < 3:
                raise OSError("no driver yet")

    before = errors("open")
    hardware = Late()
    await node.serve(hardware, Fans("a", resource="example.com/other"))
    await node.devices("example.com/other", 1)
    assert not ids(node)
    while not ids(node):
        await node.clock.advance(1)
    assert hardware.calls == ["open", "open", "open", "devices"]
    assert errors("open") == before + 2


async def test_a_user_error_in_open_ends_the_start_and_nothing_is_closed(node: TestNode) -> None:
    class Misconfigured(Hardware):
        async def open(self) -> None:
            raise UserError("there is no /dev/fan; load the module 'fan'")

    hardware = Misconfigured()
    refusal = pytest.RaisesExc(UserError, match="load the module")
    with pytest.RaisesGroup(refusal, flatten_subgroups=True):
        await Plugins(hardware, settings=Settings(paths=node.paths), clock=node.clock).run()
    assert hardware.calls == []


async def test_a_plugin_that_is_cancelled_closes_its_hardware(node: TestNode) -> None:
    hardware = Hardware()
    group = await node.serve(hardware)
    await node.devices(FAN, 2)
    await node.kill(group)
    assert hardware.calls == ["open", "devices", "devices end", "close"]


async def test_a_plugin_that_is_removed_closes_its_hardware_and_others_stay_open(node: TestNode) -> None:
    hardware, other = Hardware(), Hardware()
    other.resource = "example.com/other"
    group = await node.serve(hardware, other)
    await node.devices(FAN, 2)
    await node.devices("example.com/other", 2)
    removing = asyncio.create_task(group.remove(FAN))
    while not removing.done():
        await asyncio.wait([removing], timeout=0.01)
        await node.clock.advance(0.1)
    assert hardware.calls[-1] == "close"
    assert other.calls == ["open", "devices"]
    assert group.resources == ("example.com/other",)


async def test_stopping_cancels_an_open_that_waits(node: TestNode) -> None:
    class Waiting(Hardware):
        async def open(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                self.calls.append("open was cancelled")

    hardware = Waiting()
    group = await node.serve(hardware)
    await node.clock.advance(0)
    await node.stop(group)
    assert hardware.calls == ["open was cancelled"]


async def test_stopping_waits_for_an_open_in_a_thread_and_closes_what_it_opened(node: TestNode) -> None:
    hardware = Threaded()
    hardware.may_close.set()
    group = await node.serve(hardware, close_timeout=1e9)
    await until(lambda: hardware.calls == ["opening"], "open to be called")
    stopping = asyncio.create_task(node.stop(group))
    await node.clock.advance(1)
    assert hardware.calls == ["opening"]
    hardware.may_open.set()
    await stopping
    assert hardware.calls == ["opening", "open", "closing", "close"]


@pytest.mark.parametrize("hook", ["open", "close"])
async def test_a_hook_that_hangs_does_not_keep_the_plugin_from_stopping(node: TestNode, hook: str) -> None:
    hardware = Threaded()
    if hook == "close":
        hardware.may_open.set()
    before = errors("close")
    group = await node.serve(hardware, close_timeout=5)
    await until(lambda: "opening" in hardware.calls, "open to be called")
    if hook == "close":
        await node.devices(FAN, 2)
    await node.stop(group)
    assert "close" not in hardware.calls
    assert errors("close") == before + 1
    hardware.may_open.set()
    hardware.may_close.set()


@pytest.mark.parametrize("trouble", [OSError("stuck"), SystemExit(3), KeyboardInterrupt()])
async def test_a_close_that_fails_is_counted_and_ends_nothing_else(
    node: TestNode, trouble: BaseException
) -> None:
    class Broken(Hardware):
        async def close(self) -> None:
            raise trouble

    before = errors("close")
    other = Hardware()
    other.resource = "example.com/other"
    group = await node.serve(Broken(), other)
    await node.devices(FAN, 2)
    await node.devices("example.com/other", 2)
    await node.stop(group)
    assert errors("close") == before + 1
    assert other.calls[-1] == "close"
