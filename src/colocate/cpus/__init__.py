"""Decisions about CPUs: which CCX, NUMA nodes or CPUs of its own a container gets, and why. Pure: no I/O, no clock.

`CpuAllocator` is the way in: a `CpuRequest` and the machine in, a cpuset, memory nodes and reasons out.
`find_exclusive` is its search for CPUs of one's own; `rebalance_plan` and `fragmentation` say what moves would help;
`lint_vm` says what makes placement blind in a virtual machine. Nothing is read from the machine here, and nothing is
done to containers.
"""

from colocate.cpus.adoption import adopt, assign_running, strict_on_several
from colocate.cpus.allocator import CpuAllocator
from colocate.cpus.announcement import FreeCcxs, announced_ccxs, announcement_of, why_not_strict
from colocate.cpus.assignment import (
    ContainerKey,
    ContainerRole,
    CpuAssignment,
    CpuChange,
    CpuMode,
    CpuMove,
    CpuRefused,
    CpuRequest,
    CpuState,
    CpuUpdate,
    MilliCpu,
    decode_state,
    encode_state,
)
from colocate.cpus.exclusive import Taste, find_exclusive, grow_exclusive, spread_of
from colocate.cpus.explanation import cpus_text
from colocate.cpus.occupancy import Occupancy
from colocate.cpus.pools import CpuPool, PoolKind, PoolTree
from colocate.cpus.rebalance import Fragmentation, fragmentation, rebalance_plan, whole_ccxs
from colocate.cpus.settings import BurstLevel, CpuSettings, NamedPool
from colocate.cpus.shared import PoolRung
from colocate.cpus.vm_lint import TopologyFinding, libvirt_lines, lint_vm
from colocate.cpus.wishes import ANNOTATION, CpuWishes, parse_wishes, wishes_of

__all__ = [
    "ANNOTATION",
    "BurstLevel",
    "ContainerKey",
    "ContainerRole",
    "CpuAllocator",
    "CpuAssignment",
    "CpuChange",
    "CpuMode",
    "CpuMove",
    "CpuPool",
    "CpuRefused",
    "CpuRequest",
    "CpuSettings",
    "CpuState",
    "CpuUpdate",
    "CpuWishes",
    "Fragmentation",
    "FreeCcxs",
    "MilliCpu",
    "NamedPool",
    "Occupancy",
    "PoolKind",
    "PoolRung",
    "PoolTree",
    "Taste",
    "TopologyFinding",
    "adopt",
    "announced_ccxs",
    "announcement_of",
    "assign_running",
    "cpus_text",
    "decode_state",
    "encode_state",
    "find_exclusive",
    "fragmentation",
    "grow_exclusive",
    "libvirt_lines",
    "lint_vm",
    "parse_wishes",
    "rebalance_plan",
    "spread_of",
    "strict_on_several",
    "whole_ccxs",
    "why_not_strict",
    "wishes_of",
]
