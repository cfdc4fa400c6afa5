"""kill -9 of the proxy at every side effect, in the middle of a kubelet's calls: its successor puts all right.

The kubelet does what a kubelet does: it makes a call again that failed, as the next attempt where the container is
there. The machine is made, and so is the runtime: whatever CPUs the placer says arrive there unclipped.
No container is lost, no CPU of an exclusive container is given to another, and in the end all CPUs are free.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
from tests.support import cri_runtime
from tests.support.containerd import Kubelet
from tests.support.cri_runtime import MiniRuntime
from tests.support.placer_lives import PlacerLives, deaths_at, settled, side_effects

from colocate.cpus.placer.report import PlacementReport
from colocate.errors import ColocateError
from colocate.model.cpuset import CpuSet
from colocate.wire import cri_pb2 as cri

EVERY_LIFE = {
    "cri.bound",
    "cri.listening",
    "cri.create",
    "cri.update",
    "cri.pin",
    "file.written",
    "file.replaced",
}

T = TypeVar("T")


class Node:
    """A runtime that stays, one proxy after the other, and a kubelet."""

    def __init__(self, folder: Path, crash_at: int, log: Path) -> None:
        self.runtime = MiniRuntime()
        self.placers = PlacerLives("cri", folder, crash_at, log)
        self.kubelet = Kubelet(folder / "proxy.sock", "")

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Make a call until it is answered; a proxy that has died is succeeded by one that lives."""
        while True:
            try:
                return await ask()
            except (grpc.aio.AioRpcError, ColocateError) as error:
                if (
                    isinstance(error, grpc.aio.AioRpcError)
                    and error.code() is not grpc.StatusCode.UNAVAILABLE
                ):
                    raise
            self.placers.succeed()
            await asyncio.sleep(0.005)

    async def create(self, sandbox: str, name: str, cpus: float, *, guaranteed: bool = False) -> str:
        async def ask() -> str:
            attempt = sum(each.metadata.name == name for each in self.runtime.of_sandbox(sandbox))
            return await self.kubelet.create(sandbox, name, cpus=cpus, guaranteed=guaranteed, attempt=attempt)

        made = await self.insist(ask)
        await self.insist(lambda: self.kubelet.start(made))
        # Of attempts that were cut off a kubelet keeps none.
        for other in self.runtime.of_sandbox(sandbox):
            if other.metadata.name == name and other.id != made:
                await self.insist(lambda: self.kubelet.remove(other.id))  # noqa: B023 -- awaited at once
        return made

    async def status(self) -> PlacementReport:
        return await self.insist(self.placers.status)

    def cpus(self) -> dict[str, CpuSet]:
        """What the runtime was told last of those that run."""
        running = [
            each.id for each in self.runtime.containers.values() if each.state == cri.CONTAINER_RUNNING
        ]
        return {own: CpuSet.parse(self.runtime.resources[own].cpuset_cpus) for own in running}

    async def settled(self, *running: str, exclusive: tuple[str, ...] = ()) -> None:
        assert self.cpus().keys() == {*running, *exclusive}
        await settled(self.status, self.cpus, exclusive)

    async def end(self) -> None:
        await self.kubelet.channel.close()
        await self.placers.end()


async def life(node: Node) -> None:
    """A kubelet's day."""
    kubelet = node.kubelet
    pods = {}
    for name, qos in (("web", "burstable"), ("db", ""), ("more", "burstable")):
        pods[name] = await node.insist(lambda: kubelet.run_sandbox(name, qos=qos))  # noqa: B023 -- awaited at once
    web = await node.create(pods["web"], "main", 6.1)
    database = await node.create(pods["db"], "main", 1, guaranteed=True)
    more = await node.create(pods["more"], "main", 0.5)
    await node.insist(lambda: kubelet.resize(web, 6.2))
    await node.settled(web, more, exclusive=(database,))
    await node.insist(lambda: kubelet.stop(database))
    database = await node.create(pods["db"], "main", 1, guaranteed=True)
    await node.settled(web, more, exclusive=(database,))
    for pod in pods.values():
        await node.insist(lambda: kubelet.stop_sandbox(pod))  # noqa: B023 -- awaited at once
        await node.insist(lambda: kubelet.remove_sandbox(pod))  # noqa: B023 -- awaited at once
    await node.settled()
    assert len((await node.status()).whole) == 4


async def lived(folder: Path, crash_at: int, log: Path) -> int:
    """A whole life; returns how many placers died in it."""
    node = Node(folder, crash_at, log)
    async with cri_runtime.serving(folder / "runtime.sock", node.runtime.serve):
        try:
            await life(node)
        finally:
            await node.end()
    return node.placers.deaths


async def test_a_proxy_killed_at_its_side_effects_is_put_right_by_its_successor(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    points = await side_effects(lived, tmp_path / "points")
    assert set(points) >= EVERY_LIFE
    # All of the proxy's own, and some of those that tests/placer goes through one by one.
    chosen = [
        number
        for number, point in enumerate(points, 1)
        if (point.startswith("cri.") and point != "cri.closed") or number % 11 == 0
    ]
    deaths = await deaths_at(lived, chosen, tmp_path)
    assert deaths >= len(chosen) - 2  # one that comes later than the day's end is no death
    record_property("deaths", deaths)
    record_property("crash points", sorted(set(points)))
