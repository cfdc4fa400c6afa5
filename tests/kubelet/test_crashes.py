"""kill -9 at every side effect: whatever the plugin was doing, its successor puts things right.

The side effects of a whole life (start, list, allocation, withdrawal, a restart of the kubelet, SIGHUP,
SIGTERM) are counted by `colocate.crashpoints`; the plugin process is killed at the first of them, at the
second, and so on until a life passes without a death.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.support.crashing_plugin import IDS, RESOURCE
from tests.support.lives import Lives, Violations
from tests.support.waiting import until

from colocate.clock import SystemClock
from colocate.kubelet import Registration
from colocate.lab.pod_worker import PodRecord
from colocate.model.pod import Phase, Pod
from colocate.testing import TestNode, embedded_kubelet

STRIDE = 4
"""The deaths are dealt out to so many tests, which run side by side."""

ONE_WAY = {
    Registration.REGISTER: {"register.call", "register.answered"},
    Registration.WATCHER: {"watcher.info"},
}
EVERY_LIFE = {
    *("plugin.open", "plugin.opened", "plugin.close", "plugin.closed"),
    *("socket.serve", "socket.served", "socket.remove", "socket.removed"),
    *("list.send", "list.sent", "ids.drop", "withdraw.unhealthy"),
    *("prefer.answer", "allocate.answer", "prestart.answer"),
}
"""Side effects that every way of registering has."""

REPO = Path(__file__).parents[2]


class Process:
    """A plugin process, told to die at a certain side effect or never; it never outlives its block."""

    def __init__(self, node: TestNode, way: Registration, crash_at: int = 0, log: Path | None = None) -> None:
        self._node = node
        self._way = way
        self._crash_at = crash_at
        self._log = log

    async def __aenter__(self) -> "Process":
        await self._start(self._crash_at, self._log)
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.dead:
            self._process.kill()
            await self._wait

    async def _start(self, crash_at: int, log: Path | None) -> None:
        env = {**os.environ, "COLOCATE_CRASH_AT": str(crash_at), "PYTHONPATH": str(REPO)}
        if log:
            env["COLOCATE_CRASH_LOG"] = str(log)
        self._process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "tests.support.crashing_plugin", str(self._node.paths.root), self._way],
            env=env,
            cwd=REPO,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._wait = asyncio.create_task(self._process.wait())

    @property
    def dead(self) -> bool:
        return self._wait.done()

    async def signal(self, number: signal.Signals) -> None:
        if not self.dead:
            self._process.send_signal(number)

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self._wait, 60)


def sockets_left(node: TestNode) -> list[Path]:
    return [*node.paths.root.rglob("colocate-*.sock")]


async def live_a_life(node: TestNode, plugin: Process) -> None:
    """Every side effect that a plugin has, in order; returns early where it dies."""
    kubelet = node.kubelet

    def healthy() -> list[str]:
        return kubelet.devices.table.healthy(RESOURCE)

    async def reach(holds: Callable[[], bool], what: str) -> bool:
        await until(lambda: plugin.dead or holds(), what)
        return not plugin.dead

    if not await reach(lambda: len(healthy()) == 4, "four devices"):
        return
    first = await start_pod(node, "first")
    if not await reach(lambda: first.status.phase != Phase.PENDING, "the first pod"):
        return
    (node.paths.root / "withdraw").touch()
    if not await reach(lambda: "fan-3" not in kubelet.devices.table.devices[RESOURCE], "fan-3 to be dropped"):
        return
    await kubelet.restart()
    if not await reach(lambda: len(healthy()) == 3, "the devices after a restart of the kubelet"):
        return
    before = kubelet.devices.socket_of(RESOURCE)
    await plugin.signal(signal.SIGHUP)
    if not await reach(lambda: kubelet.devices.socket_of(RESOURCE) not in (before, None), "SIGHUP"):
        return
    if not await reach(lambda: len(healthy()) == 3, "the devices from the new socket"):
        return
    await plugin.signal(signal.SIGTERM)
    await plugin.exit_code()


async def start_pod(node: TestNode, name: str) -> PodRecord:
    limits = {RESOURCE: "1"}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}], "restartPolicy": "Never"}
    return node.kubelet.add_pod(msgspec.convert({"metadata": {"name": name}, "spec": spec}, Pod))


async def put_right(node: TestNode, way: Registration) -> None:
    """A successor that is not killed: everything must be as if nothing had happened."""
    (node.paths.root / "withdraw").unlink(missing_ok=True)
    async with Process(node, way) as successor:
        table = node.kubelet.devices.table
        await until(lambda: sorted(table.healthy(RESOURCE)) == IDS, "all devices, from the successor")
        await node.kubelet.until(
            lambda: all(record.status.phase != Phase.PENDING for record in node.kubelet.records.values()),
            "a verdict for every pod",
        )
        last = await start_pod(node, "last")
        await node.until_phase(last, Phase.RUNNING)
        others = [
            record for record in node.kubelet.records.values() if record is not last and not record.finished
        ]
        assert not any(node.held(last) & node.held(other) for other in others)
        assert len(sockets_left(node)) == 1, "the sockets of the dead are removed"
        await successor.signal(signal.SIGTERM)
        assert await successor.exit_code() == 0
        assert not sockets_left(node)


@pytest.mark.parametrize("way", list(Registration))
@pytest.mark.parametrize("start", range(STRIDE))
async def test_a_plugin_killed_at_any_side_effect_is_put_right_by_its_successor(
    way: Registration,
    start: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    violations = Violations(monkeypatch)
    lives = Lives(start, STRIDE, tmp_path)
    for crash_at, log in lives:
        async with embedded_kubelet(clock=SystemClock()) as node:
            async with Process(node, way, crash_at, log) as plugin:
                await live_a_life(node, plugin)
                survived = plugin.dead and await plugin.exit_code() == 0
            if not survived:
                assert await plugin.exit_code() == -signal.SIGKILL
                await put_right(node, way)
            assert not node.kubelet.panics
        assert not violations.found, f"killed at {log.read_text().splitlines()[-1]}"
        lives.over(log, survived=survived)
    lives.tell(record_property)
    assert lives.points == EVERY_LIFE | ONE_WAY[way]
