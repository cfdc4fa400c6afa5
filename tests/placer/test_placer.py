"""The placer over the life of containers: created, resized, restarted, removed, by either way in."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import msgspec
import pytest
from prometheus_client import REGISTRY

from colocate.cli.placement import status_lines
from colocate.cpus import CpuMode
from colocate.cpus.placer import placer
from colocate.cpus.placer.placer import Placer
from colocate.cpus.placer.report import report_of
from colocate.kubelet.paths import KubeletPaths
from colocate.model.container import RuntimeContainer, RuntimeResources, RuntimeSandbox
from colocate.model.cpuset import CpuSet
from colocate.model.pod import QosClass
from colocate.runtime.events import PlacementRefused, Placing
from colocate.telemetry import Event
from colocate.wire import methods, rpc
from colocate.wire import podresources_pb2 as pr
from tests.placer.fake_runtime import GIB, resources
from tests.placer.placing import PlacingTest
from tests.support.logs import logged, told

Make = Callable[..., PlacingTest]


@pytest.fixture(params=["cri", "nri"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """In a folder whose path is short enough for unix sockets."""
    with TemporaryDirectory(prefix="placer") as folder:

        def made(**more: object) -> PlacingTest:
            return PlacingTest(Path(folder), nri=request.param == "nri", **more)  # type: ignore[arg-type]

        yield made


def whole(cpus: int) -> RuntimeResources:
    """Of a guaranteed container."""
    return resources(cpus * 1000, cpus * 1000, GIB)


WHOLE = whole(4)


def own_cpus(test: PlacingTest) -> dict[tuple[str, str], CpuSet]:
    assert test.keeper.placements is not None
    return {key: each.cpus for key, each in test.keeper.placements.allocator.assignments.items()}


async def pod(test: PlacingTest, name: str, cpu: int, **more: str) -> tuple[RuntimeSandbox, str]:
    """A guaranteed pod with one container."""
    sandbox = test.runtime.sandbox(name, annotations=more)
    own = await test.runtime.create(test.placer, sandbox, "main", whole(cpu))
    return sandbox, own


async def test_a_guaranteed_container_gets_a_ccx_alone_and_a_shared_one_leaves_it_first(make: Make) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    idle = test.runtime.sandbox("idle", QosClass.BEST_EFFORT)
    watcher = await test.runtime.create(test.placer, idle, "main", resources(0))
    assert test.runtime.cpus(watcher) == "0-15"
    _, own = await pod(test, "db", 4)
    assert test.runtime.cpus(own) == "0-1,8-9"
    assert test.runtime.containers[own].mems == (0,)
    assert test.runtime.cpus(watcher) == "2-7,10-15", "it was changed before the other was created"
    test.check()
    test.agree()


async def test_what_is_free_again_is_shared_again_after_a_pause(make: Make) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    idle = test.runtime.sandbox("idle", QosClass.BEST_EFFORT)
    watcher = await test.runtime.create(test.placer, idle, "main", resources(0))
    sandbox, _ = await pod(test, "db", 4)
    await test.runtime.end_sandbox(test.placer, sandbox)
    assert test.runtime.cpus(watcher) == "2-7,10-15"
    await test.settle()
    assert test.runtime.cpus(watcher) == "0-15"


async def test_a_container_that_restarts_in_its_sandbox_gets_its_cpus_again(make: Make) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    sandbox, first = await pod(test, "db", 4)
    before = test.runtime.cpus(first)
    await test.runtime.stop(test.placer, first)
    await test.runtime.remove(test.placer, first)
    _, other = await pod(test, "other", 4)
    second = await test.runtime.create(test.placer, sandbox, "main", WHOLE)
    assert test.runtime.cpus(second) == before
    assert test.runtime.cpus(other) != before
    third = await test.runtime.create(test.placer, sandbox, "main", WHOLE)
    await test.runtime.remove(test.placer, second)
    assert test.runtime.cpus(third) == before, "removing the old one does not cost the new one anything"
    test.check()


async def test_a_strict_wish_that_cannot_be_had_is_refused_with_its_reason(make: Make) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    for name in "abcd":
        await pod(test, name, 3)
    sandbox = test.runtime.sandbox("e", annotations={"colocate.dev/cpus": "strict"})
    before = test.keeper.placements
    about = RuntimeContainer(id="ab", sandbox_id=sandbox.id, name="main", resources=WHOLE)
    with pytest.raises(PlacementRefused, match="no CCX has them free"):
        await test.placer.create(sandbox, about)
    assert test.keeper.placements is before
    test.check()


async def test_a_container_that_was_made_without_a_decision_is_placed_as_it_would_have_been(
    make: Make,
) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    idle = test.runtime.sandbox("idle", QosClass.BEST_EFFORT)
    watcher = await test.runtime.create(test.placer, idle, "main", resources(0))
    sandbox = test.runtime.sandbox("db")
    about = RuntimeContainer(id="ab", sandbox_id=sandbox.id, name="main", resources=WHOLE)
    placing = await test.placer.found(sandbox, about)
    assert placing.own is not None
    assert (str(placing.own.cpus), placing.own.mems) == ("0-1,8-9", (0,))
    assert [(each.container_id, str(each.cpus)) for each in placing.others] == [(watcher, "2-7,10-15")]
    assert test.keeper.placements is not None
    found = test.keeper.placements.find("ab")
    assert found is not None
    assert not found.passed


async def test_a_strict_container_that_runs_already_is_placed_elsewhere_and_not_left_unknown(
    make: Make,
) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    for name in "abcd":
        await pod(test, name, 3)
    sandbox = test.runtime.sandbox("e", annotations={"colocate.dev/cpus": "strict"})
    about = RuntimeContainer(id="ab", sandbox_id=sandbox.id, name="main", resources=WHOLE)
    placing = await test.placer.found(sandbox, about)
    assert placing.own is not None
    assert placing.own.cpus <= test.keeper.shared
    test.check()


async def test_a_container_that_ran_before_is_placed_beside_its_devices(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placer, "device_nodes", lambda devices: (1,) if devices else ())
    test = make()
    sandbox = test.runtime.sandbox("db")
    about = RuntimeContainer(
        id="ab", sandbox_id=sandbox.id, name="main", resources=WHOLE, devices=("/dev/gpu1",)
    )
    (pin,) = await test.placer.synchronize([sandbox], [about], test.runtime)
    assert (str(pin.cpus), pin.mems) == ("4-5,12-13", (1,))


def held(container: str, node: int) -> pr.PodResources:
    """What a kubelet says of a pod with one device."""
    near = pr.TopologyInfo(nodes=[pr.NUMANode(ID=node)])
    devices = [pr.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["0"], topology=near)]
    return pr.PodResources(
        name="db", namespace="default", containers=[pr.ContainerResources(name=container, devices=devices)]
    )


@pytest.mark.parametrize(
    ("listed", "gets", "devices", "cpus"),
    [
        (held("main", 1), True, ("nvidia.com/gpu=0",), "4-5,12-13"),
        (held("main", 1), False, ("nvidia.com/gpu=0",), "4-5,12-13"),
        (held("side", 1), True, ("nvidia.com/gpu=0",), "0-1,8-9"),
        (held("main", 99), True, ("nvidia.com/gpu=0",), "0-1,8-9"),
        (held("main", -1), True, ("nvidia.com/gpu=0",), "0-1,8-9"),
        (held("main", 1), True, (), "0-1,8-9"),
        (None, True, ("nvidia.com/gpu=0",), "0-1,8-9"),
    ],
)
async def test_a_kubelet_tells_where_devices_are_that_sysfs_does_not_know(
    make: Make, listed: pr.PodResources | None, gets: bool, devices: tuple[str, ...], cpus: str
) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    sandbox = test.runtime.sandbox("db")
    about = RuntimeContainer(id="ab", sandbox_id=sandbox.id, name="main", resources=WHOLE, devices=devices)

    async def get(_: pr.GetPodResourcesRequest) -> pr.GetPodResourcesResponse:
        if not gets:
            raise rpc.RpcError(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")
        return pr.GetPodResourcesResponse(pod_resources=listed)

    async def list_all(_: pr.ListPodResourcesRequest) -> pr.ListPodResourcesResponse:
        return pr.ListPodResourcesResponse(pod_resources=[listed] if listed else [])

    paths = KubeletPaths(test.folder / "kubelet")
    paths.pod_resources_socket.parent.mkdir(parents=True)
    service = rpc.Service({methods.GET_POD: get, methods.LIST_PODS: list_all})
    server = await rpc.serve(paths.pod_resources_socket, service) if listed else None
    try:
        placing = await test.placer.create(sandbox, about)
    finally:
        if server is not None:
            await rpc.stop_server(server)
    assert placing.own is not None
    assert str(placing.own.cpus) == cpus


async def test_placement_that_is_off_leaves_a_found_container_alone(make: Make) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    await test.keeper.step("switch", lambda placements: placements.switch(True))
    sandbox = test.runtime.sandbox("db")
    about = RuntimeContainer(id="ab", sandbox_id=sandbox.id, name="main", resources=WHOLE)
    assert await test.placer.found(sandbox, about) == Placing()
    await test.keeper.step("switch", lambda placements: placements.switch(False))
    assert str(test.keeper.pins[sandbox.id, "main"].cpus) == "0-1,8-9"


async def test_a_resize_takes_cpus_from_others_first_and_gives_them_back_later(make: Make) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    idle = test.runtime.sandbox("idle", QosClass.BEST_EFFORT)
    watcher = await test.runtime.create(test.placer, idle, "main", resources(0))
    _, own = await pod(test, "db", 2)
    assert test.runtime.cpus(own) == "0,8"
    assert await test.runtime.update(test.placer, own, WHOLE)
    assert test.runtime.cpus(own) == "0-1,8-9"
    assert test.runtime.cpus(watcher) == "2-7,10-15"
    assert await test.runtime.update(test.placer, own, whole(2))
    assert len(test.runtime.containers[own].cpus) == 2
    test.check()
    await test.settle()
    assert len(test.runtime.containers[watcher].cpus) == 14
    test.check()


async def test_an_init_container_hands_its_cpus_on(make: Make) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    sandbox = test.runtime.sandbox("db")
    init = await test.runtime.create(test.placer, sandbox, "prepare", WHOLE)
    before = test.runtime.cpus(init)
    await test.runtime.stop(None, init)  # It ends by itself, without an event.
    main = await test.runtime.create(test.placer, sandbox, "main", WHOLE)
    assert test.runtime.cpus(main) == before
    beside = await test.runtime.create(test.placer, sandbox, "beside", WHOLE)
    assert test.runtime.containers[beside].cpus.isdisjoint(test.runtime.containers[main].cpus)
    test.check()
    await test.runtime.end_sandbox(test.placer, sandbox)
    assert test.keeper.placements is not None
    assert not test.keeper.placements.allocator.occupancy().exclusive


async def test_a_container_that_could_not_be_made_leaves_nothing_behind(make: Make) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    sandbox = test.runtime.sandbox("db")
    assert not await test.runtime.create(test.placer, sandbox, "main", WHOLE, fails=True)
    assert test.keeper.placements is not None
    if not test.runtime.nri:
        assert not test.keeper.placements.allocator.assignments
    await test.runtime.end_sandbox(test.placer, sandbox)
    assert not test.keeper.placements.allocator.assignments


async def test_the_next_placer_knows_everything_by_either_way(make: Make) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    await pod(test, "db", 4)
    ended, gone = await pod(test, "web", 4)
    await test.runtime.stop(test.placer, gone)
    before = own_cpus(test)
    test.runtime.nri = not test.runtime.nri
    test.runtime.writes.clear()
    await test.again()
    after = own_cpus(test)
    assert after == before
    assert test.runtime.writes == []
    again = await test.runtime.create(test.placer, ended, "main", WHOLE)
    assert test.runtime.containers[again].cpus == before[ended.id, "main"]


async def test_without_a_state_all_is_adopted_by_the_cpus_that_each_has(make: Make) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    _, own = await pod(test, "db", 4)
    shared = test.runtime.sandbox("web", QosClass.BURSTABLE)
    web = await test.runtime.create(test.placer, shared, "main", resources(2500))
    before = {each: test.runtime.cpus(each) for each in (own, web)}
    (test.folder / "state" / "cpus-state.json").unlink()
    for each in test.runtime.containers.values():
        each.about = msgspec.structs.replace(each.about, resources=RuntimeResources())
    await test.again()
    assert {each: test.runtime.cpus(each) for each in (own, web)} == before
    assert test.keeper.placements is not None
    modes = {each.mode for each in test.keeper.placements.allocator.assignments.values()}
    assert modes == {CpuMode.EXCLUSIVE, CpuMode.SHARED}
    test.check()
    test.agree()


class Absent(Placer):
    """What answers while no way in runs."""

    def __init__(self) -> None:
        pass

    async def create(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> Placing:
        return Placing()

    async def created(self, sandbox_id: str, name: str, attempt: int, container_id: str) -> None:
        pass

    async def started(self, container_id: str) -> None:
        pass


@pytest.mark.parametrize("pinned", [None, CpuSet.parse("9,11,13")])
async def test_strict_pods_that_started_while_no_way_in_ran_are_named(
    make: Make, pinned: CpuSet | None
) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    for number in range(4):
        await pod(test, f"big-{number}", 3)
    refused, own = await pod(test, "refused", 3, **{"colocate.dev/cpus": "strict"})
    assert own == ""
    own = await test.runtime.create(Absent(), refused, "main", whole(3))
    if pinned is not None:
        test.runtime.tamper(own, pinned)
    with logged() as logs:
        await test.again()
        await test.again()
    assert [
        (one["namespace"], one["pod"], one["container"]) for one in told(logs, Event.PLACEMENT_STRICT_UNMET)
    ] == [
        ("default", "refused", "main"),
    ] * 2, "once by each placer"
    assert test.keeper.strict_on_several == {(refused.id, "main")}
    assert REGISTRY.get_sample_value("colocate_cpus_strict_unmet") == 1
    notes = " ".join(status_lines(report_of(test.placer, "1x2x2x2x2")))
    assert "A strict wish is unmet: default/refused/main ran before the placer could refuse it" in notes
    await test.runtime.end_sandbox(test.placer, refused)
    assert REGISTRY.get_sample_value("colocate_cpus_strict_unmet") == 0


async def test_off_restores_what_the_kubelet_said_and_not_what_was_pinned_before_a_restart(
    make: Make,
) -> None:
    test = make()
    await test.runtime.connect(test.placer)
    _, own = await pod(test, "db", 4)
    asked = test.runtime.sandbox("asked", QosClass.BURSTABLE)
    said = msgspec.structs.replace(resources(1000), cpuset_cpus="4-7")
    other = await test.runtime.create(test.placer, asked, "main", said)
    await test.again()
    await test.keeper.step("switch", lambda placements: placements.switch(True))
    await test.settle()
    assert (test.runtime.cpus(own), test.runtime.cpus(other)) == ("0-15", "4-7")
    assert test.runtime.containers[own].mems == (0, 1)
