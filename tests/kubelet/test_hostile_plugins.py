"""Plugins that hang, raise anything, list rubbish, or are stopped in the midst of it: the rest goes on."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY
from tests.support.plugins import FAN, Fans, ids, metric
from tests.support.waiting import until

from colocate.clock import ManualClock, SystemClock
from colocate.errors import UserError
from colocate.kubelet import (
    Allocation,
    DevicePlugin,
    Health,
    KubeletPaths,
    OnStop,
    Plugins,
    Registration,
    Settings,
    run,
)
from colocate.kubelet.plugin import DeviceList
from colocate.kubelet.plugin_calls import MOST_THREADS
from colocate.model.pod import Phase
from colocate.testing import TestNode

OTHER = "example.com/other"


def errors(where: str) -> float:
    return metric("colocate_plugin_errors_total", resource=FAN, where=where)


async def pass_until(node: TestNode, holds: Any, what: str) -> None:
    """Let time pass, little by little, until something holds."""
    for _ in range(3000):
        if holds():
            return
        await node.clock.advance(0.1)
        await asyncio.sleep(0.001)
    pytest.fail(f"time passed in vain for {what}")


class Slow(Fans):
    """Answers Allocate when the test says so."""

    def __init__(self, *ids: str) -> None:
        super().__init__(*ids)
        self.go = asyncio.Event()

    async def allocate(self, ids: Sequence[str]) -> Allocation:
        self.allocated.append(list(ids))
        await self.go.wait()
        return Allocation()


# --- stopping and reloading in the midst of things ------------------------------------------------


async def test_a_plugin_without_a_first_list_can_be_stopped(node: TestNode) -> None:
    group = await node.serve(Fans())
    await asyncio.sleep(0)
    await asyncio.wait_for(node.stop(group), 30)


async def test_withdrawal_waits_for_an_allocate_in_flight_and_keeps_its_device(node: TestNode) -> None:
    slow = Slow("fan-0", "fan-1")
    group = await node.serve(slow, on_stop=OnStop.WITHDRAW)
    await node.devices(FAN, 2)
    pod = asyncio.create_task(node.run_pod({FAN: 1}))
    await until(lambda: bool(slow.allocated), "Allocate")
    stopped = asyncio.create_task(node.stop(group))
    await node.devices(FAN, 0)
    assert len(ids(node)) == 2, "nothing is dropped while an Allocate is in flight"
    slow.go.set()
    await stopped
    record = await pod
    assert set(ids(node)) == node.held(record)
    assert not node.kubelet.panics


async def test_a_stopping_plugin_turns_containers_away(node: TestNode) -> None:
    slow = Slow("fan-0", "fan-1")
    group = await node.serve(slow, on_stop=OnStop.WITHDRAW)
    await node.devices(FAN, 2)
    service = group._endpoints[0]._service
    service.refuse("the plugin is stopping")
    rejected = await node.run_pod({FAN: 1}, phase=Phase.FAILED)
    assert "the plugin is stopping" in rejected.status.message


async def test_a_reload_lets_an_allocate_in_flight_end(node: TestNode) -> None:
    slow = Slow("fan-0", "fan-1")
    group = await node.serve(slow)
    await node.devices(FAN, 2)
    pod = asyncio.create_task(node.run_pod({FAN: 1}))
    await until(lambda: bool(slow.allocated), "Allocate")
    before = node.kubelet.devices.socket_of(FAN)
    await group.reload()
    slow.go.set()
    await pod
    await node.kubelet.until(
        lambda: node.kubelet.devices.socket_of(FAN) not in (before, None), "a new socket"
    )
    await node.devices(FAN, 2)


async def test_withdrawal_follows_a_reload_that_waits_for_an_allocate_in_flight(node: TestNode) -> None:
    slow = Slow("fan-0", "fan-1")
    group = await node.serve(slow, on_stop=OnStop.WITHDRAW)
    await node.devices(FAN, 2)
    pod = asyncio.create_task(node.run_pod({FAN: 1}))
    await until(lambda: bool(slow.allocated), "Allocate")
    await group.reload()
    await node.clock.advance(0.1)
    stopped = asyncio.create_task(node.stop(group))
    await asyncio.sleep(0)
    slow.go.set()
    record = await pod
    await stopped
    await node.kubelet.until(lambda: set(ids(node)) == node.held(record), "a list of what is held alone")
    assert not node.kubelet.panics


async def test_a_reload_that_hangs_or_fails_keeps_no_other_plugin_from_reloading(node: TestNode) -> None:
    class Hanging(Fans):
        async def reload(self) -> None:
            await asyncio.Event().wait()

    class Failing(Fans):
        def reload(self) -> None:
            self.show("c", "d")
            raise OSError("no such file")

    group = await node.serve(Hanging("a"), Failing("c", resource=OTHER))
    await node.devices(FAN, 1)
    await node.devices(OTHER, 1)
    before = node.kubelet.devices.socket_of(FAN)
    reloading = asyncio.create_task(group.reload())
    await node.devices(OTHER, 2)
    await pass_until(
        node, lambda: node.kubelet.devices.socket_of(FAN) not in (before, None), "the hanging one"
    )
    await reloading


async def test_prefer_and_prestart_have_deadlines_too(node: TestNode) -> None:
    class Stuck(Fans):
        stuck = "prefer"

        async def prefer(
            self, available: Sequence[str], must_include: Sequence[str], size: int
        ) -> Sequence[str]:
            if self.stuck == "prefer":
                await asyncio.Event().wait()
            return sorted(available)[:size]

        async def prestart(self, ids: Sequence[str]) -> None:
            if self.stuck == "prestart":
                await asyncio.Event().wait()

    stuck = Stuck("fan-0", "fan-1")
    await node.serve(stuck, allocate_timeout=5.0, prestart_timeout=7.0)
    await node.devices(FAN, 2)
    rejected = asyncio.create_task(node.run_pod({FAN: 1}, phase=Phase.FAILED))
    await pass_until(node, rejected.done, "the deadline of prefer")
    assert "did not finish prefer within 5 s" in rejected.result().status.message
    stuck.stuck = "prestart"
    pod = asyncio.create_task(node.run_pod({FAN: 1}))
    await pass_until(node, lambda: bool(node.kubelet.events[1:]), "the deadline of prestart")
    assert "did not finish prestart within 7 s" in node.kubelet.events[-1].message
    stuck.stuck = ""
    await pass_until(node, pod.done, "the container")


async def test_the_gauge_says_whether_the_kubelet_listens(node: TestNode) -> None:
    def registered() -> float | None:
        return REGISTRY.get_sample_value("colocate_plugin_registered", {"resource": FAN})

    group = await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    await until(lambda: registered() == 1, "the gauge")
    await node.kubelet.stop()
    await until(lambda: registered() == 0, "the gauge to fall")
    await node.kubelet.start()
    await node.devices(FAN, 1)
    await until(lambda: registered() == 1, "the gauge to rise")
    await node.stop(group)
    assert registered() == 0


async def test_a_plugin_whose_own_socket_is_deleted_registers_again(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    mine = node.kubelet.devices.socket_of(FAN)
    assert mine is not None
    mine.unlink()
    await node.kubelet.until(
        lambda: node.kubelet.devices.socket_of(FAN) not in (mine, None), "another socket"
    )
    await node.devices(FAN, 1)


async def test_a_folder_that_is_removed_and_made_again_is_watched_again(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    await node.kubelet.stop()
    checkpoint = node.paths.checkpoint.read_bytes()
    while node.paths.device_plugins.exists():  # The plugin may be removing its own socket at the same time.
        shutil.rmtree(node.paths.device_plugins, ignore_errors=True)
    for _ in range(3):
        await node.clock.advance(1)
        await asyncio.sleep(0.001)
    node.paths.device_plugins.mkdir()
    node.paths.checkpoint.write_bytes(checkpoint)
    await node.kubelet.start()
    await pass_until(node, lambda: bool(node.kubelet.devices.table.healthy(FAN)), "the registration")


# --- hanging threads ------------------------------------------------------------------------------


async def test_calls_that_hang_in_threads_are_few_and_starve_no_other(node: TestNode) -> None:
    released = threading.Event()

    class Stuck(Fans):
        def allocate(self, ids: Sequence[str]) -> Allocation:  # type: ignore[override]
            released.wait(60)
            return Allocation()

    try:
        await node.serve(Stuck(*(f"fan-{n}" for n in range(20))), Fans("a", resource=OTHER))
        await node.devices(FAN, 20)
        for n in range(MOST_THREADS + 1):
            pod = asyncio.create_task(node.run_pod({FAN: 1}, phase=Phase.FAILED))
            await pass_until(node, pod.done, "the deadline")
            last = "calls have not returned" in pod.result().status.message
            assert last == (n == MOST_THREADS), pod.result().status.message
        await node.kubelet.restart()
        await node.devices(OTHER, 1)
    finally:
        released.set()


# --- odd exceptions -------------------------------------------------------------------------------

ODD = [
    asyncio.CancelledError,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
    SystemExit,
    KeyboardInterrupt,
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("in_thread", [True, False])
async def test_whatever_allocate_raises_ends_that_call_alone(
    node: TestNode, odd: type[BaseException], in_thread: bool
) -> None:
    class Odd(Fans):
        well = False

        def allocate(self, ids: Sequence[str]) -> Any:
            if in_thread:
                return self.answer()
            return self.answer_later()

        def answer(self) -> Allocation:
            if not self.well:
                raise odd("odd")
            return Allocation()

        async def answer_later(self) -> Allocation:
            return self.answer()

    plugin = Odd("fan-0")
    before = errors("allocate")
    await node.serve(plugin)
    await node.devices(FAN, 1)
    rejected = await node.run_pod({FAN: 1}, phase=Phase.FAILED)
    assert "rpc error" in rejected.status.message
    assert errors("allocate") == before + 1
    plugin.well = True
    await node.run_pod({FAN: 1})


@pytest.mark.parametrize("odd", [asyncio.CancelledError, GeneratorExit, SystemExit])
@pytest.mark.parametrize("before_first", [True, False])
async def test_whatever_a_device_stream_raises_it_is_started_again(
    node: TestNode, odd: type[BaseException], before_first: bool
) -> None:
    class Odd(Fans):
        starts = 0

        async def devices(self) -> AsyncIterator[DeviceList]:
            Odd.starts += 1
            if Odd.starts > 1:
                yield ["fan-0", "fan-1"]
                await asyncio.Event().wait()
            if not before_first:
                yield ["fan-0"]
            raise odd("odd")

    await node.serve(Odd())
    await pass_until(node, lambda: len(ids(node)) == 2, "the second stream")


async def test_a_stream_is_closed_before_the_next_one_starts(node: TestNode) -> None:
    class Counting(Fans):
        alive = most = 0

        async def devices(self) -> AsyncIterator[DeviceList]:
            Counting.alive += 1
            Counting.most = max(Counting.most, Counting.alive)
            try:
                yield ["a", "a"]
            finally:
                await asyncio.sleep(0.005)
                Counting.alive -= 1

    before = errors("devices")
    await node.serve(Counting())
    await pass_until(node, lambda: errors("devices") >= before + 4, "four tries")
    assert Counting.most == 1


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (5, "a list of devices was expected"),
        ("abc", "a list of devices was expected"),
        ([None], "is not a device"),
    ],
)
async def test_a_list_that_is_none_says_how_to_write_one(
    node: TestNode, listed: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    group = await node.serve(Fans())
    feed = group._endpoints[0]._feed
    monkeypatch.setattr(feed, "_failed", lambda error, effect: said.append(str(error)))
    plugin = group._endpoints[0].plugin
    assert isinstance(plugin, Fans)
    plugin._lists.put_nowait(listed)
    await until(lambda: bool(said), "the refusal")
    assert words in said[0]


async def test_devices_written_as_a_coroutine_says_to_yield(node: TestNode) -> None:
    class Returning(Fans):
        async def devices(self) -> Any:  # type: ignore[override]
            return ["a"]

    before = errors("devices")
    await node.serve(Returning())
    await until(lambda: errors("devices") > before, "the refusal")


async def test_a_list_that_outgrows_the_limit_only_while_old_ids_leave_gets_through(node: TestNode) -> None:
    fans = Fans(*(f"old-{n:0100}" for n in range(20_000)))
    await node.serve(fans, linger=5.0)
    await node.devices(FAN, 20_000)
    new = [f"new-{n:0100}" for n in range(20_000)]
    fans.show(*new)
    for _ in range(400):
        await node.clock.advance(1)
        await asyncio.sleep(0.01)
        if sorted(ids(node)) == new:
            return
        if fans._lists.empty():
            fans.show(*new)
    pytest.fail("the new list never got through")


# --- who holds what -------------------------------------------------------------------------------


async def test_a_restarted_plugin_waits_until_the_holders_are_known(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0", "fan-1"))
    await node.devices(FAN, 2)
    await node.run_pod({FAN: 1})
    await node.kill(group)
    await node.devices(FAN, 0)
    sound = node.paths.checkpoint.read_bytes()
    node.kubelet.faults.podresources_refusal = "busy"
    node.paths.checkpoint.write_text("rubbish")
    await node.serve(Fans("fan-1"))
    for _ in range(20):
        await node.clock.advance(1)
        await asyncio.sleep(0.001)
    assert node.kubelet.devices.socket_of(FAN) is None
    node.paths.checkpoint.write_bytes(sound)
    await pass_until(node, lambda: ids(node).get("fan-1") is Health.HEALTHY, "the registration")
    assert ids(node)["fan-0"] is Health.UNHEALTHY


async def test_a_plugin_that_sees_the_registry_alone_never_registers_blindly(
    node: TestNode, tmp_path: Any
) -> None:
    node.paths.plugins_registry.mkdir(parents=True, exist_ok=True)
    (tmp_path / "plugins_registry").symlink_to(node.paths.plugins_registry)
    blind = Settings(paths=KubeletPaths(tmp_path), registration=Registration.WATCHER)
    group = Plugins(Fans("fan-0"), settings=blind, clock=node.clock)
    task = asyncio.create_task(group.run())
    for _ in range(20):
        await node.clock.advance(1)
        await asyncio.sleep(0.001)
    assert not ids(node)
    group.stop()
    await asyncio.wait_for(task, 30)


async def test_a_plugin_whose_twin_came_and_went_registers_again(node: TestNode) -> None:
    """As in a rolling update that is rolled back: the kubelet listens to the twin, and then to no plugin."""
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    first = node.kubelet.devices.socket_of(FAN)
    twin = await node.serve(Fans("fan-0"))
    await node.kubelet.until(lambda: node.kubelet.devices.socket_of(FAN) != first, "the twin")
    await node.stop(twin)
    await pass_until(node, lambda: node.kubelet.devices.table.healthy(FAN) == ["fan-0"], "the first one")


async def test_two_plugins_of_one_resource_in_a_process_are_refused(node: TestNode) -> None:
    with pytest.raises(UserError, match=r"two plugins serve example\.com/fan"):
        Plugins(Fans("a"), Fans("b"), settings=Settings(paths=node.paths))


class WithoutDevices(DevicePlugin):
    resource = FAN


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Fans, r"^Fans is the class of a plugin; make one of it: write Fans\(\) with parentheses$"),
        ("fan", r"^'fan' is no plugin; derive its class from DevicePlugin"),
        (WithoutDevices(), r"^WithoutDevices does not say which devices it has; write its method devices"),
    ],
)
async def test_what_can_never_be_served_is_refused_at_once(node: TestNode, given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        await node.serve(given)
    group = await node.serve(Fans("fan-0", resource=OTHER))
    with pytest.raises(UserError, match=said):
        group.add(given)


def test_run_says_so_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(cast(DevicePlugin, Fans), logs=None)
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip().endswith("write Fans() with parentheses")


class OwnClock(Fans):
    def __init__(self) -> None:
        super().__init__("fan-0", resource=OTHER)
        self.clock = SystemClock()


async def test_plugins_get_the_clock_of_their_sdk_and_keep_their_own(node: TestNode) -> None:
    plugin, own = Fans("fan-0"), OwnClock()
    before = own.clock
    group = await node.serve(plugin, own)
    assert plugin.clock is node.clock
    assert own.clock is before
    await node.kill(group)
    other = ManualClock()
    await node.serve(plugin, clock=other)
    assert plugin.clock is other, "served again, it uses the clock with which it is served"
