"""Finds out what can be done to the memory of pods on this machine, and why not where it cannot.

It changes nothing to find out: it looks at files, mounts and the capabilities of this process.
"""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from colocate.host import page_calls
from colocate.host.cgroups import Tree
from colocate.host.demotion import KernelDemotion
from colocate.host.node_memory import PROC, SYS, read_node_memory
from colocate.host.pod_groups import PodTier, find_tiers
from colocate.model.memory import Demotion, MemoryControls, NodeMemory

_SYS_PTRACE = 19
_SYS_NICE = 23


class Capability(msgspec.Struct, frozen=True):
    """Whether a capability exists, and a clause about what was found."""

    here: bool
    found: str


class MemoryCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that observing and acting on memory needs."""

    cgroup: int
    pods: Capability
    """Where the kubelet keeps the groups of pods."""
    limits: Capability
    """Whether limits can be set."""
    swap_limits: Capability
    reclaim: Capability
    throttle: Capability
    """memory.high."""
    node_pressure: Capability
    pod_pressure: Capability
    swap: Capability
    far_nodes: Capability
    """NUMA nodes without CPUs."""
    migration: Capability
    """move_pages, process by process."""
    demotion: Demotion

    @property
    def controls(self) -> MemoryControls:
        """The part of it that decisions need."""
        return MemoryControls(
            cgroup=self.cgroup,
            writable=self.limits.here,
            reclaim=self.reclaim.here and self.cgroup == 2,
            high=self.throttle.here,
            swap=self.swap_limits.here,
            migrate=self.migration.here,
            demotion=self.demotion,
        )


def memory_capabilities(
    tree: Tree, *, below: Path = Path(), proc: Path = PROC, sys: Path = SYS
) -> MemoryCapabilities:
    """The capabilities of this machine; Unavailable where not even its memory can be read."""
    node = read_node_memory(proc, sys)
    tiers = find_tiers(tree, below)
    group = tiers[0].root if tiers else None
    limits = _limits(tree, group)
    return MemoryCapabilities(
        cgroup=tree.version,
        pods=_pods(tree, tiers, below),
        limits=limits,
        swap_limits=_swap_limits(tree, group),
        reclaim=_reclaim(tree, limits),
        throttle=_throttle(tree, limits),
        node_pressure=_node_pressure(node),
        pod_pressure=_pod_pressure(tree, node, group),
        swap=_swap(node),
        far_nodes=_far_nodes(node),
        migration=_migration(node, group, proc),
        demotion=KernelDemotion(proc=proc, sys=sys).read(),
    )


def _pods(tree: Tree, tiers: tuple[PodTier, ...], below: Path) -> Capability:
    if "memory" not in tree.roots:
        return Capability(False, "the kernel does not count memory here: there is no memory controller")
    if not tiers:
        where = f"below {below} " if below.parts else ""
        return Capability(
            False, f"there is no group kubepods or kubepods.slice {where}in {tree.roots['memory']}"
        )
    roots = list(dict.fromkeys(f"{tier.root} ({tier.naming})" for tier in tiers))
    return Capability(True, f"cgroup v{tree.version}, pods in {' and '.join(roots)}")


def _limits(tree: Tree, group: Path | None) -> Capability:
    name = "memory.max" if tree.version == 2 else "memory.limit_in_bytes"
    if "memory" not in tree.roots:
        return Capability(False, "there is no memory controller")
    top = tree.roots["memory"]
    if os.statvfs(top).f_flag & os.ST_RDONLY:
        return Capability(False, f"{top} is mounted read-only; mount the host's /sys/fs/cgroup with rw")
    file = (group or top) / (name if group else "cgroup.procs")
    if group and not file.exists():
        return Capability(False, f"there is no {file}: the memory controller is not enabled for pods")
    if not os.access(file, os.W_OK):
        return Capability(False, f"{file} may not be written; run as root")
    return Capability(True, f"{name} of pods can be written")


def _swap_limits(tree: Tree, group: Path | None) -> Capability:
    name = "memory.swap.max" if tree.version == 2 else "memory.memsw.limit_in_bytes"
    if group is None:
        return Capability(False, "unknown until pods have control groups")
    if not (group / name).exists():
        return Capability(False, f"there is no {group / name}: the kernel runs without swap accounting")
    return Capability(True, f"by {name}")


def _reclaim(tree: Tree, limits: Capability) -> Capability:
    if not limits.here:
        return Capability(False, limits.found)
    if tree.version == 1:
        return Capability(True, "by lowering the limit in steps; cgroup v1 has no memory.reclaim")
    if not (tree.roots["memory"] / "memory.reclaim").exists():
        return Capability(False, f"Linux {os.uname().release} has no memory.reclaim; 5.19 and later have it")
    return Capability(True, "by memory.reclaim")


def _throttle(tree: Tree, limits: Capability) -> Capability:
    if tree.version == 1:
        return Capability(False, "cgroup v1 has no memory.high")
    return Capability(limits.here, "by memory.high" if limits.here else limits.found)


def _node_pressure(node: NodeMemory) -> Capability:
    if node.pressure is None:
        return Capability(
            False, "there is no /proc/pressure/memory; boot with psi=1 on a kernel with CONFIG_PSI"
        )
    return Capability(True, "in /proc/pressure/memory")


def _pod_pressure(tree: Tree, node: NodeMemory, group: Path | None) -> Capability:
    if tree.version == 1:
        return Capability(False, "cgroup v1 has no pressure of groups")
    if node.pressure is None:
        return Capability(False, "the kernel does not measure pressure")
    if group is not None and not (group / "memory.pressure").exists():
        return Capability(False, f"there is no memory.pressure in {group}; see cgroup.pressure there")
    return Capability(True, "in memory.pressure")


def _swap(node: NodeMemory) -> Capability:
    if not node.swap_total:
        return Capability(False, "there is no swap: only page cache can be reclaimed")
    return Capability(True, f"{node.swap_total >> 20} MiB, {node.swap_free >> 20} MiB of it free")


def _far_nodes(node: NodeMemory) -> Capability:
    if len(node.numa) < 2:
        return Capability(False, "the machine has one NUMA node")
    far = [each for each in node.numa if not each.has_cpus and each.total]
    if not far:
        return Capability(False, f"each of the {len(node.numa)} NUMA nodes has CPUs; none has only memory")
    return Capability(
        True, "; ".join(f"NUMA node {n.id}: {n.total >> 20} MiB, {n.free >> 20} MiB free" for n in far)
    )


def _migration(node: NodeMemory, group: Path | None, proc: Path) -> Capability:
    if len(node.numa) < 2:
        return Capability(False, "the machine has one NUMA node, so pages cannot be moved elsewhere")
    held = _effective_capabilities(proc)
    missing = [
        name
        for name, bit in (("CAP_SYS_NICE", _SYS_NICE), ("CAP_SYS_PTRACE", _SYS_PTRACE))
        if not held >> bit & 1
    ]
    if missing:
        return Capability(False, f"{' and '.join(missing)} is needed to move the pages of other processes")
    if group is not None and not _sees_processes(group):
        return Capability(
            False, "processes of pods are not visible here; run in the host's PID namespace (hostPID: true)"
        )
    # A test's machine made of files has no kernel to ask.
    if proc == PROC and (refused := page_calls.refusal()):
        return Capability(
            False, f"move_pages is refused ({refused}); in a container: seccompProfile: {{type: Unconfined}}"
        )
    return Capability(True, "by move_pages")


def _sees_processes(group: Path) -> bool:
    """Whether processes below a group have ids here; those of another PID namespace are listed as 0."""
    for file in group.rglob("cgroup.procs"):
        with suppress(OSError):
            if pids := file.read_bytes().split():
                return b"0" not in pids
    return True


def _effective_capabilities(proc: Path) -> int:
    status = (proc / "self" / "status").read_text()
    return next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
