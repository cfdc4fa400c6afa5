"""kill -9 of the NRI plugin at its side effects, in the middle of a runtime's events: its successor puts all right.

The runtime does what a runtime does: where the plugin has died it goes on without, and the container has all CPUs
until the next plugin is told what there is. The machine is made: whatever CPUs the placer says arrive unclipped.
No container is lost, no CPU of an exclusive container is given to another, and in the end all CPUs are free.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.support.nri_runtime import NriRuntime, PluginConnection
from tests.support.placer_lives import EVERYTHING, PlacerLives, deaths_at, settled, side_effects

from colocate.cpus.placer.report import PlacementReport
from colocate.errors import ColocateError
from colocate.model.cpuset import CpuSet
from colocate.wire import nri_pb2 as nri
from colocate.wire import ttrpc_pb2 as ttrpc

EVERY_LIFE = {
    "file.written",
    "file.replaced",
    "nri.answer",
    "nri.write",
    "placement.write",
    "placement.written",
}

T = TypeVar("T")


class Died(Exception):
    """The plugin has hung up."""


class NriMachine:
    """A runtime that stays, and one plugin after the other."""

    def __init__(self, folder: Path, crash_at: int, log: Path) -> None:
        self.runtime = NriRuntime(folder / "nri.sock")
        self.pods: dict[str, nri.PodSandbox] = {}
        self.containers: dict[str, nri.Container] = {}
        """Those that have not ended."""
        self.cpus: dict[str, CpuSet] = {}
        self._numbers = itertools.count(1)
        self._plugin: PluginConnection | None = None
        self._updates: asyncio.Task[None] | None = None
        self.placers = PlacerLives("nri", folder, crash_at, log)

    async def plugin(self) -> PluginConnection:
        """The plugin that is there, told what the runtime has; a successor where it has died."""
        async with asyncio.timeout(60):
            while self._plugin is None or self._plugin.closed.is_set():
                self.placers.succeed()
                with suppress(TimeoutError, Died):
                    async with asyncio.timeout(0.05):
                        found = await self.runtime.connection()
                    await self._introduce(found)
        return self._plugin

    async def _introduce(self, plugin: PluginConnection) -> None:
        await _unless_died(plugin, plugin.introduce())
        self._updates = asyncio.create_task(self._apply_updates(plugin))
        request = nri.SynchronizeRequest(
            pods=[pod.SerializeToString() for pod in self.pods.values()],
            containers=[each.SerializeToString() for each in self.containers.values()],
        )
        answer = await _unless_died(plugin, plugin.ask("Synchronize", request, timeout=30))
        self._plugin = plugin
        self._apply(nri.SynchronizeResponse.FromString(answer.payload).update)

    async def _apply_updates(self, plugin: PluginConnection) -> None:
        while True:
            stream, request = await plugin.calls.get()
            self._apply(nri.UpdateContainersRequest.FromString(request.payload).update)
            plugin.answer(stream, ttrpc.Response())

    def _apply(self, updates: Any) -> None:
        for update in updates:
            if update.container_id in self.containers:
                self.cpus[update.container_id] = CpuSet.parse(update.linux.resources.cpu.cpus)

    async def tell(self, method: str, message: Any) -> bytes:
        """The plugin's answer; nothing where it has died."""
        plugin = await self.plugin()
        try:
            answer = await _unless_died(plugin, plugin.ask(method, message, timeout=30))
        except Died:
            return b""
        assert not answer.HasField("status"), answer.status.message
        return answer.payload

    def pod(self, name: str, qos: str = "") -> str:
        own = f"{next(self._numbers):04x}5a"
        pod = nri.PodSandbox(id=own, name=name, uid=own, namespace="default", pid=7)
        pod.linux.cgroup_parent = f"/kubepods/{qos}/pod{own}"
        self.pods[own] = pod
        return own

    async def create(self, pod: str, milli: int, *, limited: bool = False, attempt: int = 0) -> str:
        own = f"{next(self._numbers):04x}c0"
        made = nri.Container(id=own, pod_sandbox_id=pod, name="main", pid=8)
        made.annotations["io.kubernetes.container.restartCount"] = str(attempt)
        cpu = made.linux.resources.cpu
        cpu.shares.value = milli * 1024 // 1000
        if limited:
            cpu.quota.value, cpu.period.value = milli * 100, 100_000
        request = nri.CreateContainerRequest(pod=self.pods[pod], container=made)
        payload = await self.tell("CreateContainer", request)
        answer = nri.CreateContainerResponse.FromString(payload)
        self._apply(answer.update)
        given = answer.adjust.linux.resources.cpu.cpus
        self.cpus[own] = CpuSet.parse(given) if given else EVERYTHING
        made.state = nri.CONTAINER_RUNNING
        self.containers[own] = made
        await self.change(nri.POST_START_CONTAINER, pod, own)
        return own

    async def resize(self, own: str, milli: int) -> None:
        container = self.containers[own]
        resources = nri.LinuxResources()
        resources.cpu.shares.value = milli * 1024 // 1000
        request = nri.UpdateContainerRequest(
            pod=self.pods[container.pod_sandbox_id], container=container, linux_resources=resources
        )
        payload = await self.tell("UpdateContainer", request)
        container.linux.resources.cpu.shares.value = resources.cpu.shares.value
        self._apply(nri.UpdateContainerResponse.FromString(payload).update)

    async def stop(self, own: str) -> None:
        container = self.containers.pop(own)
        pod = self.pods[container.pod_sandbox_id]
        await self.tell("StopContainer", nri.StopContainerRequest(pod=pod, container=container))

    async def end(self, pod: str) -> None:
        for own in [own for own, each in self.containers.items() if each.pod_sandbox_id == pod]:
            await self.stop(own)
            await self.change(nri.REMOVE_CONTAINER, pod, own)
        self.pods[pod].pid = 0
        await self.change(nri.STOP_POD_SANDBOX, pod)
        await self.change(nri.REMOVE_POD_SANDBOX, pod)
        del self.pods[pod]

    async def change(self, event: nri.Event, pod: str, own: str = "") -> None:
        container = nri.Container(id=own, pod_sandbox_id=pod)
        await self.tell(
            "StateChange", nri.StateChangeEvent(event=event, pod=self.pods[pod], container=container)
        )

    async def status(self) -> PlacementReport:
        while True:
            await self.plugin()
            with suppress(ColocateError):
                return await self.placers.status()
            await asyncio.sleep(0.005)

    def running(self) -> dict[str, CpuSet]:
        return {own: self.cpus[own] for own in self.containers}

    async def settled(self, *running: str, exclusive: tuple[str, ...] = ()) -> None:
        assert self.containers.keys() == {*running, *exclusive}
        await settled(self.status, self.running, exclusive)

    async def close(self) -> None:
        await self.placers.end()
        if self._updates is not None:
            self._updates.cancel()


