"""Turns NRI messages into facts about sandboxes and containers, and pins into answers.

Of a pod's annotations, only its wishes for CPUs are kept.
"""

from collections.abc import Mapping

import msgspec

from colocate.model.container import (
    ContainerPhase,
    CpuPin,
    RuntimeContainer,
    RuntimeResources,
    RuntimeSandbox,
    wishes_among,
)
from colocate.wire import nri_pb2 as nri
from colocate.wire.mux import GarbledStream

_MOST_DEVICES = 256
_MOST_FOUND = 16_384
_LARGEST_INVENTORY = 64 << 20
_ATTEMPT = "io.kubernetes.container.restartCount"
"""The kubelet's annotation with the attempt: NRI has no field for it."""
_PHASES: Mapping[int, ContainerPhase] = {
    nri.CONTAINER_CREATED: ContainerPhase.CREATED,
    nri.CONTAINER_PAUSED: ContainerPhase.RUNNING,
    nri.CONTAINER_RUNNING: ContainerPhase.RUNNING,
    nri.CONTAINER_STOPPED: ContainerPhase.EXITED,
}


def sandbox(pod: nri.PodSandbox) -> RuntimeSandbox:
    return RuntimeSandbox(
        id=pod.id,
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        cgroup_parent=pod.linux.cgroup_parent,
        annotations=wishes_among(pod.annotations),
    )


def container(said: nri.Container) -> RuntimeContainer:
    linux = said.linux
    return RuntimeContainer(
        id=said.id,
        sandbox_id=said.pod_sandbox_id,
        name=said.name,
        attempt=_attempt(said.annotations.get(_ATTEMPT, "")),
        phase=_PHASES.get(said.state, ContainerPhase.UNKNOWN),
        resources=resources(linux.resources),
        devices=_devices(said),
        cgroup_path=linux.cgroups_path,
        pid=said.pid,
    )


def resources(said: nri.LinuxResources) -> RuntimeResources:
    cpu = said.cpu
    return RuntimeResources(
        cpu_shares=cpu.shares.value,
        cpu_quota=cpu.quota.value,
        cpu_period=cpu.period.value,
        memory_limit=said.memory.limit.value,
        cpuset_cpus=cpu.cpus,
        cpuset_mems=cpu.mems,
    )


def update(pin: CpuPin) -> nri.ContainerUpdate:
    """The pin as an update of a running container."""
    message = nri.ContainerUpdate(container_id=pin.container_id)
    merge(pin, message.linux.resources)
    return message


def merge(pin: CpuPin, into: nri.LinuxResources) -> None:
    """Write the pin's CPUs, and its memory nodes if it has some."""
    into.cpu.cpus = str(pin.cpus)
    if pin.mems:
        into.cpu.mems = ",".join(map(str, pin.mems))


def _devices(said: nri.Container) -> tuple[str, ...]:
    if not said.linux.devices and not said.CDI_devices:
        return ()
    paths = [nri.LinuxDevice.FromString(each).path for each in said.linux.devices[:_MOST_DEVICES]]
    names = [nri.CDIDevice.FromString(each).name for each in said.CDI_devices[:_MOST_DEVICES]]
    return (*paths, *names)


def _attempt(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


class Inventory:
    """All sandboxes and containers of a runtime, collected from the chunks of Synchronize."""

    def __init__(self) -> None:
        self._pods: list[tuple[RuntimeSandbox, bool]] = []
        self._containers: list[RuntimeContainer] = []
        self._bytes = 0

    def add(self, chunk: nri.SynchronizeRequest, size: int) -> None:
        """Add a chunk of `size` bytes; GarbledStream if the total is more than any node has."""
        self._bytes += size
        count = max(len(self._pods) + len(chunk.pods), len(self._containers) + len(chunk.containers))
        if self._bytes > _LARGEST_INVENTORY or count > _MOST_FOUND:
            raise GarbledStream(
                f"{count} sandboxes or containers in {self._bytes} bytes are more than any node has"
            )
        for each in chunk.pods:
            pod = nri.PodSandbox.FromString(each)
            self._pods.append((sandbox(pod), pod.pid != 0))
        self._containers += [container(nri.Container.FromString(each)) for each in chunk.containers]

    def found(self) -> tuple[list[RuntimeSandbox], list[RuntimeContainer]]:
        """All of them. NRI does not say which sandboxes have ended: they have neither process nor container."""
        in_use = {each.sandbox_id for each in self._containers}
        sandboxes = [
            each if process or each.id in in_use else msgspec.structs.replace(each, ready=False)
            for each, process in self._pods
        ]
        return sandboxes, self._containers
