"""A process in a container as a manifest describes it: a read-only root, its volumes and capabilities, and no others.

Made with unshare, mount, chroot and setpriv, as a runtime would; the image is this checkout with its Python. What the
manifest does not mount is not there. Seccomp is left to tests in a VM, where there is a real runtime.
"""

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

CHECKOUT = Path(__file__).parents[2]
_TOOLS = ("unshare", "mount", "chroot", "setpriv")
_DEVICES = ("null", "zero", "random", "urandom")


class Volume(msgspec.Struct, frozen=True):
    """What is mounted where; `source` stands for the node's path in the manifest."""

    source: Path
    target: Path
    read_only: bool = False


class Container(msgspec.Struct, frozen=True):
    """One container of a pod, as far as it is about what a process may touch."""

    volumes: tuple[Volume, ...]
    capabilities: tuple[str, ...]
    """That it has, in the manifest's words; none where all are dropped."""
    host_pid: bool
    seccomp: bool
    """Whether the runtime's own profile holds; only a real runtime has one."""

    def script(self, root: Path, command: Sequence[str]) -> str:
        """For a shell in mount and process namespaces of its own."""
        lines = ["set -e", f"mount -t tmpfs -o mode=755 none {root}"]
        lines += [_image(root, path) for path in image_paths()]
        lines.append(f"mkdir -p {root}/etc {root}/tmp; cp /etc/passwd /etc/ld.so.cache {root}/etc/")
        lines += [
            _bind(root, Volume(Path("/sys"), Path("/sys"), read_only=True)),
            f"mkdir {root}/proc {root}/dev",
        ]
        lines.append(
            f"mount --rbind /proc {root}/proc" if self.host_pid else f"mount -t proc proc {root}/proc"
        )
        for name in _DEVICES:
            lines.append(f"touch {root}/dev/{name}; mount --bind /dev/{name} {root}/dev/{name}")
        lines += [_bind(root, volume) for volume in self.volumes]
        lines.append(f"mount -o remount,ro {root}")
        bounds = ",".join(("-all", *(f"+{name.lower()}" for name in self.capabilities)))
        limits = f"setpriv --bounding-set={bounds} --inh-caps=-all --no-new-privs"
        lines.append(f"cd /; exec chroot {root} {limits} {shlex.join(command)}")
        return "\n".join(lines)

    async def start(
        self, root: Path, command: Sequence[str], environ: Mapping[str, str], log: Path
    ) -> asyncio.subprocess.Process:
        """Start a command; its process ends with `unshare`, which is returned."""
        root.mkdir()
        alone = [] if self.host_pid else ["--pid", "--fork", "--kill-child"]
        shell = [
            "unshare",
            "--mount",
            "--propagation=private",
            *alone,
            "sh",
            "-c",
            self.script(root, command),
        ]
        with log.open("ab") as into:
            return await asyncio.create_subprocess_exec(
                *shell,
                stdin=subprocess.DEVNULL,
                stdout=into,
                stderr=into,
                env={"PATH": os.environ["PATH"], **environ},
            )


def container(
    pod: Mapping[str, Any], nodes_paths: Mapping[str, Path], others: Mapping[str, Path] | None = None
) -> Container:
    """The first container of a pod's spec. What it mounts of the node and of config maps is a test's."""
    first = pod["containers"][0]
    context = first["securityContext"]
    assert not context.get("privileged"), "a privileged container is not confined at all"
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"]["drop"] == ["ALL"]
    assert context.get("runAsUser", 0) == 0, "another user is not made here"
    sources = {each["name"]: _source(each, nodes_paths, others or {}) for each in pod["volumes"]}
    return Container(
        tuple(
            Volume(sources[each["name"]], Path(each["mountPath"]), bool(each.get("readOnly")))
            for each in first["volumeMounts"]
        ),
        tuple(context["capabilities"].get("add", ())),
        bool(pod.get("hostPID")),
        context["seccompProfile"]["type"] == "RuntimeDefault",
    )


def patched(pod: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's spec after `kubectl patch`: maps are merged, containers by their names, other lists replaced."""
    merged = dict(pod)
    for name, value in patch.items():
        if name == "containers":
            changes = {each["name"]: each for each in value}
            merged[name] = [patched(each, changes.get(each["name"], {})) for each in pod[name]]
        elif isinstance(value, Mapping):
            merged[name] = patched(pod.get(name, {}), value)
        else:
            merged[name] = value
    return merged


def image_paths() -> list[Path]:
    """What an image with Colocate in it would have."""
    system = [Path("/", name) for name in ("usr", "bin", "sbin", "lib", "lib64")]
    python = {Path(sys.base_prefix), Path(sys.prefix), CHECKOUT}
    return [path for path in (*system, *sorted(python)) if path.exists()]


def why_not() -> str:
    """Why no container can be made here; empty where one can."""
    if absent := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"needs {', '.join(absent)}"
    tried = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"needs namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def _source(volume: Mapping[str, Any], nodes_paths: Mapping[str, Path], others: Mapping[str, Path]) -> Path:
    if "hostPath" in volume:
        return nodes_paths[volume["hostPath"]["path"]]
    return others[volume["name"]]


def _image(root: Path, path: Path) -> str:
    if path.is_symlink():
        return f"cp -P {path} {root}/"
    return _bind(root, Volume(path, path, read_only=True))


def _bind(root: Path, volume: Volume) -> str:
    source, target = shlex.quote(str(volume.source)), shlex.quote(f"{root}{volume.target}")
    lines = [f"mkdir -p {target}", f"mount --rbind {source} {target}"]
    if volume.read_only:
        lines.append(f"mount -o remount,bind,ro {target}")
    return "; ".join(lines)
