"""Runs the containers of the embedded kubelet: as processes of this machine, or simulated.

Like a container runtime, it is independent of the kubelet: a restarted kubelet finds its containers running. There
are no images: a container's command runs from this machine's file system, with only the environment of the pod and
the plugins. A container without a command sleeps.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from colocate.clock import Clock
from colocate.errors import Unavailable, system_reason
from colocate.host import cgroups
from colocate.host.cgroups import Naming
from colocate.host.files import below
from colocate.lab.container_files import plan_files, why_no_mounts
from colocate.model.device import Allocation
from colocate.model.pod import Container, Pod, qos_class

NOTHING = Allocation()
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Joins the control groups before it becomes the container's command, so that the limits hold from its first
# instruction on.
_JOIN = 'for procs in $1; do echo $$ > "$procs" || exit 126; done; shift; exec "$@"'


class RunningContainer(Protocol):
    """A started container."""

    @property
    def pid(self) -> int | None:
        """The container's first process; None where it is simulated."""

    @property
    def left_out(self) -> Sequence[str]:
        """A sentence for each part of its Allocation that it did not get."""

    async def wait(self) -> int:
        """The exit code, once it has ended; 128 + n if signal n ended it."""

    async def stop(self, grace: float, clock: Clock) -> None:
        """Ask it to end; kill it after the grace period."""


class PodRuntime(Protocol):
    """Starts containers and keeps track of them."""

    async def create_pod(self, pod: Pod) -> None: ...

    async def remove_pod(self, pod: Pod) -> None: ...

    async def start(
        self, pod: Pod, container: Container, env: Mapping[str, str], given: Allocation = NOTHING
    ) -> RunningContainer: ...

    def running(self, pod: Pod, container: str) -> RunningContainer | None: ...

    async def close(self) -> None: ...


class SimulatedContainer:
    """A simulated container: it runs until `finish` is called."""

    pid = None
    left_out: tuple[str, ...] = ()

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = dict(env)
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    async def stop(self, grace: float, clock: Clock) -> None:
        self.finish(128 + signal.SIGTERM)

    def finish(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)

    @property
    def ended(self) -> bool:
        return self._code.done()


class SimulatedRuntime:
    """Simulated containers without processes: each runs until it is ended."""

    containers: dict[tuple[str, str], SimulatedContainer]
    """Containers by pod uid and name; `finish(code)` ends one."""

    def __init__(self) -> None:
        self.containers = {}

    async def create_pod(self, pod: Pod) -> None:
        """Prepare a pod; called by the kubelet."""
        return

    async def remove_pod(self, pod: Pod) -> None:
        """Forget a pod; called by the kubelet."""
        self.containers = {key: value for key, value in self.containers.items() if key[0] != pod.uid}

    async def start(
        self, pod: Pod, container: Container, env: Mapping[str, str], given: Allocation = NOTHING
    ) -> SimulatedContainer:
        """Start a container; called by the kubelet."""
        started = SimulatedContainer(env)
        self.containers[pod.uid, container.name] = started
        return started

    def running(self, pod: Pod, container: str) -> SimulatedContainer | None:
        """A running container; None where it does not run."""
        found = self.containers.get((pod.uid, container))
        return found if found and not found.ended else None

    async def close(self) -> None:
        """End every container and leave nothing behind."""
        self.containers.clear()


