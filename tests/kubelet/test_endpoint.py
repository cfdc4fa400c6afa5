"""The life of a plugin on a node: registration, restarts of the kubelet, lists, calls, the end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from tests.support.plugins import FAN, Fans
from tests.support.waiting import until

from colocate.errors import UserError
from colocate.kubelet import (
    Allocation,
    Device,
    DeviceNode,
    DevicePlugin,
    Health,
    Mount,
    OnStop,
    Plugins,
    Refused,
    Registration,
    Settings,
    plugin,
)
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.plugin import DeviceList, Devices
from colocate.model.pod import Phase
from colocate.testing import ManualClock, TestNode


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def ids(node: TestNode, resource: str = FAN) -> dict[str, Health]:
    return {id: device.health for id, device in node.kubelet.devices.table.devices.get(resource, {}).items()}


async def until_ids(node: TestNode, **expected: Health) -> None:
    wanted = {id.replace("_", "-"): health for id, health in expected.items()}
    await node.kubelet.until(lambda: ids(node) == wanted, f"{wanted}, not {ids(node)}")


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
    while not ids(node):
        await node.clock.advance(1.0)
    await node.devices(FAN, 1)


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


# --- device lists --------------------------------------------------------------------------------


async def test_a_withdrawn_id_goes_unhealthy_lingers_and_is_dropped(node: TestNode) -> None:
    fans = Fans("fan-0", "fan-1")
    await node.serve(fans, linger=30.0)
    await node.devices(FAN, 2)
    fans.show("fan-0")
    await until_ids(node, fan_0=Health.HEALTHY, fan_1=Health.UNHEALTHY)
    await node.clock.advance(20)
    await until_ids(node, fan_0=Health.HEALTHY, fan_1=Health.UNHEALTHY)
    while len(ids(node)) > 1:
        await node.clock.advance(10)
    assert node.clock.monotonic() >= 30


async def test_an_id_that_comes_back_is_healthy_at_once(node: TestNode) -> None:
    fans = Fans("fan-0", "fan-1")
    await node.serve(fans)
    await node.devices(FAN, 2)
    fans.show("fan-0")
    await node.devices(FAN, 1)
    fans.show("fan-0", "fan-1")
    await node.devices(FAN, 2)
    await node.clock.advance(100)
    assert len(ids(node)) == 2


@pytest.mark.parametrize("source", ["podresources", "checkpoint"])
async def test_an_id_held_by_a_pod_is_never_dropped(node: TestNode, source: str) -> None:
    fans = Fans("fan-0", "fan-1")
    await node.serve(fans)
    await node.devices(FAN, 2)
    pod = await node.run_pod({FAN: 1})
    assert node.held(pod) == {"fan-0"}
    if source == "checkpoint":
        node.kubelet.faults.podresources_refusal = "out of order"
    fans.show()
    await node.devices(FAN, 0)
    while len(ids(node)) > 1:
        await node.clock.advance(10)
    await node.clock.advance(3600)
    assert ids(node) == {"fan-0": Health.UNHEALTHY}


async def test_nothing_is_dropped_while_nobody_can_say_who_holds_what(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fans = Fans("fan-0", "fan-1")
    await node.serve(fans)
    await node.devices(FAN, 2)
    node.kubelet.faults.podresources_refusal = "out of order"
    node.paths.checkpoint.write_text("rubbish")
    fans.show("fan-0")
    # Nothing is written: the rubbish stays in place.
    monkeypatch.setattr(node.kubelet.devices, "_changed", lambda: None)
    for _ in range(20):
        await node.clock.advance(10)
    assert ids(node) == {"fan-0": Health.HEALTHY, "fan-1": Health.UNHEALTHY}


async def test_a_restarted_plugin_that_forgot_a_held_id_keeps_it_unhealthy(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0", "fan-1"))
    await node.devices(FAN, 2)
    pod = await node.run_pod({FAN: 1})
    assert node.held(pod) == {"fan-0"}
    await node.kill(group)
    await node.devices(FAN, 0)
    await node.serve(Fans("fan-1"))
    await until_ids(node, fan_0=Health.UNHEALTHY, fan_1=Health.HEALTHY)


async def test_many_changes_at_once_are_few_messages_and_the_last_one_wins(node: TestNode) -> None:
    fans = Fans("fan-0")
    before = metric("colocate_plugin_list_updates_total", resource=FAN)
    await node.serve(fans)
    await node.devices(FAN, 1)
    for count in range(500):
        fans.show(*(f"fan-{n}" for n in range(count % 7 + 1)))
    fans.show(*(f"fan-{n}" for n in range(9)))
    await node.devices(FAN, 9)
    assert metric("colocate_plugin_list_updates_total", resource=FAN) - before < 250


async def test_a_failing_device_stream_keeps_the_last_list_and_starts_again(node: TestNode) -> None:
    class Flaky(DevicePlugin):
        resource = FAN
        starts = 0

        async def devices(self) -> AsyncIterator[DeviceList]:
            Flaky.starts += 1
            yield [f"fan-{n}" for n in range(Flaky.starts)]
            raise OSError("the bus is stuck")

    errors = metric("colocate_plugin_errors_total", resource=FAN, where="devices")
    await node.serve(Flaky())
    await node.devices(FAN, 1)
    while len(ids(node)) < 3:
        await node.clock.advance(1)
    assert metric("colocate_plugin_errors_total", resource=FAN, where="devices") >= errors + 2


async def test_a_plugin_whose_first_list_fails_registers_once_there_is_one(node: TestNode) -> None:
    class Late(DevicePlugin):
        resource = FAN
        tries = 0

        def devices(self) -> Devices:
            Late.tries += 1
            if Late.tries < 3:
                raise OSError("no driver yet")
            return ["fan-0"]

    await node.serve(Late(), Fans("a", resource="example.com/other"))
    await node.devices("example.com/other", 1)
    while not ids(node):
        await node.clock.advance(1)


async def test_an_id_listed_twice_is_refused_and_the_last_list_stays(node: TestNode) -> None:
    fans = Fans("fan-0")
    errors = metric("colocate_plugin_errors_total", resource=FAN, where="devices")
    await node.serve(fans)
    await node.devices(FAN, 1)
    fans.show("fan-1", "fan-1")
    await until(
        lambda: metric("colocate_plugin_errors_total", resource=FAN, where="devices") > errors, "an error"
    )
    assert ids(node) == {"fan-0": Health.HEALTHY}


async def test_a_first_list_beyond_four_mebibytes_ends_the_start_and_says_what_would_fit(
    node: TestNode,
) -> None:
    class TooMany(DevicePlugin):
        resource = FAN

        def devices(self) -> Devices:
            return [f"fan-{n:090}" for n in range(50_000)]

    refusal = pytest.RaisesExc(UserError, match=r"50000 devices .* 39199 of these would fit")
    with pytest.RaisesGroup(refusal, flatten_subgroups=True):
        await Plugins(TooMany(), settings=Settings(paths=node.paths), clock=node.clock).run()


# --- calls ---------------------------------------------------------------------------------------


async def test_everything_a_plugin_can_inject_reaches_the_container(node: TestNode) -> None:
    class Rich(Fans):
        async def allocate(self, ids: Sequence[str]) -> Allocation:
            return Allocation(
                envs={"A": "1"},
                mounts=[Mount("/in", "/host", read_only=True)],
                devices=[DeviceNode("/dev/null"), DeviceNode("/dev/zero", "/dev/nought", "r")],
                annotations={"note": "x"},
                cdi=["vendor.com/fan=0"],
            )

    await node.serve(Rich(Device("fan-0", numa=(0, 1))))
    await node.devices(FAN, 1)
    pod = await node.run_pod({FAN: 1})
    (response,) = node.kubelet.devices.injected(pod.pod, pod.pod.spec.containers[0])
    assert dict(response.envs) == {"A": "1"}
    assert [(m.container_path, m.host_path, m.read_only) for m in response.mounts] == [("/in", "/host", True)]
    assert [(d.container_path, d.host_path, d.permissions) for d in response.devices] == [
        ("/dev/null", "/dev/null", "rw"),
        ("/dev/nought", "/dev/zero", "r"),
    ]
    assert dict(response.annotations) == {"note": "x"}
    assert [device.name for device in response.cdi_devices] == ["vendor.com/fan=0"]
    (held,) = node.kubelet.devices.table.held.values()
    assert held.by_numa == {0: ("fan-0",), 1: ("fan-0",)}


async def test_prefer_and_prestart_are_called_where_a_plugin_has_them(node: TestNode) -> None:
    started: list[list[str]] = []

    class Choosy(Fans):
        def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
            return sorted(available, reverse=True)[:size]

        async def prestart(self, ids: Sequence[str]) -> None:
            started.append(sorted(ids))

    await node.serve(Choosy("fan-0", "fan-1", "fan-2"))
    await node.devices(FAN, 3)
    pod = await node.run_pod({FAN: 2})
    assert node.held(pod) == {"fan-1", "fan-2"}
    assert started == [["fan-1", "fan-2"]]


class Bad(Fans):
    """Goes wrong in a way that the test chooses."""

    def __init__(self, how: object) -> None:
        super().__init__("fan-0", "fan-1")
        self.how = how

    def allocate(self, ids: Sequence[str]) -> Awaitable[Allocation]:  # type: ignore[override]
        if isinstance(self.how, Exception):
            raise self.how
        return self.how  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("how", "where", "message"),
    [
        (
            ZeroDivisionError("one over none"),
            "allocate",
            f"rpc error: code = Internal desc = the plugin for {FAN} failed in allocate: "
            "ZeroDivisionError: one over none",
        ),
        (
            Refused("fans are for guests"),
            None,
            "rpc error: code = FailedPrecondition desc = fans are for guests",
        ),
        (None, "allocate", "rpc error: code = Internal desc = allocate returned None, which cannot be sent"),
        (Allocation(envs={"A": 1}), "allocate", "which cannot be sent"),  # type: ignore[dict-item]
    ],
)
async def test_what_goes_wrong_in_a_plugin_is_readable_in_the_pod_and_the_plugin_lives_on(
    node: TestNode, how: object, where: str | None, message: str
) -> None:
    bad = Bad(how)
    errors = metric("colocate_plugin_errors_total", resource=FAN, where="allocate")
    await node.serve(bad)
    await node.devices(FAN, 2)
    rejected = await node.run_pod({FAN: 1}, phase=Phase.FAILED)
    assert rejected.status.reason == "UnexpectedAdmissionError"
    assert message in rejected.status.message
    assert metric("colocate_plugin_errors_total", resource=FAN, where="allocate") - errors == bool(where)
    bad.how = Allocation()
    await node.run_pod({FAN: 1})


async def test_an_allocate_that_takes_too_long_ends_with_its_deadline(node: TestNode) -> None:
    class Slow(Fans):
        async def allocate(self, ids: Sequence[str]) -> Allocation:
            await super().allocate(ids)
            await asyncio.Event().wait()
            raise AssertionError

    slow = Slow("fan-0")
    await node.serve(slow, allocate_timeout=10.0)
    await node.devices(FAN, 1)
    rejected = asyncio.create_task(node.run_pod({FAN: 1}, phase=Phase.FAILED))
    await until(lambda: bool(slow.allocated), "Allocate")
    await node.clock.advance(9.9)
    assert not rejected.done()
    await node.clock.advance(0.1)
    assert (
        "DeadlineExceeded desc = the plugin for example.com/fan did not finish allocate within 10 s"
        in (await rejected).status.message
    )


async def test_an_id_that_the_plugin_never_listed_is_refused(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    node.kubelet.devices.table.devices[FAN]["ghost"] = Device("ghost")
    rejected = await node.run_pod({FAN: 2}, phase=Phase.FAILED)
    assert "has no device 'ghost'" in rejected.status.message


async def test_prestart_that_fails_holds_the_container_back_and_is_tried_again(node: TestNode) -> None:
    class Locked(Fans):
        locked = True

        def prestart(self, ids: Sequence[str]) -> None:
            if self.locked:
                raise PermissionError("the door is locked")

    locked = Locked("fan-0")
    await node.serve(locked)
    await node.devices(FAN, 1)
    pod = asyncio.create_task(node.run_pod({FAN: 1}))
    await node.kubelet.until(lambda: bool(node.kubelet.events), "an event")
    assert "PermissionError: the door is locked" in node.kubelet.events[0].message
    locked.locked = False
    while not pod.done():
        await node.clock.advance(10)


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
