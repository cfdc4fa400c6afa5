"""The machine that the placer decides for, and what of it really exists.

They are the same, except in tests on a small machine, which decide for a made one: there every cpuset that leaves the
placer is clipped to the CPUs and memory nodes that exist.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from colocate.clock import Clock, SystemClock
from colocate.cpus.placer.reconciliation import FoundGroup
from colocate.errors import Unavailable
from colocate.host.cgroups import MOUNT
from colocate.host.container_groups import ContainerGroups
from colocate.host.cpu_topology import read_topology
from colocate.host.device_nodes import device_nodes
from colocate.kubelet.paths import KubeletPaths
from colocate.kubelet.podresources import nodes_of_devices
from colocate.model.container import CpuPin, RuntimeContainer, RuntimeSandbox
from colocate.model.cpu_topology import CpuTopology
from colocate.model.cpuset import CpuSet

_PATIENCE = 0.05
"""Seconds that a kubelet has to tell of devices, twice at most: a container waits for it."""


class PlacementMachine:
    """Facts about this machine, read when they are asked for."""

    def __init__(
        self,
        read: Callable[[], CpuTopology] = read_topology,
        *,
        decide_for: CpuTopology | None = None,
        mount: Path = MOUNT,
        kubelet: KubeletPaths | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`decide_for` is a machine that does not exist, for tests; `kubelet` is asked about devices."""
        self._read = read
        self._made = decide_for
        self._mount = mount
        self._groups: ContainerGroups | None = None
        self._kubelet = kubelet
        self._clock = clock or SystemClock()

    def topology(self) -> CpuTopology:
        """UserError where it cannot be told."""
        return self._made or self._read()

    def everything(self) -> CpuPin:
        """All CPUs and all memory nodes that exist: what a container has that nobody pins."""
        real = self._read()
        return CpuPin(cpus=real.online, mems=tuple(node.id for node in real.nodes if node.memory != 0))

    def clipped(self, pin: CpuPin, everything: CpuPin) -> CpuPin:
        """The pin as the runtime can have it."""
        if self._made is None:
            return pin
        nodes = CpuSet.of(everything.mems)
        return msgspec.structs.replace(
            pin,
            cpus=pin.cpus & everything.cpus or everything.cpus,
            mems=tuple(node for node in pin.mems if node in nodes),
        )

    async def beside(self, sandbox: RuntimeSandbox, container: RuntimeContainer) -> tuple[int, ...]:
        """The NUMA nodes of a container's devices: by sysfs, or by what plugins have told the kubelet."""
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
        """What a container's control group says; None where it has none."""
        groups = self._container_groups()
        found = groups.cpus(sandbox.uid, container_id, sandbox.cgroup_parent)
        return None if found is None else FoundGroup(found.cpus, found.mems)

    def groups(self, running: Iterable[tuple[RuntimeSandbox, RuntimeContainer]]) -> dict[str, FoundGroup]:
        """By container id, those that have one."""
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
