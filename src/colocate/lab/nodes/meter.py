"""Measures the use of nodes periodically, by the processes of this machine's pods.

A node's use is the sum of its pods. Simulated nodes have no processes: their use is 0, and their pods have no
measurements.
"""

import asyncio
from collections.abc import Container
from pathlib import Path

from colocate.clock import Clock
from colocate.lab.api.metrics import RESOLUTION, MetricsUsage, NodeReading, PodReading
from colocate.lab.kubelet import EmbeddedKubelet
from colocate.lab.nodes.processes import PROC, Used, used

_Place = tuple[str, str, int]
"""A container: the uid of its pod, its name, and its first process, which changes with a restart."""


class NodesMeter:
    """Measures a kubelet's containers, and knows the simulated nodes by name."""

    def __init__(
        self, kubelet: EmbeddedKubelet, simulated: Container[str], clock: Clock, proc: Path = PROC
    ) -> None:
        self._kubelet = kubelet
        self._simulated = simulated
        self._clock = clock
        self._proc = proc
        self._last: dict[_Place, Used] = {}
        self._moment: float | None = None
        self._pods: dict[str, PodReading] = {}
        self._machine: NodeReading | None = None

    def node(self, name: str) -> NodeReading | None:
        if name == self._kubelet.node:
            return self._machine
        return (
            NodeReading(self._clock.time(), RESOLUTION, MetricsUsage()) if name in self._simulated else None
        )

    def pod(self, uid: str) -> PodReading | None:
        return self._pods.get(uid)

    async def run(self) -> None:
        """Measure periodically until cancelled."""
        while True:
            await self.measure()
            await self._clock.sleep(RESOLUTION)

    async def measure(self) -> None:
        """Measure all containers once; their use since the last measurement is known then."""
        places = self._running()
        pids = {pid for _, _, pid in places}
        found = await asyncio.to_thread(used, pids, self._proc) if pids else {}
        now, moment = self._clock.time(), self._clock.monotonic()
        points = {place: found[place[2]] for place in places if place[2] in found}
        window = RESOLUTION if self._moment is None else moment - self._moment
        if window <= 0:
            return
        self._pods = {
            uid: PodReading(now, window, containers)
            for uid, containers in self._since_last(points, window).items()
        }
        uses = [use for pod in self._pods.values() for use in pod.containers.values()]
        total = MetricsUsage(sum(use.cpu for use in uses), sum(use.memory for use in uses))
        self._machine = NodeReading(now, window, total)
        self._last, self._moment = points, moment

    def _running(self) -> list[_Place]:
        """The running containers."""
        runtime, places = self._kubelet.runtime, list[_Place]()
        for uid, record in self._kubelet.records.items():
            for container in record.pod.containers:
                running = runtime.running(record.pod, container.name)
                if running is not None and running.pid is not None:
                    places.append((uid, container.name, running.pid))
        return places

    def _since_last(self, points: dict[_Place, Used], window: float) -> dict[str, dict[str, MetricsUsage]]:
        """The use by pod and container. A pod with a container that is new since the last measurement is left
        out."""
        pods: dict[str, dict[str, MetricsUsage]] = {}
        for place, point in points.items():
            if (before := self._last.get(place)) is not None:
                cpu = max(0.0, point.seconds - before.seconds) / window
                pods.setdefault(place[0], {})[place[1]] = MetricsUsage(cpu, point.memory)
        fresh = {place[0] for place in points if place not in self._last}
        return {uid: containers for uid, containers in pods.items() if uid not in fresh}
