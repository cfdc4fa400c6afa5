"""The device lists of a plugin on a node: what is withdrawn, dropped, kept, refused."""

from collections.abc import AsyncIterator

import pytest
from tests.support.plugins import FAN, Fans, ids, metric, until_ids
from tests.support.waiting import until

from colocate.errors import UserError
from colocate.kubelet import DevicePlugin, Health, Plugins, Settings
from colocate.kubelet.plugin import DeviceList, Devices
from colocate.testing import TestNode


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


async def test_nothing_is_dropped_while_the_holders_are_unknown(
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
