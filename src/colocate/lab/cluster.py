"""The embedded cluster: an API server, a scheduler, this machine as a node, and simulated nodes.

Everything runs in one process and one event loop; kubectl and other clients reach it over HTTPS on loopback.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

from colocate.clock import Clock, SystemClock
from colocate.errors import UserError, system_reason
from colocate.kubelet.paths import KubeletPaths
from colocate.lab.api.disk import Disk
from colocate.lab.api.faults import subdomain_fault
from colocate.lab.api.server import ApiServer
from colocate.lab.api.store import ObjectStore
from colocate.lab.device_manager import STOP_GRACE
from colocate.lab.kubelet import STATUS_SYNC, EmbeddedKubelet
from colocate.lab.nodes.machine import MachineNode
from colocate.lab.nodes.meter import NodesMeter
from colocate.lab.nodes.pod_access import MachinePods
from colocate.lab.nodes.shape import LabNodeShape, this_machine
from colocate.lab.nodes.simulated import SimulatedNodes
from colocate.lab.nodes.waiting_pods import WaitingPods
from colocate.lab.pod_runtime import PodRuntime
from colocate.lab.scheduler.configuration import DEFAULT_NAME, Configuration
from colocate.lab.scheduler.loop import Scheduler

MACHINE = "this-machine"


class LabCluster:
    """One embedded cluster in its own folder."""

    def __init__(
        self,
        root: Path,
        *,
        runtime: PodRuntime | None = None,
        nodes: list[LabNodeShape] | None = None,
        state: Path | None = None,
        clock: Clock | None = None,
        scheduling: Configuration | None = None,
        status_sync: float = STATUS_SYNC,
        stop_grace: float = STOP_GRACE,
        kubelet_version: tuple[int, int] = (1, 34),
        node_name: str = MACHINE,
    ) -> None:
        """`scheduling` configures a second scheduler beside the default one; if it has a profile of the default
        name, it is the only one."""
        if fault := subdomain_fault(node_name):
            raise UserError(f"--node-name: {node_name[:100]!r} cannot name a node: {fault}")
        if any(one.name == node_name for shape in nodes or [] for one in shape.each()):
            raise UserError(
                f"a simulated node cannot be called {node_name!r}, which is this machine; rename it"
            )
        self.clock = clock or SystemClock()
        self.store = ObjectStore(Disk(state) if state else None)
        self.server = ApiServer(self.store, self.clock)
        self.registry = self.server.registry
        self.kubelet = EmbeddedKubelet(
            KubeletPaths(root / "kubelet"),
            node=node_name,
            clock=self.clock,
            runtime=runtime,
            status_sync=status_sync,
            stop_grace=stop_grace,
            version=kubelet_version,
        )
        self.machine = MachineNode(self.registry, self.clock, self.kubelet, this_machine(node_name))
        self.simulated = SimulatedNodes(self.registry, self.clock, nodes or [])
        self.meter = NodesMeter(self.kubelet, self.simulated, self.clock)
        self.server.metrics.meter = self.meter
        self.server.access = MachinePods(self.kubelet, runtime, self.clock)
        self._scheduling = _schedulers(scheduling)
        profiles = (profile for one in self._scheduling for profile in one.profiles)
        names = frozenset(profile.scheduler_name for profile in profiles)
        self.waiting = WaitingPods(self.registry, names)

    @asynccontextmanager
    async def running(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator["LabCluster"]:
        """Run the cluster while the body runs, and remove everything afterwards. If a part fails, the whole cluster
        ends."""
        try:
            await self._listen(host, port)
            self.simulated.register()
            await self.kubelet.start()
            async with asyncio.TaskGroup() as parts:
                work = (
                    self.machine.run(),
                    self.simulated.run(),
                    self.simulated.beat(),
                    self.meter.run(),
                    self.waiting.run(),
                )
                tasks = [parts.create_task(one) for one in work]
                async with AsyncExitStack() as schedulers:
                    for one in self._scheduling:
                        await schedulers.enter_async_context(Scheduler(self.registry, one, Random()))
                    yield self
                for task in tasks:
                    task.cancel()
        finally:
            await self.kubelet.close()
            await self.server.stop()
            self.store.close()

    async def _listen(self, host: str, port: int) -> None:
        if not 0 <= port <= 65535:
            raise UserError(f"--port: {port} is not a port; give one up to 65535, or 0 for any free port")
        try:
            await self.server.start(host, port)
        except OSError as error:
            reason = system_reason(error)
            raise UserError(
                f"--port: cannot listen on {host}:{port} ({reason}); choose another port"
            ) from error


def _schedulers(second: Configuration | None) -> tuple[Configuration, ...]:
    """The configurations of all schedulers: as in a real cluster, a second one does not replace the default one."""
    if second is None:
        return (Configuration(),)
    if any(profile.scheduler_name == DEFAULT_NAME for profile in second.profiles):
        return (second,)
    return Configuration(), second
