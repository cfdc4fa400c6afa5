"""Device nodes and mounts of an Allocation, for containers that are processes of this machine.

A container that needs other files than the machine has at a path gets its own mount namespace with bind mounts; the
machine's files stay unchanged. A mount that is not possible is reported, and the container starts without it; a
real runtime would refuse to start it.
"""

import asyncio
import os
import shutil
from pathlib import Path, PurePosixPath

import msgspec

from colocate.model.device import Allocation

_DEV = PurePosixPath("/dev")

# Arguments: a folder for its own /dev, or ""; triples of host path, target and rw or ro; --; the command.
_BIND = r"""
fail() { echo "colocate lab: $1" >&2; exit 126; }
if [ -n "$1" ]; then
  mount -t tmpfs -o mode=755 colocate-dev "$1" || fail "no /dev of its own"
  for entry in /dev/* /dev/.[!.]*; do
    own=$1/${entry#/dev/}
    if [ -L "$entry" ]; then cp -P "$entry" "$own"
    elif [ -d "$entry" ]; then mkdir "$own" && mount --rbind "$entry" "$own"
    elif [ -e "$entry" ]; then : > "$own" && mount --bind "$entry" "$own"
    fi || fail "no $entry in a /dev of its own"
  done
  mount --move "$1" /dev || fail "no /dev of its own"
fi
shift
while [ "$1" != -- ]; do
  if [ ! -e "$2" ]; then
    mkdir -p "${2%/*}"
    if [ -d "$1" ]; then mkdir "$2"; else : > "$2"; fi
  fi
  mount --rbind "$1" "$2" || fail "no $2"
  if [ "$3" = ro ]; then mount -o remount,bind,ro "$2" || fail "no $2 that cannot be written"; fi
  shift 3
done
shift
exec "$@"
"""


class Bind(msgspec.Struct, frozen=True):
    """A path of the machine that a container sees at another path, or read-only."""

    host: str
    target: str
    read_only: bool = False


class FilesPlan(msgspec.Struct, frozen=True):
    """The bind mounts of a container, and those that are not possible."""

    binds: tuple[Bind, ...] = ()
    own_dev: bool = False
    """Whether a new name is needed in /dev."""
    left_out: tuple[str, ...] = ()

    def command(self, folder: Path) -> list[str]:
        """A command prefix that makes the bind mounts; `folder` is the container's own. Empty where there are
        none."""
        if not self.binds:
            return []
        staging = ""
        if self.own_dev:
            (folder / "dev").mkdir(parents=True, exist_ok=True)
            staging = str(folder / "dev")
        triples = [
            word for one in self.binds for word in (one.host, one.target, "ro" if one.read_only else "rw")
        ]
        own = ["unshare", "--mount", "--propagation", "private", "--"]
        return [*own, "/bin/sh", "-c", _BIND, "sh", staging, *triples, "--"]


def plan_files(given: Allocation, may_not: str = "") -> FilesPlan:
    """Plan the bind mounts on this machine; `may_not` is the reason if none is possible."""
    binds: list[Bind] = []
    left_out: list[str] = []
    wanted = [Bind(one.host_path, one.container_path or one.host_path) for one in given.devices]
    wanted += [Bind(one.host_path, one.container_path, one.read_only) for one in given.mounts]
    for each in wanted:
        if each.host == each.target and not each.read_only and Path(each.host).exists():
            continue  # Pods see the machine's files anyway.
        why = _why_not(each) or (
            f"this process may not make mounts ({may_not}); run the lab as root" if may_not else ""
        )
        if why:
            left_out.append(f"the container has no {each.target} of its own: {why}")
        else:
            binds.append(each)
    if given.cdi:
        left_out.append(
            f"CDI devices are ignored ({', '.join(given.cdi)[:200]}): a real runtime would add them"
        )
    own_dev = any(not Path(one.target).exists() for one in binds)
    return FilesPlan(tuple(binds), own_dev, tuple(left_out))


def _why_not(wanted: Bind) -> str:
    """Why a path cannot be bound; empty where it can."""
    for path in (wanted.host, wanted.target):
        if not path.startswith("/") or "\0" in path or ".." in PurePosixPath(path).parts or path == "/":
            return f"{path[:100]!r} is not an absolute path below /; write one"
    if not Path(wanted.host).exists():
        return f"this machine has no {wanted.host}; a real runtime would refuse to start the container"
    if not Path(wanted.target).exists() and _DEV not in PurePosixPath(wanted.target).parents:
        return (
            "this machine has no such path to mount it on, and pods have no image here; use an existing path, or "
            "one below /dev"
        )
    return ""


async def why_no_mounts() -> str:
    """Why this process may not make mount namespaces; empty where it may."""
    if os.geteuid() != 0:
        return "it is not root"
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return "unshare and mount are not installed"
    trial = await asyncio.create_subprocess_exec(
        *["unshare", "--mount", "--propagation", "private", "true"],
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await trial.communicate()
    return "" if trial.returncode == 0 else said.decode(errors="replace").strip()[-200:] or "unshare failed"
