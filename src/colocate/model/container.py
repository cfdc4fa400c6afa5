"""Sandboxes and containers as a runtime knows them, whichever way it tells: CRI or NRI.

Values alone. Names, labels and annotations were written by tenants: whoever makes a path or a right of one checks it.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from colocate.model.cpuset import CpuSet

_OURS = "colocate.dev/cpus"
_MOST_ANNOTATIONS = 256
_LONGEST_ANNOTATION = 1024


class ContainerPhase(StrEnum):
    """Where a container is in its life."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


class RuntimeSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's sandbox."""

    id: str
    uid: str
    namespace: str
    name: str
    cgroup_parent: str = ""
    annotations: Mapping[str, str] = {}
    ready: bool = True


def wishes_among(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Of a pod's annotations its wishes for CPUs, and no more of them than anyone needs: the rest is of any size,
    and a sandbox keeps what it is told for as long as it lives."""
    ours = [name for name in annotations if name.startswith(_OURS)][:_MOST_ANNOTATIONS]
    return {name: annotations[name][:_LONGEST_ANNOTATION] for name in ours}


class RuntimeResources(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet says of a container's CPUs and memory; 0 and "" where it says nothing."""

    cpu_shares: int = 0
    cpu_quota: int = 0
    cpu_period: int = 0
    memory_limit: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""


class RuntimeContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container of a sandbox."""

    id: str = ""
    """Nothing yet where the runtime is still to make it (CRI)."""
    sandbox_id: str
    name: str
    attempt: int = 0
    phase: ContainerPhase = ContainerPhase.UNKNOWN
    resources: RuntimeResources = RuntimeResources()
    devices: tuple[str, ...] = ()
    """Paths of devices on the host, and names of CDI devices."""
    cgroup_path: str = ""
    """As the runtime writes it, where it tells (NRI)."""
    pid: int = 0

    @property
    def has_ended(self) -> bool:
        return self.phase is ContainerPhase.EXITED


class CpuPin(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs and memory nodes that a container is to have."""

    container_id: str = ""
    """Nothing for the container that is just being made."""
    cpus: CpuSet
    mems: tuple[int, ...] = ()
    """Nothing: its memory is left alone."""
