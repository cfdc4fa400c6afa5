"""Control groups of pods: their paths and names on cgroup v1 and v2.

The version is detected: v2 is one tree with cgroup.controllers at its top; v1 has a folder per controller. The
kubelet names the group of a pod in one of two schemes, `cgroupfs` or `systemd`.
"""

import asyncio
import contextlib
import errno
import os
import signal
from enum import StrEnum
from pathlib import Path

import msgspec

from colocate.errors import Unavailable
from colocate.host.files import LeadsElsewhere, below
from colocate.model.path_word import is_path_word
from colocate.model.pod import QosClass

MOUNT = Path("/sys/fs/cgroup")

# Controllers of a pod's group. On v1 each has a tree of its own; cpuset needs initial values and is left to the
# component that places CPUs.
_V1_CONTROLLERS = ("memory", "cpu", "cpuacct", "pids")
_V2_CONTROLLERS = ("memory", "cpu", "pids", "cpuset", "io")


class Naming(StrEnum):
    """How the kubelet names the groups of pods."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


QOS_FOLDERS = {QosClass.GUARANTEED: "", QosClass.BURSTABLE: "burstable", QosClass.BEST_EFFORT: "besteffort"}
"""The folder of each QoS class below the group of all pods."""


def pod_path(uid: str, qos: QosClass, naming: Naming) -> Path:
    """The path of a pod's group below the top of the tree."""
    tier = QOS_FOLDERS[qos]
    if naming is Naming.CGROUPFS:
        return pod_folder(Path("kubepods", tier), "pod", uid, "")
    slices = ["kubepods", *([f"kubepods-{tier}"] if tier else [])]
    return pod_folder(Path(*(f"{name}.slice" for name in slices)), f"{slices[-1]}-pod", uid, ".slice")


def pod_folder(tier: Path, before: str, uid: str, after: str) -> Path:
    """A pod's group in that of its QoS class: the one place where a uid becomes a path of a control group.

    `before` and `after` surround the uid in the group's name. `LeadsElsewhere` where no pod can have such a uid.
    """
    if not is_path_word(uid):
        raise LeadsElsewhere(f"{uid[:100]!r} is not a uid of a pod: it would lead out of {tier}")
    # Dashes nest slices, so the kubelet writes the uid's own ones as underscores.
    return below(tier, f"{before}{uid.replace('-', '_') if after else uid}{after}")


class Tree(msgspec.Struct, frozen=True):
    """The cgroup hierarchies of a machine."""

    version: int
    roots: dict[str, Path]
    """By controller; on v2 one root under the name of every controller."""

    def folders(self, group: Path) -> list[Path]:
        """The folders of a group, one per hierarchy."""
        return list(dict.fromkeys(root / group for root in self.roots.values()))


def find_tree(mount: Path = MOUNT) -> Tree:
    """The tree under `mount`; Unavailable where there is none."""
    if (mount / "cgroup.controllers").exists():
        controllers = (mount / "cgroup.controllers").read_text().split()
        return Tree(2, {name: mount for name in _V2_CONTROLLERS if name in controllers} or {"": mount})
    roots = {name: mount / name for name in _V1_CONTROLLERS if (mount / name / "cgroup.procs").exists()}
    if not roots:
        raise Unavailable(f"there are no control groups under {mount}")
    return Tree(1, roots)


def create(tree: Tree, group: Path) -> None:
    """Create a group and its parents; on v2, enable every controller in them."""
    if tree.version == 2:
        root = next(iter(tree.roots.values()))
        folder = root
        for part in group.parts:
            _hand_down(folder, [name for name in tree.roots if name])
            folder /= part
            folder.mkdir(exist_ok=True)
        return
    for folder in tree.folders(group):
        folder.mkdir(parents=True, exist_ok=True)


def remove(tree: Tree, group: Path) -> None:
    """Remove a group whose processes have ended, with the groups below it."""
    for top in tree.folders(group):
        for folder in [*sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True), top]:
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()


async def kill(tree: Tree, group: Path) -> None:
    """Kill every process of a group, including those started meanwhile, and wait until they are gone."""
    for folder in tree.folders(group):
        if (folder / "cgroup.kill").exists():
            (folder / "cgroup.kill").write_text("1")
        while pids := members(folder):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.01)


def members(folder: Path) -> list[int]:
    """The processes in a group's folder and below."""
    pids: list[int] = []
    for procs in [folder / "cgroup.procs", *folder.rglob("cgroup.procs")]:
        try:
            pids += [int(pid) for pid in procs.read_text().split()]
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                raise
    return sorted(set(pids))


def _hand_down(folder: Path, controllers: list[str]) -> None:
    control = folder / "cgroup.subtree_control"
    missing = set(controllers) - set(control.read_text().split())
    for name in sorted(missing):
        # One at a time, so that a missing controller does not affect the others.
        with contextlib.suppress(OSError):
            control.write_text(f"+{name}")
