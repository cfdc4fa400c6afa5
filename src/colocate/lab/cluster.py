"""The embedded cluster: an API server, a scheduler, this machine as a node, and simulated nodes.

Everything runs in one process and one event loop; kubectl and whoever else reach it over HTTPS on loopback.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from colocate.clock import Clock, SystemClock
from colocate.kubelet.paths import KubeletPaths
from colocate.lab.api.disk import Disk
from colocate.lab.api.server import ApiServer
from colocate.lab.api.store import Store
from colocate.lab.kubelet import EmbeddedKubelet
from colocate.lab.nodes.machine import MachineNode
from colocate.lab.nodes.shape import NodeShape, this_machine
from colocate.lab.nodes.simulated import SimulatedNodes
from colocate.lab.pod_runtime import PodRuntime
from colocate.lab.scheduler.configuration import Configuration
from colocate.lab.scheduler.loop import Scheduler

MACHINE = "this-machine"


class LabCluster:
    """One embedded cluster, from `start` to `stop`."""

    def __init__(
        self,
        root: Path,
        *,
        runtime: PodRuntime | None = None,
        nodes: list[NodeShape] | None = None,
        state: Path | None = None,
        clock: Clock | None = None,
        scheduling: Configuration | None = None,
    ) -> None:
        self.root = root
        self.clock = clock or SystemClock()
        self.store = Store(Disk(state) if state else None)
        self.server = ApiServer(self.store, self.clock)
        self.kubelet = EmbeddedKubelet(
            KubeletPaths(root / "kubelet"), node=MACHINE, clock=self.clock, runtime=runtime
        )
        self.registry = self.server.registry
        self.machine = MachineNode(self.registry, self.clock, self.kubelet, this_machine(MACHINE))
        self.simulated = SimulatedNodes(self.registry, self.clock, nodes or [])
        self.scheduler = Scheduler(self.registry, self.clock, scheduling)
        self.kubeconfig = root / "kubeconfig"
        self._tasks: list[asyncio.Task[None]] = []
        self._open = AsyncExitStack()
