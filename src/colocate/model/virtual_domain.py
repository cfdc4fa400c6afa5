"""A virtual machine as its libvirt domain describes it: as much as decides what it sees of its host's CPUs."""

from collections.abc import Mapping

import msgspec

from colocate.model.cpuset import CpuSet


class VirtualDomain(msgspec.Struct, frozen=True, kw_only=True):
    """None and empty where the domain does not say."""

    mode: str = ""
    """Of the element cpu, such as host-passthrough."""
    cache: str = ""
    """The mode of its cache, such as passthrough."""
    required: frozenset[str] = frozenset()
    """CPU features that are required."""
    cores: int | None = None
    threads: int | None = None
    pins: Mapping[int, CpuSet] = {}
    """By virtual CPU, the CPUs of the host that it may run on."""
