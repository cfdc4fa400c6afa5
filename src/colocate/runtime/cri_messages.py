"""Turns CRI messages into facts about sandboxes and containers, and writes pins into messages.

Fields that are unknown here stay unchanged in the message.
"""

import msgspec

from colocate.model.container import (
    ContainerPhase,
    CpuPin,
    RuntimeContainer,
    RuntimeResources,
    RuntimeSandbox,
    wishes_among,
)
from colocate.wire import cri_pb2 as cri

_LONGEST_INFO = 4 << 20
"""Most characters of a verbose status; a whole OCI configuration is far smaller."""

_PHASES = {
    cri.CONTAINER_CREATED: ContainerPhase.CREATED,
    cri.CONTAINER_RUNNING: ContainerPhase.RUNNING,
    cri.CONTAINER_EXITED: ContainerPhase.EXITED,
}


def requested(request: cri.CreateContainerRequest) -> tuple[RuntimeSandbox, RuntimeContainer]:
    """The container to create, and its sandbox."""
    sandbox = request.sandbox_config
    config = request.config
    return (
        RuntimeSandbox(
            id=request.pod_sandbox_id,
            uid=sandbox.metadata.uid,
            namespace=sandbox.metadata.namespace,
            name=sandbox.metadata.name,
            cgroup_parent=sandbox.linux.cgroup_parent,
            annotations=wishes_among(sandbox.annotations),
        ),
        RuntimeContainer(
            sandbox_id=request.pod_sandbox_id,
            name=config.metadata.name,
            attempt=config.metadata.attempt,
            phase=ContainerPhase.CREATED,
            resources=resources(config.linux.resources),
            devices=(
                *(device.host_path for device in config.devices),
                *(device.name for device in config.cdi_devices),
            ),
        ),
    )


def resources(said: cri.LinuxContainerResources) -> RuntimeResources:
    return RuntimeResources(
        cpu_shares=said.cpu_shares,
        cpu_quota=said.cpu_quota,
        cpu_period=said.cpu_period,
        memory_limit=said.memory_limit_in_bytes,
        cpuset_cpus=said.cpuset_cpus,
        cpuset_mems=said.cpuset_mems,
    )


def merge(pin: CpuPin, into: cri.LinuxContainerResources) -> None:
    """Write the pin's CPUs, and its memory nodes if it has some."""
    into.cpuset_cpus = str(pin.cpus)
    if pin.mems:
        into.cpuset_mems = ",".join(map(str, pin.mems))


class _Cpu(msgspec.Struct):
    shares: int = 0
    quota: int = 0
    period: int = 0
    cpus: str = ""
    mems: str = ""


class _Memory(msgspec.Struct):
    limit: int = 0


class _OciResources(msgspec.Struct):
    cpu: _Cpu | None = None
    memory: _Memory | None = None


class _OciLinux(msgspec.Struct, rename="camel"):
    cgroups_path: str = ""
    resources: _OciResources | None = None


class _OciSpec(msgspec.Struct):
    linux: _OciLinux | None = None


class _Device(msgspec.Struct):
    host_path: str = ""


class _CdiDevice(msgspec.Struct):
    name: str = ""


class _ConfigLinux(msgspec.Struct):
    cgroup_parent: str = ""


class _Config(msgspec.Struct):
    linux: _ConfigLinux | None = None
    devices: list[_Device] | None = None
    cdi_devices: list[_CdiDevice] | None = msgspec.field(name="CDI_devices", default=None)


class _VerboseStatus(msgspec.Struct):
    """The JSON that containerd and CRI-O add to a verbose status."""

    pid: int = 0
    config: _Config | None = None
    runtime_spec: _OciSpec | None = msgspec.field(name="runtimeSpec", default=None)


_read_status = msgspec.json.Decoder(_VerboseStatus).decode


def _verbose(info: str) -> _VerboseStatus:
    """The parsed status; an empty one if the runtime sent none or another format."""
    if not info or len(info) > _LONGEST_INFO:
        return _VerboseStatus()
    try:
        return _read_status(info)
    except (msgspec.DecodeError, RecursionError):
        return _VerboseStatus()


def found_sandbox(listed: cri.PodSandbox, info: str) -> RuntimeSandbox:
    """A sandbox that the runtime has, with the text `info` of its verbose status."""
    said = _verbose(info)
    linux = said.config.linux if said.config else None
    spec = said.runtime_spec.linux if said.runtime_spec else None
    parent = linux.cgroup_parent if linux else spec.cgroups_path.rpartition("/")[0] if spec else ""
    return RuntimeSandbox(
        id=listed.id,
        uid=listed.metadata.uid,
        namespace=listed.metadata.namespace,
        name=listed.metadata.name,
        cgroup_parent=parent,
        annotations=wishes_among(listed.annotations),
        ready=listed.state == cri.SANDBOX_READY,
    )


def found_container(listed: cri.Container, info: str) -> RuntimeContainer:
    """A container that the runtime has, with the text `info` of its verbose status."""
    said = _verbose(info)
    spec = (said.runtime_spec.linux if said.runtime_spec else None) or _OciLinux()
    limits = spec.resources or _OciResources()
    cpu = limits.cpu or _Cpu()
    config = said.config or _Config()
    return RuntimeContainer(
        id=listed.id,
        sandbox_id=listed.pod_sandbox_id,
        name=listed.metadata.name,
        attempt=listed.metadata.attempt,
        phase=_PHASES.get(listed.state, ContainerPhase.UNKNOWN),
        resources=RuntimeResources(
            cpu_shares=cpu.shares,
            cpu_quota=cpu.quota,
            cpu_period=cpu.period,
            memory_limit=limits.memory.limit if limits.memory else 0,
            cpuset_cpus=cpu.cpus,
            cpuset_mems=cpu.mems,
        ),
        devices=(
            *(device.host_path for device in config.devices or ()),
            *(device.name for device in config.cdi_devices or ()),
        ),
        cgroup_path=spec.cgroups_path,
        pid=max(0, said.pid),
    )
