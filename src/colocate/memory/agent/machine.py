"""Reads this machine's memory: the node, its pods, and what may be done to them.

Reading is blocking I/O, so it runs in a thread, one reading at a time. Files of pods stay open from turn to turn.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from colocate.aio import in_thread
from colocate.host import cgroups
from colocate.host.demotion import KernelDemotion
from colocate.host.memory_capabilities import MemoryCapabilities, memory_capabilities
from colocate.host.node_memory import read_node_memory
from colocate.host.pod_groups import PodGroup
from colocate.host.pod_memory import PodMemoryReader, PodsReading
from colocate.model.memory import MemoryControls, NodeMemory, PodUid

_LOOK_AGAIN = 60
"""The machine's capabilities are read again once in so many readings."""


class MachineReading(msgspec.Struct, frozen=True):
    """The machine at one moment."""

    node: NodeMemory
    pods: PodsReading
    controls: MemoryControls


class Machine:
    """The machine; Unavailable where it has no control groups at all."""

    def __init__(
        self,
        below: Path = Path(),
        *,
        mount: Path = cgroups.MOUNT,
        read_node: Callable[[], NodeMemory] = read_node_memory,
        demotion: KernelDemotion | None = None,
    ) -> None:
        """Pods are looked for below the control group `below`."""
        self.demotion = demotion or KernelDemotion()
        self.tree = cgroups.find_tree(mount)
        self._below = below
        self._read_node = read_node
        self._reader = PodMemoryReader(self.tree, below=below)
        self._lock = asyncio.Lock()
        self._capabilities: MemoryCapabilities | None = None
        self._readings = 0

    async def read(self) -> MachineReading:
        """The node and every pod; Unavailable where not even the node can be read."""
        async with self._lock:
            return await in_thread(self._read)

    async def find(self, uid: PodUid) -> PodGroup | None:
        """A pod's control group, even one that was just created."""
        async with self._lock:
            return await in_thread(partial(self._reader.find, uid))

    def close(self) -> None:
        self._reader.close()

    def _read(self) -> MachineReading:
        node = self._read_node()
        # Memory of other NUMA nodes comes and goes while the machine runs.
        self._reader.look_by_node(len(node.numa) > 1)
        return MachineReading(node, self._reader.read(), self._controls())

    def _controls(self) -> MemoryControls:
        known = self._capabilities
        if known is None or not known.pods.here or self._readings % _LOOK_AGAIN == 0:
            known = self._capabilities = memory_capabilities(self.tree, below=self._below)
        self._readings += 1
        # Any process may change the switch, and tiers come and go with NUMA nodes.
        return msgspec.structs.replace(known.controls, demotion=self.demotion.read())