class ProcessContainer:
    """A container as a process of this machine, with its descendants."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        left_out: Sequence[str] = (),
        *,
        has_own_files: bool = False,
    ) -> None:
        self._process = process
        self.pid: int | None = process.pid
        self.left_out = tuple(left_out)
        self.has_own_files = has_own_files
        """Whether it has its own mount namespace, because it sees other files than this process."""

    async def wait(self) -> int:
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def stop(self, grace: float, clock: Clock) -> None:
        self._signal(signal.SIGTERM)
        ended = asyncio.ensure_future(self._process.wait())
        overdue = asyncio.ensure_future(clock.sleep(grace))
        await asyncio.wait([ended, overdue], return_when=asyncio.FIRST_COMPLETED)
        overdue.cancel()
        self._signal(signal.SIGKILL)
        await ended

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group that the container's first process leads."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class ProcessRuntime:
    """Containers as processes, each pod in its own control group where this machine allows it."""

    without_cgroups: str
    """Why pods have no control groups; empty where they have."""

    def __init__(
        self,
        folder: Path,
        *,
        parent: str = "",
        naming: Naming = Naming.CGROUPFS,
        mount: Path = cgroups.MOUNT,
    ) -> None:
        """`folder` gets the output of containers; `parent` is the control group of all pods."""
        self._folder = folder
        self._parent = Path(parent or f"colocate-pods-{os.getpid()}")
        self._naming = naming
        self._containers: dict[tuple[str, str], ProcessContainer] = {}
        self._env: dict[tuple[str, str], dict[str, str]] = {}
        self._may_not_mount: str | None = None
        """Why containers cannot have mounts; None until that was tried."""
        self.without_cgroups = ""
        try:
            self._tree: cgroups.Tree | None = cgroups.find_tree(mount)
            # Only a test for permission: a run without pods must leave nothing behind.
            cgroups.create(self._tree, self._parent)
            cgroups.remove(self._tree, self._parent)
        except (OSError, Unavailable) as error:
            self._tree = None
            why = system_reason(error) if isinstance(error, OSError) else str(error)
            self.without_cgroups = f"this process may not create control groups here ({why})"

    @property
    def cgroup_root(self) -> Path:
        """The parent group of all pods."""
        return self._parent

    def cgroup(self, pod: Pod) -> Path:
        """The pod's group, relative to the root of the hierarchy."""
        return self._parent / cgroups.pod_path(pod.uid, qos_class(pod), self._naming)

    def cgroup_folders(self, pod: Pod) -> list[Path]:
        """The pod's group in every hierarchy; empty where there are no control groups."""
        return self._tree.folders(self.cgroup(pod)) if self._tree else []

    def log_file(self, pod: Pod, container: str) -> Path:
        """The file with a container's output since its latest start."""
        return below(self._folder, pod.uid, f"{container}.log")

    def previous_log(self, pod: Pod, container: str) -> Path:
        """The file with its output of the start before that."""
        return below(self._folder, pod.uid, f"{container}.previous.log")

    async def create_pod(self, pod: Pod) -> None:
        """Make the control group of a pod; called by the kubelet."""
        if self._tree:
            cgroups.create(self._tree, self.cgroup(pod))

    def _container_folders(self, pod: Pod, container: Container) -> list[Path]:
        """Make a container's group below the pod's."""
        if not self._tree:
            return []
        group = below(self.cgroup(pod), container.name)
        cgroups.create(self._tree, group)
        return self._tree.folders(group)

    async def remove_pod(self, pod: Pod) -> None:
        """End all processes of a pod, and remove its control group and its output; called by the kubelet."""
        for uid, name in list(self._containers):
            if uid == pod.uid:
                del self._containers[uid, name]
                self._env.pop((uid, name), None)
        if self._tree:
            await cgroups.kill(self._tree, self.cgroup(pod))
            cgroups.remove(self._tree, self.cgroup(pod))
        await asyncio.to_thread(shutil.rmtree, below(self._folder, pod.uid), ignore_errors=True)

    async def start(
        self, pod: Pod, container: Container, env: Mapping[str, str], given: Allocation = NOTHING
    ) -> ProcessContainer:
        """Start a container. `env` already includes the variables of `given`; its device nodes and mounts are made
        where possible."""
        command = [*container.command, *container.args] or ["sleep", "infinity"]
        log = self.log_file(pod, container.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(self.previous_log(pod, container.name))
        self._env[pod.uid, container.name] = dict(env)
        files = plan_files(given)
        if files.binds and self._may_not_mount is None:
            self._may_not_mount = await why_no_mounts()
        if files.binds and self._may_not_mount:
            files = plan_files(given, self._may_not_mount)
        command = [
            *files.command(below(log.parent, f"{container.name}.files")),
            *_beyond_a_shell(env),
            *command,
        ]
        with log.open("ab") as output:
            process = await self._spawn(
                pod, container, command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
            )
        started = ProcessContainer(process, files.left_out, has_own_files=bool(files.binds))
        self._containers[pod.uid, container.name] = started
        return started

    async def beside(
        self, pod: Pod, container: Container, command: Sequence[str], **streams: Any
    ) -> asyncio.subprocess.Process:
        """Run a process in a container's group, with its environment and files; `streams` are passed to asyncio."""
        env = self._env.get((pod.uid, container.name), {})
        found = self._containers.get((pod.uid, container.name))
        inside = (
            ["nsenter", "--mount", "--target", str(found.pid), "--"] if found and found.has_own_files else []
        )
        return await self._spawn(pod, container, [*inside, *_beyond_a_shell(env), *command], **streams)

    async def _spawn(
        self, pod: Pod, container: Container, command: Sequence[str], **streams: Any
    ) -> asyncio.subprocess.Process:
        procs = " ".join(str(folder / "cgroup.procs") for folder in self._container_folders(pod, container))
        env = self._env.get((pod.uid, container.name), {})
        return await asyncio.create_subprocess_exec(
            *dies_with_us(),
            *["/bin/sh", "-c", _JOIN, "sh", procs, *command],
            env={"PATH": _PATH, "HOSTNAME": pod.metadata.name, **env},
            start_new_session=True,
            **streams,
        )

    def running(self, pod: Pod, container: str) -> ProcessContainer | None:
        """A running container; None where it does not run."""
        found = self._containers.get((pod.uid, container))
        return found if found and not found.ended else None

    async def close(self) -> None:
        """End every container and leave nothing behind."""
        for container in self._containers.values():
            if not container.ended:
                container._signal(signal.SIGKILL)
                await container.wait()
        self._containers.clear()
        if self._tree:
            await cgroups.kill(self._tree, self._parent)
            cgroups.remove(self._tree, self._parent)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


def _beyond_a_shell(env: Mapping[str, str]) -> list[str]:
    """A prefix that sets the variables that the shell in between would not pass on."""
    odd = [f"{name}={value}" for name, value in env.items() if not name.isidentifier()]
    return ["env", *odd] if odd else []


def dies_with_us(by: str = "KILL") -> list[str]:
    """A prefix that ends a process by a signal when this process ends, even if it is killed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", by, "--"] if setpriv else []