async def _unless_died(plugin: PluginConnection, work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.create_task(work)
    closed = asyncio.create_task(plugin.closed.wait())
    await asyncio.wait({task, closed}, return_when=asyncio.FIRST_COMPLETED)
    closed.cancel()
    if not task.done() or task.cancelled():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise Died
    return task.result()


async def life(node: NriMachine) -> None:
    """A runtime's day."""
    web, database, more = node.pod("web", "burstable"), node.pod("db"), node.pod("more", "burstable")
    serving = await node.create(web, 6100)
    own = await node.create(database, 1000, limited=True)
    other = await node.create(more, 500)
    await node.resize(serving, 6200)
    await node.settled(serving, other, exclusive=(own,))
    await node.stop(own)
    own = await node.create(database, 1000, limited=True, attempt=1)
    await node.settled(serving, other, exclusive=(own,))
    await node.end(database)
    await node.settled(serving, other)
    await node.end(web)
    await node.end(more)
    await node.settled()
    assert len((await node.status()).whole) == 4


async def lived(folder: Path, crash_at: int, log: Path) -> int:
    """A whole life; returns how many placers died in it."""
    node = NriMachine(folder, crash_at, log)
    async with node.runtime.listening():
        try:
            await life(node)
        finally:
            await node.close()
    return node.placers.deaths


async def test_a_plugin_killed_at_its_side_effects_is_put_right_by_its_successor(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    points = await side_effects(lived, tmp_path / "points")
    assert set(points) >= EVERY_LIFE
    # All of the plugin's own, and some of those that tests/placer goes through one by one.
    chosen = [
        number
        for number, point in enumerate(points[:-1], 1)
        if point.startswith(("nri.", "placement.")) or number % 4 == 0
    ]
    deaths = await deaths_at(lived, chosen, tmp_path)
    assert deaths >= len(chosen) - 4  # how often changes are written together differs from day to day
    record_property("deaths", deaths)
    record_property("crash points", sorted(set(points)))
