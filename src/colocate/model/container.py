"""Sandboxes and containers as a runtime reports them, by CRI or by NRI.

Values only. Tenants write names, labels and annotations: check each before using it in a path or granting a right
by it.
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
    """The annotations of a pod that ask for CPUs, within bounds. The others may be of any size, and a sandbox is
    kept in memory as long as it exists."""
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
    """Empty while the runtime has not created the container yet (CRI)."""
    sandbox_id: str
    name: str
    attempt: int = 0
    phase: ContainerPhase = ContainerPhase.UNKNOWN
    resources: RuntimeResources = RuntimeResources()
    devices: tuple[str, ...] = ()
    """Host paths of devices, and names of CDI devices."""
    cgroup_path: str = ""
    """The control group as the runtime writes it; empty where the runtime does not say (NRI does)."""
    pid: int = 0

    @property
    def has_ended(self) -> bool:
        return self.phase is ContainerPhase.EXITED


class CpuPin(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs and memory nodes that a container is to have."""

    container_id: str = ""
    """Empty for the container that is just being created."""
    cpus: CpuSet
    mems: tuple[int, ...] = ()
    """Memory nodes; empty leaves its memory where it is."""
