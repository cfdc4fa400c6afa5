"""Where the control groups of pods are, found by looking at the tree; nothing has to be configured.

The kubelet keeps all pods below one group, `kubepods` or `kubepods.slice`, at the top of the tree or, told so
by its cgroupRoot, further down (kind: kubelet.slice/kubelet-kubepods.slice; the embedded cluster: a group of
its own). Guaranteed pods are right in it, the others in a group for their QoS class.
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
"""How far down the tree pods are looked for."""

_ROOT = re.compile(r"(?:kubepods|(?:.+-)?kubepods(?P<slice>\.slice))")

_POD = re.compile(r"(?:.+-)?pod(?P<uid>[A-Za-z0-9_-]+)(?P<slice>\.slice)?")

_MOST_TEXT = 1 << 16

_CONTAINER = re.compile(r"^(?:[a-z-]+-)?([0-9a-f]+)\.scope$")


class PodGroup(msgspec.Struct, frozen=True):
    """One pod's control group in the hierarchy that accounts for memory."""

    uid: PodUid
    qos: QosClass
    group: MemoryGroup


class PodTier(msgspec.Struct, frozen=True):
    """The group in which the kubelet makes those of the pods of one QoS class."""

    qos: QosClass
    root: Path
    """The group of all pods."""
    folder: Path
    before: str
    after: str
    """What surrounds the pod's uid in the name of its group."""

    @property
    def naming(self) -> Naming:
        return Naming.SYSTEMD if self.after else Naming.CGROUPFS

    def uid(self, name: str) -> PodUid | None:
        """The pod whose group has this name; None where it is another kind of group."""
        if not (name.startswith(self.before) and name.endswith(self.after)):
            return None
        uid = name[len(self.before) : len(name) - len(self.after)]
        uid = uid.replace("_", "-") if self.after else uid
        return uid if is_path_word(uid) else None

    def path(self, uid: PodUid) -> Path:
        """`LeadsElsewhere` where it would not lie below the group of all pods."""
        path = pod_folder(self.folder, self.before, uid, self.after)
        if not path.is_relative_to(self.root) or path == self.root:
            raise LeadsElsewhere(f"{path} does not lie below {self.root}")
        return path


def find_tiers(tree: Tree, below: Path = Path()) -> tuple[PodTier, ...]:
    """The groups below `below` in which pods may be; none while there is no kubelet, or no memory controller.

    All that there are, should the machine have several kubelets, or remains of one with the other naming.
    """
    top = tree.roots.get("memory")
    if top is None:
        return ()
    return tuple(tier for root in _roots(top / below, _DEPTH) for tier in _tiers(root))


def find_pod(tree: Tree, tiers: tuple[PodTier, ...], uid: PodUid) -> PodGroup | None:
    """A pod's group, however new; the one that has processes, should there be several."""
    found = [
        PodGroup(uid, tier.qos, MemoryGroup(folder, tree.version))
        for tier in tiers
        if (folder := tier.path(uid)).is_dir()
    ]
    return next(
        (pod for pod in found if len(found) > 1 and members(pod.group.folder)), found[0] if found else None
    )


def container_groups(pod: MemoryGroup) -> dict[str, MemoryGroup]:
    """The groups of a pod's containers by the container's id, as its status in the API has it; its sandbox is one.

    Runtimes under systemd say `cri-containerd-ID.scope`, `crio-ID.scope` or `docker-ID.scope`, others the id alone.
    """
    return {
        _CONTAINER.sub(r"\1", name): MemoryGroup(pod.folder / name, pod.version)
        for name in subfolders(pod.folder)
    }


def subfolders(folder: Path) -> list[str]:
    """The names of the groups right below; none where the group is gone."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _roots(folder: Path, depth: int) -> Iterator[Path]:
    """The groups of all pods, nearest first within each branch; never one inside another.

    What is not root's, or this process's own, is passed by: users may be given a group to make others in, by systemd
    or by a rootless runtime, and one of them could make a group of pods with the uid of somebody else's.
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
        # It is gone, or on its way.
        return None


def _tiers(root: Path) -> Iterator[PodTier]:
    for qos, name in QOS_FOLDERS.items():
        if root.name.endswith(".slice"):
            stem = "-".join([root.name.removesuffix(".slice"), *([name] if name else [])])
            yield PodTier(qos, root, root / f"{stem}.slice" if name else root, f"{stem}-pod", ".slice")
        else:
            yield PodTier(qos, root, root / name, "pod", "")


def pod_of_process(pid: int, proc: Path = PROC) -> PodUid | None:
    """The pod in whose control group a process is; None where it is in none, or has gone.

    By the part of its path right below those of all pods: what a pod makes inside its own group says nothing.
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
