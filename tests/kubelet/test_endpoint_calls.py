"""The kubelet's calls to a plugin on a node: what reaches the container, and what is said where one goes wrong."""

import asyncio
from collections.abc import Awaitable, Sequence

import pytest
from tests.support.plugins import FAN, Fans, metric
from tests.support.waiting import until

from colocate.kubelet import Allocation, Device, DeviceNode, Mount, Refused
from colocate.model.pod import Phase
from colocate.testing import TestNode


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
