"""kill -9 of the proxy at every side effect, in the middle of a kubelet's calls: its successor puts all right.

The kubelet does what a kubelet does: it makes a call again that failed, as the next attempt where the container is
there. The machine is made, and so is the runtime: whatever CPUs the placer says arrive there unclipped.
No container is lost, no CPU of an exclusive container is given to another, and in the end nothing is kept for nobody.
"""

import asyncio
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import grpc
import grpc.aio
import uvloop
from tests.support import fake_runtime
from tests.support.containerd import Kubelet
from tests.support.mini_runtime import MiniRuntime

from colocate import crashpoints
from colocate.apps import control
from colocate.apps.config.file import build
from colocate.apps.cri_proxy import ProxySockets, run_cri_proxy
from colocate.apps.placement import part, upkeep
from colocate.apps.placement.control import STATUS, AskPlacement
from colocate.apps.placement.machine import PlacementMachine
from colocate.apps.placement.report import PlacementReport
from colocate.errors import ColocateError
from colocate.model.cpu_shapes import CpuShape, machine
from colocate.model.cpuset import CpuSet
from colocate.wire import cri_pb2 as cri

SHAPE = CpuShape(nodes_per_socket=2, ccx_cores=(2, 2), threads=1)
"""8 CPUs in 4 CCXs on 2 NUMA nodes."""
EVERY_LIFE = {
    "cri.bound",
    "cri.listening",
    "cri.create",
    "cri.update",
    "cri.pin",
    "file.written",
    "file.replaced",
}
# Every life is a fork of a process that has imported what takes long once. It does not find this module by its name.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["colocate.apps.cri_proxy", "colocate.apps.config.file", "uvloop"])

T = TypeVar("T")


def _live(folder: Path, crash_at: int, log: Path) -> None:
    crashpoints.arm(crash_at, log)
    made = PlacementMachine(lambda: machine(SHAPE), mount=folder)
    vars(part)["PlacementMachine"] = lambda **_: made
    vars(upkeep)["PAUSE"] = 0.01
    text = (
        "version: 1\nlog: {level: error}\n"
        f"cpus: {{stateFolder: {folder}/state, socket: {folder}/cpus.sock}}\n"
    )
    with (folder / "proxy.log").open("a") as out:
        os.dup2(out.fileno(), 2)
        sockets = ProxySockets(folder / "runtime.sock", folder / "proxy.sock")
        uvloop.run(run_cri_proxy(lambda: build(text.encode(), "test").config, sockets))


class Node:
    """A runtime that stays, one proxy after the other, and a kubelet."""

    def __init__(self, folder: Path, crash_at: int, log: Path) -> None:
        self.folder = folder
        self.runtime = MiniRuntime()
        self._log = log
        self._life = self._begin(crash_at)
        self.deaths = 0
        self.kubelet = Kubelet(folder / "proxy.sock", "")

    def _begin(self, crash_at: int) -> BaseProcess:
        life = _processes.Process(target=_live, args=(self.folder, crash_at, self._log), daemon=True)
        life.start()
        return life

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
            if not self._life.is_alive():
                self.deaths += 1
                self._log = self._log.with_suffix(".later")
                self._life = self._begin(0)
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
        return await self.insist(lambda: control.ask(self.folder / "cpus.sock", STATUS, AskPlacement()))

    def cpus(self, container: str) -> CpuSet:
        """What the runtime was told last."""
        return CpuSet.parse(self.runtime.resources[container].cpuset_cpus)

    async def end(self) -> None:
        await self.kubelet.channel.close()
        self._life.terminate()
        await asyncio.to_thread(self._life.join)


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
    await settled(node, {database}, {web, more})
    await node.insist(lambda: kubelet.stop(database))
    database = await node.create(pods["db"], "main", 1, guaranteed=True)
    await settled(node, {database}, {web, more})
    for pod in pods.values():
        await node.insist(lambda: kubelet.stop_sandbox(pod))  # noqa: B023 -- awaited at once
        await node.insist(lambda: kubelet.remove_sandbox(pod))  # noqa: B023 -- awaited at once
    await settled(node, set(), set())
    assert len((await node.status()).whole) == 4


async def settled(node: Node, exclusive: set[str], shared: set[str]) -> None:
    """Everybody has what the placer says, and nobody has a CPU that is another's alone."""
    assert {each.id for each in node.runtime.containers.values() if each.state == cri.CONTAINER_RUNNING} == (
        exclusive | shared
    )
    async with asyncio.timeout(30):
        while True:
            report = await node.status()
            said = {each.id: CpuSet.parse(each.cpus) for each in report.containers if each.phase != "exited"}
            if (
                report.connected
                and said.keys() == exclusive | shared
                and all(node.cpus(each) == said[each] for each in said)
            ):
                break
            await asyncio.sleep(0.01)
    for one in exclusive:
        assert len(said[one]) == 1
        for other in (exclusive | shared) - {one}:
            assert said[one].isdisjoint(said[other])


async def lived(folder: Path, crash_at: int, log: Path) -> int:
    """A whole life, whoever dies in it; returns how many did."""
    node = Node(folder, crash_at, log)
    async with fake_runtime.serving(folder / "runtime.sock", node.runtime.serve):
        try:
            await life(node)
        finally:
            await node.end()
    assert "Traceback" not in (folder / "proxy.log").read_text()
    return node.deaths


async def test_a_proxy_killed_at_its_side_effects_is_put_right_by_its_successor(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    log = tmp_path / "points"
    with TemporaryDirectory(prefix="cri") as folder:
        assert await lived(Path(folder), 0, log) == 0
    points = [line.split()[1] for line in log.read_text().splitlines()]
    assert set(points) >= EVERY_LIFE
    # All of the proxy's own, and some of those that tests/placement goes through one by one.
    chosen = [
        number
        for number, point in enumerate(points, 1)
        if (point.startswith("cri.") and point != "cri.closed") or number % 11 == 0
    ]
    deaths = 0
    for number in chosen:
        with TemporaryDirectory(prefix="cri") as folder:
            deaths += await lived(Path(folder), number, tmp_path / f"points-{number}")
    assert deaths >= len(chosen) - 2  # one that comes later than the day's end is no death
    record_property("deaths", deaths)
    record_property("crash points", sorted(set(points)))
