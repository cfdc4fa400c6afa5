"""The NRI plugin with real containerds: containers get what is answered, and the runtime may restart at any time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc.aio
import pytest
from tests.runtime.nri_pairs import HastyClock
from tests.support.containerd import Containerd, Kubelet, running
from tests.support.noted_events import NotedEvents
from tests.support.waiting import until

from colocate.cpus.placer.machine import PlacementMachine
from colocate.cpus.placer.placer import Placer
from colocate.cpus.placer.section import CpusSection
from colocate.cpus.placer.store import PlacementStore
from colocate.cpus.placer.upkeep import Upkeep
from colocate.host.container_groups import ContainerGroups
from colocate.model.container import ContainerPhase, CpuPin
from colocate.model.cpu_shapes import machine, parse_shape
from colocate.model.cpuset import CpuSet
from colocate.runtime.events import PlacementRefused, Placing
from colocate.runtime.nri_plugin import NriPlugin

pytestmark = pytest.mark.needs("runc", "busybox", "containerd-1.7", "containerd-2.1")

FIRST, SECOND = CpuSet.parse("0"), CpuSet.parse("1")


@pytest.fixture(params=["1.7", "2.1"])
async def containerd(request: pytest.FixtureRequest) -> AsyncIterator[Containerd]:
    with TemporaryDirectory(prefix="ctrd") as folder:
        async with running(Path(folder), request.param, nri=True) as containerd:
            yield containerd


@asynccontextmanager
async def plugged(containerd: Containerd) -> AsyncIterator[NotedEvents]:
    """A plugin that has synchronized with the runtime."""
    events = NotedEvents()
    running = asyncio.create_task(NriPlugin(events, HastyClock(), socket=containerd.nri_socket).run())
    try:
        await until(lambda: events.writer is not None, "the runtime to synchronize")
        yield events
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def own(cpus: CpuSet) -> Placing:
    return Placing(CpuPin(cpus=cpus, mems=(0,)))


async def test_a_life_with_a_plugin(containerd: Containerd) -> None:
    async with plugged(containerd) as events, Kubelet(containerd.socket, containerd.cgroup_parent) as kubelet:
        sandbox = await kubelet.run_sandbox("pod", annotations={"colocate.dev/cpus": "exclusive"})
        events.placing = own(FIRST)
        first = await kubelet.create(sandbox, "first", cpus=0.5, guaranteed=True, attempt=3)
        _, told_sandbox, told = events.heard[-1]
        assert (told_sandbox.id, told_sandbox.annotations) == (sandbox, {"colocate.dev/cpus": "exclusive"})
        assert (told.id, told.name, told.attempt, told.phase) == (first, "first", 3, ContainerPhase.CREATED)
        assert (told.resources.cpu_shares, told.resources.cpu_quota) == (512, 50_000)
        assert told.cgroup_path.startswith(f"{told_sandbox.cgroup_parent}/")
        await kubelet.start(first)
        assert await kubelet.cpus_allowed(first) == "0"

        # Another comes, and the first must move before it starts.
        events.placing = Placing(CpuPin(cpus=FIRST), (CpuPin(container_id=first, cpus=SECOND),))
        second = await kubelet.create(sandbox, "second", cpus=0.1)
        assert await kubelet.cpus_allowed(first) == "1"
        await kubelet.start(second)
        assert await kubelet.cpus_allowed(second) == "0"

        # The kubelet resizes: its own figures arrive, with the CPUs of the answer.
        events.placing = Placing(
            CpuPin(cpus=CpuSet.parse("0-1")), (CpuPin(container_id=second, cpus=SECOND),)
        )
        await kubelet.resize(first, 1, guaranteed=True)
        assert await kubelet.cpus_allowed(first) == "0-1"
        assert await kubelet.cpus_allowed(second) == "1"
        resized = next(event for event in reversed(events.heard) if event[0] == "update")
        assert (resized[1], resized[2].cpu_quota) == (first, 100_000)
        assert await kubelet.exec(first, "true") == ""

        # The plugin moves containers by itself.
        assert events.writer is not None
        pins = [CpuPin(container_id=first, cpus=FIRST), CpuPin(container_id=second, cpus=FIRST)]
        assert await events.writer.write(pins) == []
        assert [await kubelet.cpus_allowed(each) for each in (first, second)] == ["0", "0"]

        await kubelet.stop(first)
        await kubelet.remove(first)
        await kubelet.stop_sandbox(sandbox)
        await kubelet.remove_sandbox(sandbox)
        names = [event for event in events.heard if event[0] not in ("synchronize", "create", "update")]
        assert names == [
            ("started", first),
            ("started", second),
            ("stopped", first),
            ("removed", first),
            ("stopped", second),
            ("sandbox_stopped", sandbox),
            ("removed", second),
            ("sandbox_removed", sandbox),
        ]


async def test_a_refusal_and_a_failed_creation(containerd: Containerd) -> None:
    async with plugged(containerd) as events, Kubelet(containerd.socket, containerd.cgroup_parent) as kubelet:
        sandbox = await kubelet.run_sandbox("pod")
        events.error = PlacementRefused("no CCX has 2 CPUs free")
        with pytest.raises(grpc.aio.AioRpcError, match="no CCX has 2 CPUs free"):
            await kubelet.create(sandbox, "refused", cpus=2)
        events.error = None
        events.placing = own(CpuSet.parse("0-1000"))  # the kernel has fewer
        broken = await kubelet.create(sandbox, "broken", cpus=1)
        with pytest.raises(grpc.aio.AioRpcError):
            await kubelet.start(broken)
        await kubelet.remove_all()
        assert ("removed", broken) in events.heard
        refused = next(event[2].id for event in events.heard if event[0] == "create")
        assert ("removed", refused) in events.heard, "one that could not be made is told as removed"


async def test_the_runtime_is_killed_and_comes_back(containerd: Containerd) -> None:
    async with plugged(containerd) as events, Kubelet(containerd.socket, containerd.cgroup_parent) as kubelet:
        sandbox = await kubelet.run_sandbox("pod")
        events.placing = own(FIRST)
        container = await kubelet.create(sandbox, "main", cpus=0.5)
        await kubelet.start(container)
        ended = await kubelet.create(sandbox, "ended", cpus=0.5, command=["/bin/busybox", "true"])
        await kubelet.start(ended)
        await until(lambda: ("stopped", ended) in events.heard, "its end to be told")

        events.corrections = [CpuPin(container_id=container, cpus=SECOND)]
        await asyncio.to_thread(containerd.kill)
        await until(lambda: events.writer is None, "the plugin to notice")
        await containerd.start()
        await until(lambda: events.writer is not None, "the runtime to synchronize again")
        assert [(each.id, each.ready) for each in events.sandboxes] == [(sandbox, True)]
        assert [(each.id, each.phase) for each in events.containers] == [(container, ContainerPhase.RUNNING)]

        await cpus_become(kubelet, container, "1")
        events.placing = own(SECOND)
        other = await kubelet.create(sandbox, "other", cpus=0.5)
        await kubelet.start(other)
        assert await kubelet.cpus_allowed(other) == "1"
        # Of a sandbox from before, containerd tells no more when it ends; of its containers it does.
        await kubelet.stop_sandbox(sandbox)
        await kubelet.remove_sandbox(sandbox)
        assert {("removed", container), ("removed", other)} <= {
            event for event in events.heard if event[0] == "removed"
        }
        assert ("sandbox_stopped", sandbox) not in events.heard


@asynccontextmanager
async def placed(containerd: Containerd, folder: Path) -> AsyncIterator[tuple[Placer, Upkeep]]:
    """The real placer behind the plugin. Decided for a machine of two CPUs, which every machine has; its two NUMA
    nodes are made.
    """
    facts = PlacementMachine(decide_for=machine(parse_shape("1x2x1x1x1")))
    placer = Placer(CpusSection(), PlacementStore(folder), facts)
    placer.keeper.begin()
    plugin = asyncio.create_task(NriPlugin(placer, HastyClock(), socket=containerd.nri_socket).run())
    try:
        await until(lambda: placer.writer is not None, "the runtime to synchronize")
        yield placer, Upkeep(placer)
    finally:
        plugin.cancel()
        await asyncio.gather(plugin, return_exceptions=True)
        placer.keeper.close()


async def test_a_cpuset_changed_from_outside_is_repaired_by_the_runtime(
    containerd: Containerd, tmp_path: Path
) -> None:
    async with (
        placed(containerd, tmp_path) as (placer, upkeep),
        Kubelet(containerd.socket, containerd.cgroup_parent) as kubelet,
    ):
        sandbox = await kubelet.run_sandbox("pod")
        container = await kubelet.create(sandbox, "main", cpus=1, guaranteed=True)
        await kubelet.start(container)
        own = await kubelet.cpus_allowed(container)
        assert placer.keeper.placements is not None
        found = placer.keeper.placements.sandboxes[sandbox]
        group = ContainerGroups().folder(found.uid, container, found.cgroup_parent)
        assert group is not None
        (group / "cpuset.cpus").write_text("0-1")
        assert await kubelet.cpus_allowed(container) == "0-1"
        await upkeep.audit()
        assert await kubelet.cpus_allowed(container) == own


async def test_what_a_sandbox_had_is_free_after_its_end_though_a_restarted_runtime_does_not_tell(
    containerd: Containerd, tmp_path: Path
) -> None:
    async with (
        placed(containerd, tmp_path) as (placer, upkeep),
        Kubelet(containerd.socket, containerd.cgroup_parent) as kubelet,
    ):
        sandbox = await kubelet.run_sandbox("pod")
        container = await kubelet.create(sandbox, "main", cpus=1, guaranteed=True)
        await kubelet.start(container)
        await kubelet.stop(container)
        await asyncio.to_thread(containerd.kill)
        await until(lambda: placer.writer is None, "the plugin to notice")
        await containerd.start()
        await until(lambda: placer.writer is not None, "the runtime to synchronize again")
        assert placer.keeper.placements is not None
        kept = placer.keeper.placements.allocator.assignments
        assert list(kept) == [(sandbox, "main")], "it may start again"
        await upkeep.audit()
        async with Kubelet(containerd.socket, containerd.cgroup_parent) as again:
            await again.stop_sandbox(sandbox)
            await again.remove_sandbox(sandbox)
        await upkeep.audit()
        assert placer.keeper.placements.sandboxes == {}
        assert placer.keeper.placements.allocator.assignments == {}


async def cpus_become(kubelet: Kubelet, container: str, cpus: str) -> None:
    """The runtime corrects them after the answer, and the kubelet's own connection comes back when it likes."""
    async with asyncio.timeout(30):
        while True:
            with suppress(grpc.aio.AioRpcError):
                if await kubelet.cpus_allowed(container) == cpus:
                    return
            await asyncio.sleep(0.02)


