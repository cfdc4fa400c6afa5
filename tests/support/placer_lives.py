"""Placers that are killed at a side effect and succeeded by others: processes of either way in, on a made machine.

The machine has no other CPUs than the made ones: the CPUs that the placer decides reach the runtime unclipped.
"""

import asyncio
import multiprocessing
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from colocate import crashpoints
from colocate.agent.configuration import build
from colocate.cpus.placer import part, upkeep
from colocate.cpus.placer.machine import PlacementMachine
from colocate.cpus.placer.report import STATUS, AskPlacement, PlacementReport
from colocate.kubelet.paths import KubeletPaths
from colocate.model.cpu_shapes import CpuShape, machine
from colocate.model.cpuset import CpuSet
from colocate.wire import control_socket as control

SHAPE = CpuShape(nodes_per_socket=2, ccx_cores=(2, 2), threads=1)
"""8 CPUs in 4 CCXs on 2 NUMA nodes."""
EVERYTHING = CpuSet.parse("0-7")
# Every life is a fork of a process that has imported once what takes long. It does not find this module by its name.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["colocate.agent.cri_proxy", "colocate.agent.nri", "colocate.config.file", "uvloop"]
)


def _live(way: str, folder: Path, crash_at: int, log: Path) -> None:
    crashpoints.arm(crash_at, log)
    made = PlacementMachine(lambda: machine(SHAPE), mount=folder)
    vars(part)["PlacementMachine"] = lambda **_: made
    vars(upkeep)["PAUSE"] = 0.01
    text = (
        "version: 1\nlog: {level: error}\n"
        f"cpus: {{stateFolder: {folder}/state, socket: {folder}/cpus.sock, nri: {{socket: {folder}/nri.sock}}}}\n"
    )
    config = build(text.encode(), "test").config
    with (folder / "placer.log").open("a") as out:
        os.dup2(out.fileno(), 2)
        if way == "nri":
            from colocate.agent.nri import run_nri

            uvloop.run(run_nri(lambda: config, KubeletPaths(folder)))
        else:
            from colocate.agent.cri_proxy import ProxySockets, run_cri_proxy

            uvloop.run(
                run_cri_proxy(lambda: config, ProxySockets(folder / "runtime.sock", folder / "proxy.sock"))
            )


class PlacerLives:
    """One placer after the other; the first dies at the side effect of that number, if it gets there."""

    def __init__(self, way: str, folder: Path, crash_at: int, log: Path) -> None:
        """`way` is cri or nri: sockets are runtime.sock and proxy.sock of the folder, or nri.sock."""
        self.deaths = 0
        self._way = way
        self._folder = folder
        self._log = log
        self._life = self._begin(crash_at)

    def _begin(self, crash_at: int) -> BaseProcess:
        life = _processes.Process(
            target=_live, args=(self._way, self._folder, crash_at, self._log), daemon=True
        )
        life.start()
        return life

    def succeed(self) -> None:
        """Begin the next one where the last has died."""
        if not self._life.is_alive():
            self.deaths += 1
            self._log = self._log.with_suffix(".later")
            self._life = self._begin(0)

    async def status(self) -> PlacementReport:
        """What it says of itself; ColocateError if it does not answer."""
        return await control.ask(self._folder / "cpus.sock", STATUS, AskPlacement())

    async def end(self) -> None:
        self._life.terminate()
        await asyncio.to_thread(self._life.join)
        assert "Traceback" not in (self._folder / "placer.log").read_text()


async def settled(
    status: Callable[[], Awaitable[PlacementReport]],
    cpus: Callable[[], Mapping[str, CpuSet]],
    exclusive: Iterable[str] = (),
) -> None:
    """Return once all containers have what the placer says; then check that exclusive CPUs are not shared.

    `cpus` is what the runtime's running containers have.
    """
    async with asyncio.timeout(30):
        while True:
            report = await status()
            said = {each.id: CpuSet.parse(each.cpus) for each in report.containers if each.phase != "exited"}
            if report.connected and said == cpus():
                break
            await asyncio.sleep(0.01)
    for one in exclusive:
        assert len(said[one]) == 1
        for other in said.keys() - {one}:
            assert said[one].isdisjoint(said[other])


async def side_effects(lived: Callable[[Path, int, Path], Awaitable[int]], log: Path) -> list[str]:
    """The side effects of a life that is not cut off, in order."""
    with TemporaryDirectory(prefix="placer") as folder:
        assert await lived(Path(folder), 0, log) == 0
    return [line.split()[1] for line in log.read_text().splitlines()]


async def deaths_at(
    lived: Callable[[Path, int, Path], Awaitable[int]], numbers: Iterable[int], logs: Path
) -> int:
    """A life for each of these side effects, cut off there; returns how many were."""
    deaths = 0
    for number in numbers:
        with TemporaryDirectory(prefix="placer") as folder:
            deaths += await lived(Path(folder), number, logs / f"points-{number}")
    return deaths
