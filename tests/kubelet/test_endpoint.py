"""The life of a plugin on a node: registration, restarts of the kubelet, the end."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.plugins import FAN, Fans, ids, metric, until_ids
from tests.support.waiting import until

from colocate.errors import UserError
from colocate.kubelet import (
    Allocation,
    Device,
    Health,
    OnStop,
    Plugins,
    Registration,
    Settings,
    plugin,
)
from colocate.kubelet.paths import KubeletPaths
from colocate.model.pod import Phase
from colocate.testing import ManualClock, TestNode

AMPLE = 1000.0
"""Seconds of the test's clock, which runs ahead of a busy machine."""

# --- registration --------------------------------------------------------------------------------


async def test_a_node_shows_the_devices_of_a_plugin(node: TestNode) -> None:
    await node.serve(Fans("fan-0", Device("fan-1", Health.UNHEALTHY)))
    await node.devices(FAN, 1)
    status = node.kubelet.sync_status()
    assert (status.capacity, status.allocatable) == ({FAN: 2}, {FAN: 1})


async def test_the_short_way_to_write_a_plugin(node: TestNode) -> None:
    @plugin(FAN, devices=["fan-0", "fan-1"])
    def fans(ids: Sequence[str]) -> Allocation:
        return Allocation(envs={"FANS": ",".join(sorted(ids))})

    await node.serve(fans)
    await node.devices(FAN, 2)
    pod = await node.run_pod({FAN: 2})
    assert node.env(pod) == {"FANS": "fan-0,fan-1"}


async def test_a_plugin_waits_for_the_kubelet(node: TestNode) -> None:
    await node.kubelet.stop()
    node.paths.kubelet_socket.unlink()
    await node.serve(Fans("fan-0"))
    await node.kubelet.start()
    await node.devices(FAN, 1)


async def test_a_kubelet_that_refuses_is_asked_again_with_a_growing_pause(node: TestNode) -> None:
    node.kubelet.faults.register_refusal = "not today"

    def failures() -> float:
        return metric("colocate_plugin_registrations_total", resource=FAN, outcome="failed")

    refused = failures()
    await node.serve(Fans("fan-0"), first_retry=1.0)
    moments: list[float] = []
    while len(moments) < 4:
        await node.clock.advance(0.1)
        if failures() > refused + len(moments):
            moments.append(node.clock.monotonic())
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert all(pause >= least - 0.1 for pause, least in zip(pauses, [1, 2, 4], strict=True)), pauses
    node.kubelet.faults.register_refusal = ""
    while ids(node) != {"fan-0": Health.HEALTHY}:
        await node.clock.advance(1.0)


@pytest.mark.parametrize("way", list(Registration))
async def test_twenty_restarts_of_the_kubelet_in_a_row(node: TestNode, way: Registration) -> None:
    await node.serve(Fans("fan-0", "fan-1"), Fans("a", resource="example.com/other"), registration=way)
    await node.devices(FAN, 2)
    pod = await node.run_pod({FAN: 1})
    for _ in range(20):
        await node.kubelet.restart()
        await node.devices(FAN, 2)
        await node.devices("example.com/other", 1)
    assert pod.status.phase == Phase.RUNNING
    assert node.held(pod) == {"fan-0"}


