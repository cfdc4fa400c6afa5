"""Finds the control groups of pods in the tree, without configuration.

The kubelet keeps all pods below one group, `kubepods` or `kubepods.slice`: at the top of the tree, or further down
where its cgroupRoot says so (kind: kubelet.slice/kubelet-kubepods.slice; the embedded cluster: a group of its own).
Guaranteed pods are directly in it, the others in a group for their QoS class.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from colocate.host.cgroups import QOS_FOLDERS, Naming, Tree, members, pod_folder
from colocate.host.files import LeadsElsewhere
from colocate.host.memory_group import MemoryGroup
from colocate.model.memory import PodUid
from colocate.model.path_word import is_path_word
from colocate.model.pod import QosClass

PROC = Path("/proc")

_DEPTH = 5
"""How many levels of the tree are searched for pods."""

_ROOT = re.compile(r"(?:kubepods|(?:.+-)?kubepods(?P<slice>\.slice))")

_POD = re.compile(r"(?:.+-)?pod(?P<uid>[A-Za-z0-9_-]+)(?P<slice>\.slice)?")

_MOST_TEXT = 1 << 16

_CONTAINER = re.compile(r"^(?:[a-z-]+-)?([0-9a-f]+)\.scope$")


class PodGroup(msgspec.Struct, frozen=True):
    """A pod's control group in the memory hierarchy."""

    uid: PodUid
    qos: QosClass
    group: MemoryGroup


class PodTier(msgspec.Struct, frozen=True):
    """The group that contains the pods of one QoS class."""

    qos: QosClass
    root: Path
    """The group of all pods."""
    folder: Path
    before: str
    """What precedes the pod's uid in the name of its group."""
    after: str
    """What follows the pod's uid in the name of its group."""

    @property
    def naming(self) -> Naming:
        return Naming.SYSTEMD if self.after else Naming.CGROUPFS

    def uid(self, name: str) -> PodUid | None:
        """The uid of the pod whose group has this name; None where it is not a pod's group."""
        if not (name.startswith(self.before) and name.endswith(self.after)):
            return None
        uid = name[len(self.before) : len(name) - len(self.after)]
        uid = uid.replace("_", "-") if self.after else uid
        return uid if is_path_word(uid) else None

    def path(self, uid: PodUid) -> Path:
        """The path of a pod's group; `LeadsElsewhere` where it would not be below the group of all pods."""
        path = pod_folder(self.folder, self.before, uid, self.after)
        if not path.is_relative_to(self.root) or path == self.root:
            raise LeadsElsewhere(f"{path} does not lie below {self.root}")
        return path


def find_tiers(tree: Tree, below: Path = Path()) -> tuple[PodTier, ...]:
    """The groups below `below` that may contain pods; none without a kubelet or a memory controller.

    There may be several: of several kubelets, or left by a kubelet with the other naming.
    """
    top = tree.roots.get("memory")
    if top is None:
        return ()
    return tuple(tier for root in _roots(top / below, _DEPTH) for tier in _tiers(root))


def find_pod(tree: Tree, tiers: tuple[PodTier, ...], uid: PodUid) -> PodGroup | None:
    """A pod's group, even one that was just created; of several, the one with processes."""
    found = [
        PodGroup(uid, tier.qos, MemoryGroup(folder, tree.version))
        for tier in tiers
        if (folder := tier.path(uid)).is_dir()
    ]
    return next(
        (pod for pod in found if len(found) > 1 and members(pod.group.folder)), found[0] if found else None
    )


def container_groups(pod: MemoryGroup) -> dict[str, MemoryGroup]:
    """The groups of a pod's containers, including its sandbox, by the container's id in the API.

    Runtimes under systemd name them `cri-containerd-ID.scope`, `crio-ID.scope` or `docker-ID.scope`, others by the
    id.
    """
    return {
        _CONTAINER.sub(r"\1", name): MemoryGroup(pod.folder / name, pod.version)
        for name in subfolders(pod.folder)
    }


def subfolders(folder: Path) -> list[str]:
    """The names of the groups directly below; none where the group is gone."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _roots(folder: Path, depth: int) -> Iterator[Path]:
    """The groups of all pods, nearest first within each branch; never one inside another.

    Groups that belong to neither root nor this process's user are skipped: systemd or a rootless runtime may delegate
    a group to a user, who could create a group there with the uid of another user's pod.
    """
    names = [name for name in sorted(subfolders(folder)) if _owner(folder / name) in (0, os.geteuid())]
    yield from (folder / name for name in names if _ROOT.fullmatch(name))
    if depth > 1:
        for name in names:
            if not _ROOT.fullmatch(name):
                yield from _roots(folder / name, depth - 1)


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat(follow_symlinks=False).st_uid
    except OSError:
        # The group is gone.
        return None


def _tiers(root: Path) -> Iterator[PodTier]:
    for qos, name in QOS_FOLDERS.items():
        if root.name.endswith(".slice"):
            stem = "-".join([root.name.removesuffix(".slice"), *([name] if name else [])])
            yield PodTier(qos, root, root / f"{stem}.slice" if name else root, f"{stem}-pod", ".slice")
        else:
            yield PodTier(qos, root, root / name, "pod", "")


def pod_of_process(pid: int, proc: Path = PROC) -> PodUid | None:
    """The pod of a process, by its control group; None where it has none or is gone.

    Only the folder directly below the group of all pods counts, not what a pod creates inside its own group.
    """
    try:
        with (proc / str(pid) / "cgroup").open() as file:
            lines = file.read(_MOST_TEXT).splitlines()
    except OSError:
        return None
    for line in lines:
        parts = line.partition(":")[2].partition(":")[2].split("/")
        below = False
        for part in parts:
            if below and (found := _POD.fullmatch(part)):
                uid = found["uid"].replace("_", "-") if found["slice"] else found["uid"]
                return uid if is_path_word(uid) else None
            below = below or _ROOT.fullmatch(part) is not None
    return None
