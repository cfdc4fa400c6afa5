"""The machine of the placer: its CPUs, the control groups of its containers, and the NUMA nodes of their devices.

With `cpus.topology`, decisions are for a made machine: then every cpuset that leaves the placer is clipped to the
CPUs and memory nodes that really exist.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from colocate.clock import Clock, SystemClock
from colocate.cpus import CpuAllocator, CpuSettings
from colocate.cpus.placer.reconciliation import FoundGroup
from colocate.errors import Unavailable, UserError
from colocate.host.cgroups import MOUNT
from colocate.host.container_groups import ContainerGroups
from colocate.host.cpu_topology import read_topology
from colocate.host.device_nodes import device_nodes
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import nodes_of_devices
from colocate.model.container import CpuPin, RuntimeContainer, RuntimeSandbox
from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import EMPTY, CpuSet, union

_PATIENCE = 0.05
"""Seconds in which a kubelet must answer about devices, asked twice at most: a container waits for it."""


class PlacementMachine:
    """Facts about this machine, read on demand."""

    def __init__(
        self,
        read: Callable[[], CpuTopology] = read_topology,
        *,
        decide_for: CpuTopology | None = None,
        mount: Path = MOUNT,
        kubelet: KubeletPaths | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`decide_for` is a made machine; `kubelet` is asked about devices that sysfs does not know."""
        self._read = read
        self._made = decide_for
        self._mount = mount
        self._groups: ContainerGroups | None = None
        self._kubelet = kubelet
        self._clock = clock or SystemClock()

    def topology(self) -> CpuTopology:
        """The topology to decide for; UserError if it cannot be read."""
        return self._made or self._read()

    def everything(self) -> CpuPin:
        """All CPUs and memory nodes that exist: what an unpinned container has."""
        real = self._read()
        return CpuPin(cpus=real.online, mems=tuple(node.id for node in real.nodes if node.memory != 0))

    def clipped(self, pin: CpuPin, everything: CpuPin) -> CpuPin:
        """The pin, limited to `everything` if the machine is a made one."""
        if self._made is None:
            return pin
        nodes = CpuSet.of(everything.mems)
        return msgspec.structs.replace(
            pin,
            cpus=pin.cpus & everything.cpus or everything.cpus,
            mems=tuple(node for node in pin.mems if node in nodes),
        )

    async def beside(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> tuple[int, ...]:
        """The NUMA nodes of a container's devices, by sysfs or else by the kubelet."""
        found = device_nodes(container.devices)
        if found or not container.devices or self._kubelet is None:
            return found
        try:
            return await nodes_of_devices(
                self._kubelet, self._clock, sandbox.namespace, sandbox.name, container.name, _PATIENCE
            )
        except Unavailable:
            return ()

    def group(self, sandbox: RuntimeSandbox, container_id: str) -> FoundGroup | None:
        """The cpuset in a container's control group; None if it has no control group."""
        groups = self._container_groups()
        found = groups.cpus(sandbox.uid, container_id, sandbox.cgroup_parent)
        return None if found is None else FoundGroup(found.cpus, found.mems)

    def groups(self, running: Iterable[tuple[RuntimeSandbox, RuntimeContainer]]) -> dict[str, FoundGroup]:
        """The control groups of these containers by id, with their resources."""
        found = {}
        for sandbox, container in running:
            group = self.group(sandbox, container.id)
            if group is not None:
                resources = self._container_groups().resources(
                    sandbox.uid, container.id, sandbox.cgroup_parent
                )
                found[container.id] = msgspec.structs.replace(group, resources=resources)
        return found

    def _container_groups(self) -> ContainerGroups:
        if self._groups is None:
            self._groups = ContainerGroups(self._mount)
        return self._groups


def fitted(settings: CpuSettings, topology: CpuTopology) -> tuple[CpuSettings, tuple[str, ...]]:
    """The settings that fit this machine, and a sentence for each that does not: a missing CPU stops no placer."""
    doubts = []
    online = topology.online
    missing = union([settings.reserved, *(pool.cpus for pool in settings.pools)]) - online
    if missing:
        doubts.append(f"CPUs {missing} are reserved or in a pool, and are not online; they are left out.")
        pools = tuple(
            msgspec.structs.replace(pool, cpus=pool.cpus & online)
            for pool in settings.pools
            if pool.size or pool.cpus & online
        )
        settings = msgspec.structs.replace(settings, reserved=settings.reserved & online, pools=pools)
    try:
        CpuAllocator(topology, settings)
    except UserError as error:
        doubts.append(f"No CPU is reserved, and no pool is used: {error}.")
        settings = msgspec.structs.replace(settings, reserved=EMPTY, reserved_size=0, pools=())
    return settings, tuple(doubts)