@pytest.mark.vm("mini", here=True)
async def test_every_start_has_a_fresh_socket_and_none_is_left(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0"))
    names = set()
    for _ in range(3):
        await node.devices(FAN, 1)
        names |= {path.name for path in node.paths.device_plugins.glob("colocate-*.sock")}
        await node.kubelet.restart()
    await node.devices(FAN, 1)
    assert len(names) == 3
    await node.stop(group)
    assert not list(node.paths.device_plugins.glob("colocate-*.sock"))


@pytest.mark.vm("mini", here=True)
async def test_registration_by_the_plugin_watcher(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0"), registration=Registration.WATCHER)
    await node.devices(FAN, 1)
    assert list(node.paths.plugins_registry.glob("*.sock"))
    await node.stop(group)
    assert not list(node.paths.plugins_registry.glob("*.sock"))


async def test_a_stream_that_the_kubelet_closes_is_offered_again(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    await node.kubelet.devices._clients[FAN].disconnect()
    await node.devices(FAN, 0)
    while not node.kubelet.devices.table.healthy(FAN):
        await node.clock.advance(0.2)


async def test_a_kubelet_that_never_asks_for_the_list_is_told_again(node: TestNode) -> None:
    """Until then the plugin would be registered, and its devices nowhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.kubelet.devices, "follow", lambda client: asyncio.sleep(0))
        await node.serve(Fans("fan-0"), stream_timeout=30.0)
        await node.kubelet.until(lambda: FAN in node.kubelet.devices.table.devices, "the registration")
    while not node.kubelet.devices.table.healthy(FAN):
        await node.clock.advance(10)


@pytest.mark.vm("mini", here=True)
async def test_sockets_of_a_killed_plugin_are_removed_and_living_ones_are_not(node: TestNode) -> None:
    stale = node.paths.device_plugins / "colocate-example-com-fan-00000000.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    living_path = node.paths.device_plugins / "colocate-example-com-fan-11111111.sock"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(living_path))
        living.listen()
        await node.serve(Fans("fan-0"))
        await node.devices(FAN, 1)
        assert not stale.exists()
        assert living_path.exists()


async def test_reload_lets_the_plugin_read_again_and_registers_again(node: TestNode) -> None:
    class Reloading(Fans):
        def reload(self) -> None:
            self.show("fan-0", "fan-1")

    group = await node.serve(Reloading("fan-0"))
    await node.devices(FAN, 1)
    before = node.kubelet.devices.socket_of(FAN)
    await group.reload()
    await node.devices(FAN, 2)
    await node.kubelet.until(
        lambda: node.kubelet.devices.socket_of(FAN) not in (None, before), "a new socket"
    )


async def test_a_socket_path_that_is_too_long_is_refused_with_a_remedy(tmp_path: Path) -> None:
    paths = KubeletPaths(tmp_path / ("x" * 90))
    paths.device_plugins.mkdir(parents=True)
    paths.kubelet_socket.touch()
    with pytest.RaisesGroup(pytest.RaisesExc(UserError, match="shorter path"), flatten_subgroups=True):
        await Plugins(Fans("fan-0"), settings=Settings(paths=paths), clock=ManualClock()).run()


# --- the end -------------------------------------------------------------------------------------


async def test_keep_leaves_the_list_to_the_kubelet(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0", "fan-1"), on_stop=OnStop.KEEP)
    await node.devices(FAN, 2)
    await node.stop(group)
    await until_ids(node, fan_0=Health.UNHEALTHY, fan_1=Health.UNHEALTHY)
    assert node.kubelet.sync_status().capacity == {FAN: 2}


async def test_withdraw_empties_the_list_first(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0", "fan-1"), on_stop=OnStop.WITHDRAW)
    await node.devices(FAN, 2)
    await node.stop(group)
    await until_ids(node)
    assert node.kubelet.sync_status().capacity == {FAN: 0}


async def test_withdraw_leaves_what_pods_hold(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0", "fan-1"), on_stop=OnStop.WITHDRAW)
    await node.devices(FAN, 2)
    await node.run_pod({FAN: 1})
    await node.stop(group)
    await until_ids(node, fan_0=Health.UNHEALTHY)


async def reload(node: TestNode, group: Plugins) -> None:
    await group.reload()


async def lose_stream(node: TestNode, group: Plugins) -> None:
    await node.kubelet.devices._clients[FAN].disconnect()
    # The end of a stream also takes down one that a new registration has opened meanwhile.
    await node.kubelet.until(lambda: node.kubelet.devices.socket_of(FAN) is None, "the end of the stream")


async def lose_socket(node: TestNode, group: Plugins) -> None:
    mine = node.kubelet.devices.socket_of(FAN)
    assert mine is not None
    mine.unlink()


async def another_kubelet(node: TestNode, group: Plugins) -> None:
    await node.kubelet.restart()


@pytest.mark.parametrize("steps", [0, 5, 20, 80])
@pytest.mark.parametrize("cause", [reload, lose_stream, lose_socket, another_kubelet])
async def test_withdraw_empties_the_list_also_between_two_registrations(
    node: TestNode, cause: Callable[[TestNode, Plugins], Awaitable[None]], steps: int
) -> None:
    group = await node.serve(Fans("fan-0", "fan-1"), on_stop=OnStop.WITHDRAW, stop_grace=AMPLE)
    await node.devices(FAN, 2)
    await cause(node, group)
    for _ in range(steps):
        await asyncio.sleep(0)
    await node.stop(group)
    await until_ids(node)
    assert node.kubelet.sync_status().capacity == {FAN: 0}


@pytest.mark.parametrize("steps", [5, 20, 80])
async def test_a_plugin_watcher_is_given_an_empty_list_between_two_registrations_too(
    node: TestNode, steps: int
) -> None:
    fans, watcher = Fans("fan-0", "fan-1"), Registration.WATCHER
    group = await node.serve(fans, registration=watcher, on_stop=OnStop.WITHDRAW, stop_grace=AMPLE)
    await node.devices(FAN, 2)
    await group.reload()
    for _ in range(steps):
        await asyncio.sleep(0)
    await node.stop(group)
    assert metric("colocate_plugin_devices", resource=FAN, health="healthy") == 0
    assert metric("colocate_plugin_devices", resource=FAN, health="unhealthy") == 0


async def test_withdraw_lets_a_registration_in_flight_end(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0", "fan-1"), on_stop=OnStop.WITHDRAW, stop_grace=AMPLE)
    await node.devices(FAN, 2)
    node.kubelet.faults.register_delay = 2.0
    await group.reload()
    await registering(node)
    await node.stop(group)
    await until_ids(node)


async def test_withdraw_waits_no_longer_than_its_grace_for_a_kubelet_that_hangs(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0"), on_stop=OnStop.WITHDRAW, stop_grace=3.0)
    await node.devices(FAN, 1)
    node.kubelet.faults.register_delay = 1000.0
    await group.reload()
    await registering(node)
    told = node.clock.monotonic()
    await node.stop(group)
    assert node.clock.monotonic() - told < 2 * 3.0 + 1, "one registration in flight, and one more"


async def registering(node: TestNode) -> None:
    """Wait until the plugin has a new socket that the kubelet does not know yet."""

    def unknown() -> bool:
        return node.kubelet.devices.socket_of(FAN) is None and any(
            node.paths.device_plugins.glob("colocate-*.sock")
        )

    await until(unknown, "a registration")


@pytest.mark.parametrize("left", [True, False])
async def test_withdraw_does_not_wait_for_a_kubelet_that_is_gone(node: TestNode, left: bool) -> None:
    """One that was killed leaves its socket behind."""
    group = await node.serve(Fans("fan-0"), on_stop=OnStop.WITHDRAW, stop_grace=3.0)
    await node.devices(FAN, 1)
    await node.kubelet.stop()
    if not left:
        node.paths.kubelet_socket.unlink()
    await until(lambda: not list(node.paths.device_plugins.glob("colocate-*.sock")), "the end of the server")
    told = node.clock.monotonic()
    await node.stop(group)
    assert node.clock.monotonic() - told < 1
    await node.kubelet.start()


async def test_a_plugin_can_be_stopped_while_it_waits_for_a_kubelet(node: TestNode) -> None:
    await node.kubelet.stop()
    group = await node.serve(Fans("fan-0"))
    for _ in range(3):
        await node.clock.advance(1)
    await node.stop(group)
    await node.kubelet.start()


async def test_plugins_join_and_leave_a_running_process(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    group.add(Fans("a", "b", resource="example.com/other"))
    await node.devices("example.com/other", 2)
    await group.remove("example.com/other")
    await node.kubelet.until(lambda: not ids(node, "example.com/other"), "an empty list")
    assert ids(node) == {"fan-0": Health.HEALTHY}


@pytest.mark.parametrize("steps", range(0, 40, 4))
async def test_a_plugin_that_is_cancelled_while_it_stops_leaves_no_server(node: TestNode, steps: int) -> None:
    group = await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    await node.kubelet.stop()  # The stream ends; the plugin lets calls in flight end, then stops its server.
    for _ in range(steps):
        await asyncio.sleep(0)
    await node.kill(group)
    assert not list(node.paths.device_plugins.glob("colocate-*"))
    servers = [task for task in asyncio.all_tasks() if "AioServer" in repr(task)]
    assert not servers
    await node.kubelet.start()
