"""Who gets which devices: admission, NUMA alignment, restarts, the grace after a plugin stops."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plugins import FAN, Fans
from tests.support.waiting import until

from colocate.clock import SystemClock
from colocate.kubelet import Allocation, Device, Health
from colocate.kubelet.podresources import known_pods
from colocate.lab.device_table import AdmissionError, DeviceTable
from colocate.lab.topology_policy import NotAligned, TopologyPolicy, affinity
from colocate.model.pod import Phase, Pod
from colocate.testing import TestNode, embedded_kubelet
from colocate.wire import deviceplugin_pb2 as dp
from colocate.wire import methods
from colocate.wire.rpc import Service, serve


def pod(name: str, *containers: dict[str, Any], init: Sequence[dict[str, Any]] = (), **spec: Any) -> Pod:
    return msgspec.convert(
        {
            "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {"containers": list(containers), "initContainers": list(init), **spec},
        },
        Pod,
    )


def container(name: str, count: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {FAN: str(count)} if count else {}}, **more}


async def finish(node: TestNode, pod: Pod, name: str, code: int = 0) -> None:
    runtime: Any = node.kubelet.runtime
    await node.kubelet.until(lambda: runtime.running(pod, name) is not None, f"{name} to run")
    runtime.running(pod, name).finish(code)


async def test_an_init_container_hands_its_devices_on_and_a_sidecar_keeps_them(node: TestNode) -> None:
    await node.serve(Fans("fan-0", "fan-1", "fan-2"))
    await node.devices(FAN, 3)
    both = pod(
        "both",
        container("app", 1),
        init=[container("side", 1, restartPolicy="Always"), container("warm", 2)],
    )
    record = node.kubelet.add_pod(both)
    await finish(node, both, "warm")
    await node.until_phase(record, Phase.RUNNING)
    table = node.kubelet.devices.table
    held = {key[1]: entry.ids for key, entry in table.held.items()}
    assert held["app"] <= held["warm"]
    assert not held["side"] & held["warm"]


async def test_devices_of_a_finished_pod_are_free_at_the_next_admission(node: TestNode) -> None:
    await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    first = await node.run_pod({FAN: 1}, restartPolicy="Never")
    rejected = await node.run_pod({FAN: 1}, phase=Phase.FAILED)
    assert "Requested: 1, Available: 0" in rejected.status.message
    await finish(node, first.pod, "main")
    await node.until_phase(first, Phase.SUCCEEDED)
    assert node.held(first) == {"fan-0"}, "an entry of a dead pod lingers until the next allocation"
    second = await node.run_pod({FAN: 1})
    assert (node.held(first), node.held(second)) == (set(), {"fan-0"})


async def test_a_container_that_is_down_when_the_kubelet_restarts_does_not_come_back(node: TestNode) -> None:
    group = await node.serve(Fans("fan-0"))
    await node.devices(FAN, 1)
    record = await node.run_pod({FAN: 1})
    await node.stop(group)
    await finish(node, record.pod, "main", 1)
    await node.kubelet.until(lambda: record.status.container_statuses[0].state.waiting is not None, "a crash")
    await node.kubelet.restart()
    await node.until_phase(record, Phase.FAILED)
    assert "no healthy devices present" in record.status.message


async def test_a_lost_device_keeps_a_container_that_is_down_from_coming_back(node: TestNode) -> None:
    fans = Fans("fan-0", "fan-1")
    await node.serve(fans)
    await node.devices(FAN, 2)
    record = await node.run_pod({FAN: 1})
    fans.show(Device("fan-0", Health.UNHEALTHY), "fan-1")
    await node.devices(FAN, 1)
    table = node.kubelet.devices.table
    with pytest.raises(AdmissionError, match="previously allocated devices are no longer healthy"):
        table.wish(record.pod.uid, "main", FAN, 1, None)


async def test_a_list_beyond_four_mebibytes_ends_the_stream_of_its_sender(node: TestNode) -> None:
    """The SDK refuses such a list; a plugin without it finds out here."""
    message = dp.ListAndWatchResponse(
        devices=[dp.Device(ID=f"{n:0100}", health="Healthy") for n in range(40_000)]
    )

    async def lists(_: dp.Empty) -> AsyncIterator[bytes]:
        yield message.SerializeToString()
        await asyncio.Event().wait()

    async def options(_: dp.Empty) -> dp.DevicePluginOptions:
        return dp.DevicePluginOptions()

    socket = node.paths.device_plugins / "big.sock"
    server = await serve(socket, Service({methods.OPTIONS: options}, streams={methods.LIST_AND_WATCH: lists}))
    await node.kubelet._registry._register(
        dp.RegisterRequest(version="v1beta1", endpoint=socket.name, resource_name=FAN)
    )
    await node.kubelet.until(lambda: node.kubelet.devices.socket_of(FAN) is None, "the end of the stream")
    assert not node.kubelet.devices.table.healthy(FAN)
    await server.stop(None)


async def test_the_pause_between_restarts_grows_to_five_minutes_and_is_forgiven(node: TestNode) -> None:
    record = await node.run_pod({})
    runtime: Any = node.kubelet.runtime

    async def crash() -> float:
        """Let the container crash; how long until it runs again."""
        since = node.clock.monotonic()
        runtime.running(record.pod, "main").finish(1)
        await node.kubelet.until(lambda: runtime.running(record.pod, "main") is None, "the crash")
        while runtime.running(record.pod, "main") is None:
            await node.clock.advance(5)
        return node.clock.monotonic() - since

    pauses = [await crash() for _ in range(8)]
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]
    await node.clock.advance(600)
    assert await crash() == 10


async def test_admissions_wait_for_one_another(node: TestNode) -> None:
    class Slow(Fans):
        go = asyncio.Event()

        async def allocate(self, ids: Sequence[str]) -> Allocation:
            await super().allocate(ids)
            await self.go.wait()
            return Allocation()

    slow = Slow("fan-0", "fan-1")
    slow.go = asyncio.Event()
    await node.serve(slow)
    await node.devices(FAN, 2)
    both = [asyncio.create_task(node.run_pod({FAN: 1})) for _ in range(2)]
    await until(lambda: len(slow.allocated) == 1, "the first Allocate")
    await node.clock.advance(5)
    assert len(slow.allocated) == 1
    slow.go.set()
    records = await asyncio.gather(*both)
    assert node.held(records[0]) | node.held(records[1]) == {"fan-0", "fan-1"}


async def test_a_restart_in_the_middle_of_allocate_admits_the_pod_again(node: TestNode) -> None:
    class Slow(Fans):
        async def allocate(self, ids: Sequence[str]) -> Allocation:
            if not self.allocated:
                await super().allocate(ids)
                await asyncio.Event().wait()
            return await super().allocate(ids)

    slow = Slow("fan-0", "fan-1")
    await node.serve(slow)
    await node.devices(FAN, 2)
    node.kubelet.faults.restart_in_allocate = True
    record = node.kubelet.add_pod(pod("p", container("main", 1)))
    await until(lambda: node.kubelet.starts == 2, "the restart")
    await until(lambda: record.status.phase in (Phase.RUNNING, Phase.FAILED), "a verdict")
    await node.devices(FAN, 2)
    if record.status.phase == Phase.FAILED:  # It came back before its plugin did, as on a real node.
        assert "no healthy devices" in record.status.message or "unknown" in record.status.message
    else:
        assert node.held(record) == {"fan-0"}


async def test_an_id_that_vanishes_under_an_allocate_is_a_panic(node: TestNode) -> None:
    """What the SDK prevents; done here behind its back."""

    class Slow(Fans):
        async def allocate(self, ids: Sequence[str]) -> Allocation:
            node.kubelet.devices.table.devices[FAN].pop(ids[0])
            return await super().allocate(ids)

    await node.serve(Slow("fan-0"))
    await node.devices(FAN, 1)
    node.kubelet.add_pod(pod("p", container("main", 1)))
    await until(lambda: bool(node.kubelet.panics), "a panic")
    assert "fan-0" in node.kubelet.panics[0]
    await until(lambda: node.kubelet.starts == 2, "the restart")


def connected_elsewhere(node: TestNode, socket: Path | None) -> bool:
    return node.kubelet.devices.socket_of(FAN) != socket


async def test_up_to_1_36_the_end_of_an_old_stream_takes_down_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    # The SDK registers again when its twin goes, which would hide what the kubelet does.
    monkeypatch.setattr("colocate.kubelet.watch.FolderWatch.one_goes", never)
    for version, survives in (((1, 36), False), ((1, 37), True)):
        async with embedded_kubelet(version=version) as node:
            old = await node.serve(Fans("fan-0"))
            await node.devices(FAN, 1)
            first = node.kubelet.devices.socket_of(FAN)
            await node.serve(Fans("fan-0"))
            await node.kubelet.until(partial(connected_elsewhere, node, first), "a second one")
            await node.devices(FAN, 1)
            second = node.kubelet.devices.socket_of(FAN)
            await node.stop(old)
            if survives:
                await node.clock.advance(30)
                assert node.kubelet.devices.socket_of(FAN) == second
            else:
                await node.kubelet.until(lambda: node.kubelet.devices.socket_of(FAN) is None, "its end")
                while not node.kubelet.devices.table.healthy(FAN):
                    await node.clock.advance(0.2)


async def test_from_1_37_a_connected_socket_path_cannot_register_again() -> None:
    async with embedded_kubelet(version=(1, 37)) as node:
        await node.serve(Fans("fan-0"))
        await node.devices(FAN, 1)
        path = node.kubelet.devices.socket_of(FAN)
        assert path is not None
        request = dp.RegisterRequest(version="v1beta1", endpoint=path.name, resource_name=FAN)
        with pytest.raises(Exception, match="connected already"):
            await node.kubelet._registry._register(request)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (dp.RegisterRequest(version="v1alpha", resource_name=FAN), "API version"),
        (dp.RegisterRequest(version="v1beta1", resource_name="fan"), "invalid"),
        (dp.RegisterRequest(version="v1beta1", resource_name=FAN, endpoint="absent.sock"), "failed to dial"),
    ],
)
async def test_registrations_that_are_refused(
    node: TestNode, request_: dp.RegisterRequest, message: str
) -> None:
    refused = asyncio.create_task(node.kubelet._registry._register(request_))
    while not refused.done():
        await node.clock.advance(1)
        await asyncio.sleep(0.001)
    with pytest.raises(Exception, match=message):
        await refused


# --- NUMA ----------------------------------------------------------------------------------------


async def test_a_container_gets_devices_of_one_numa_node_where_the_policy_asks_for_it() -> None:
    async with embedded_kubelet(policy=TopologyPolicy.SINGLE_NUMA_NODE) as node:
        await node.serve(Fans(*(Device(f"fan-{n}", numa=(n % 2,)) for n in range(6))))
        await node.devices(FAN, 6)
        first = await node.run_pod({FAN: 2})
        assert node.held(first) == {"fan-0", "fan-2"}
        second = await node.run_pod({FAN: 3})
        assert node.held(second) == {"fan-1", "fan-3", "fan-5"}
        rejected = await node.run_pod({FAN: 2}, phase=Phase.FAILED)
        assert rejected.status.reason in ("TopologyAffinityError", "UnexpectedAdmissionError")
    async with embedded_kubelet(policy=TopologyPolicy.SINGLE_NUMA_NODE) as node:
        await node.serve(Fans(*(Device(f"fan-{n}", numa=(n,)) for n in range(2))))
        await node.devices(FAN, 2)
        rejected = await node.run_pod({FAN: 2}, phase=Phase.FAILED)
        assert (rejected.status.reason, rejected.status.message) == (
            "TopologyAffinityError",
            "Pod was rejected: Resources cannot be allocated with Topology locality",
        )


@given(
    st.dictionaries(
        st.sampled_from("abcdef"), st.lists(st.integers(0, 3), min_size=1, max_size=2).map(tuple)
    ),
    st.integers(1, 6),
)
def test_affinity_has_room_and_no_smaller_set_has(free: dict[str, tuple[int, ...]], count: int) -> None:
    nodes = affinity(TopologyPolicy.BEST_EFFORT, {"r": count}, {"r": free})
    if nodes is None:
        assert len(free) < count
        return

    def room(chosen: frozenset[int]) -> int:
        return sum(bool(chosen & set(near)) for near in free.values())

    assert room(nodes) >= count
    assert all(room(nodes - {node}) < count for node in nodes)


def test_policies_differ_in_what_they_admit() -> None:
    free = {"r": {"a": (0,), "b": (1,)}}
    assert affinity(TopologyPolicy.NONE, {"r": 2}, free) is None
    assert affinity(TopologyPolicy.BEST_EFFORT, {"r": 2}, free) == frozenset({0, 1})
    assert affinity(TopologyPolicy.RESTRICTED, {"r": 2}, free) == frozenset({0, 1})
    with pytest.raises(NotAligned):
        affinity(TopologyPolicy.SINGLE_NUMA_NODE, {"r": 2}, free)
    apart = {"r": {"a": (0,)}, "s": {"x": (1,)}}
    assert affinity(TopologyPolicy.BEST_EFFORT, {"r": 1, "s": 1}, apart) == frozenset({0, 1})
    with pytest.raises(NotAligned):
        affinity(TopologyPolicy.RESTRICTED, {"r": 1, "s": 1}, apart)


# --- the table -----------------------------------------------------------------------------------

device_lists = st.lists(
    st.builds(
        lambda id, healthy, numa: dp.Device(
            ID=id,
            health="Healthy" if healthy else "Unhealthy",
            topology=dp.TopologyInfo(nodes=[dp.NUMANode(ID=node) for node in numa]),
        ),
        st.sampled_from("abcdefgh"),
        st.booleans(),
        st.sets(st.integers(0, 2), max_size=2),
    ),
    unique_by=lambda device: device.ID,
)


@given(device_lists, st.integers(1, 9), st.sets(st.integers(0, 2)), st.lists(st.sampled_from("abcdefgh")))
def test_a_choice_is_healthy_free_of_the_right_size_and_aligned_first(
    devices: list[dp.Device], size: int, numa: set[int], preferred: list[str]
) -> None:
    table = DeviceTable()
    table.replace(FAN, devices)
    healthy = set(table.healthy(FAN))
    try:
        wish = table.wish("uid", "main", FAN, size, frozenset(numa) or None)
    except AdmissionError:
        assert len(healthy) < size
        return
    assert wish is not None
    chosen = wish.choose(preferred)
    assert len(chosen) == len(set(chosen)) == size
    assert set(chosen) <= healthy
    aligned = set(wish.aligned)
    assert aligned <= set(chosen) or set(chosen) <= aligned or not aligned


async def test_podresources_knows_the_pod_that_is_being_admitted_and_none_behind_it(node: TestNode) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Fans):
        async def allocate(self, ids: Sequence[str]) -> Allocation:
            asked.set()
            await go_on.wait()
            return Allocation()

    await node.serve(Slow("fan-0", "fan-1"))
    await node.devices(FAN, 2)
    for name in ("first", "second"):
        node.kubelet.add_pod(pod(name, container("main", 1)))
    await asked.wait()

    async def known() -> set[str]:
        told = await known_pods(node.paths, SystemClock(), ["default/first", "default/second"])
        return set(told.pods)

    assert await known() == {"default/first"}
    go_on.set()
    await node.kubelet.until(
        lambda: all(r.status.phase == Phase.RUNNING for r in node.kubelet.records.values())
    )
    assert await known() == {"default/first", "default/second"}
