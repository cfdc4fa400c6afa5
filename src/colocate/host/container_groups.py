"""Reads the control groups of containers: the CPUs and memory nodes that each really has, on cgroup v1 and v2.

A container is found by its pod's uid and its own id below the kubelet's groups, in either naming; or else directly in
the group that the kubelet named as its parent. Nothing is written here: the runtime writes cpusets.
"""

import re
from contextlib import suppress
from pathlib import Path

import msgspec

from colocate.host.cgroups import MOUNT, Tree
from colocate.host.files import LeadsElsewhere, below
from colocate.host.pod_groups import PodTier, find_tiers, subfolders
from colocate.model.container import RuntimeResources
from colocate.model.cpuset import CpuSet
from colocate.model.memory import PodUid
from colocate.model.path_word import is_path_word

_SCOPE = re.compile(r"(?:[a-z-]+-)?(?P<id>[0-9a-zA-Z]+)\.scope")
_LONGEST = 1 << 17
_V1_PERIOD = "cpu.cfs_period_us"


class GroupCpus(msgspec.Struct, frozen=True, kw_only=True):
    """The cpuset of one container."""

    cpus: CpuSet
    """The CPUs that were set; those of its parent where none were."""
    effective: CpuSet
    """The CPUs that it can use: without offline CPUs and those that its parents do not have."""
    mems: tuple[int, ...]


class ContainerGroups:
    """The groups of all containers of this machine."""

    def __init__(self, mount: Path = MOUNT) -> None:
        self._version = 2 if (mount / "cgroup.controllers").exists() else 1
        self._root = mount if self._version == 2 else mount / "cpuset"
        self._cpu_root = mount if self._version == 2 else mount / "cpu"
        self._tiers: tuple[PodTier, ...] = ()

    def cpus(self, uid: PodUid, container_id: str, parent: str = "") -> GroupCpus | None:
        """The cpuset of a container; None where it has no group, or the group has no CPUs."""
        folder = self.folder(uid, container_id, parent)
        if folder is None:
            return None
        effective = _set(folder, "cpuset.cpus.effective" if self._version == 2 else "cpuset.effective_cpus")
        mems = _set(folder, "cpuset.mems.effective" if self._version == 2 else "cpuset.effective_mems")
        own = _set(folder, "cpuset.cpus")
        if not effective:
            return None
        return GroupCpus(cpus=own or effective, effective=effective, mems=tuple(mems or ()))

    def resources(self, uid: PodUid, container_id: str, parent: str = "") -> RuntimeResources | None:
        """The CPU shares and quota that the runtime set; None where unknown."""
        folder = self.folder(uid, container_id, parent)
        if folder is None:
            return None
        folder = self._cpu_root / folder.relative_to(self._root)
        if self._version == 1:
            shares, quota, period = (
                _number(folder, name) for name in ("cpu.shares", "cpu.cfs_quota_us", _V1_PERIOD)
            )
            return None if shares is None else _resources(shares, quota, period)
        weight = _number(folder, "cpu.weight")
        quota_text, _, period_text = (_text(folder, "cpu.max") or "max 100000").partition(" ")
        if weight is None:
            return None
        # The reverse of how runtimes turn shares into weights; rounding loses small fractions.
        shares = 2 + -(-(weight - 1) * 262142 // 9999)
        return _resources(shares, _integer(quota_text), _integer(period_text))

    def folder(self, uid: PodUid, container_id: str, parent: str = "") -> Path | None:
        """The folder of a container's cpuset; None where there is none."""
        if not is_path_word(container_id):
            return None
        found = self._below_pod(uid, container_id)
        if found is None:
            self._tiers = find_tiers(Tree(self._version, {"memory": self._root}))
            found = self._below_pod(uid, container_id)
        return found or self._below_parent(parent, container_id)

    def _below_pod(self, uid: PodUid, container_id: str) -> Path | None:
        for tier in self._tiers:
            with suppress(LeadsElsewhere):
                pod = tier.path(uid)
                if found := _named(pod, container_id):
                    return found
        return None

    def _below_parent(self, parent: str, container_id: str) -> Path | None:
        names = [name for name in parent.split("/") if name]
        if not names:
            return None
        with suppress(LeadsElsewhere):
            return _named(below(self._root, *names), container_id)
        return None


def _named(pod: Path, container_id: str) -> Path | None:
    """A container's group: runtimes name it by its id, or under systemd as `cri-containerd-ID.scope`."""
    plain = pod / container_id
    if plain.is_dir():
        return plain
    for name in subfolders(pod):
        match = _SCOPE.fullmatch(name)
        if match and match["id"] == container_id:
            return pod / name
    return None


def _resources(shares: int, quota: int | None, period: int | None) -> RuntimeResources:
    return RuntimeResources(
        cpu_shares=shares, cpu_quota=max(0, quota or 0), cpu_period=period if quota and period else 0
    )


def _text(folder: Path, name: str) -> str | None:
    try:
        with (folder / name).open(encoding="ascii", errors="replace") as file:
            return file.read(_LONGEST).strip()
    except OSError:
        # The group, and with it the file, may vanish at any moment.
        return None


def _set(folder: Path, name: str) -> CpuSet | None:
    text = _text(folder, name)
    try:
        return None if text is None else CpuSet.parse(text)
    except ValueError:
        return None


def _number(folder: Path, name: str) -> int | None:
    return _integer(_text(folder, name) or "")


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None