async def test_a_plugin_that_comes_later_or_again_learns_what_runs(containerd: Containerd) -> None:
    async with Kubelet(containerd.socket, containerd.cgroup_parent) as kubelet:
        sandbox = await kubelet.run_sandbox("pod")
        container = await kubelet.create(sandbox, "main", cpus=0.5)
        await kubelet.start(container)
        gone = await kubelet.run_sandbox("gone")
        await kubelet.stop_sandbox(gone)
        for _ in range(2):
            async with plugged(containerd) as events:
                assert {each.id: each.ready for each in events.sandboxes} == {sandbox: True, gone: False}
                [found] = events.containers
                assert (found.id, found.phase, found.resources.cpu_shares) == (
                    container,
                    ContainerPhase.RUNNING,
                    512,
                )
                assert found.pid > 0
        # Without a plugin the runtime goes on as ever.
        other = await kubelet.create(sandbox, "other", cpus=0.5)
        await kubelet.start(other)


async def test_a_plugin_that_is_stuck_lets_containers_go_on(containerd: Containerd) -> None:
    async with plugged(containerd) as events, Kubelet(containerd.socket, containerd.cgroup_parent) as kubelet:
        sandbox = await kubelet.run_sandbox("pod")
        events.free.clear()
        container = await kubelet.create(sandbox, "main", cpus=0.5)
        events.free.set()
        await kubelet.start(container)
        assert ("started", container) in events.heard, "on the same connection"
        assert [event[0] for event in events.heard].count("synchronize") == 1
