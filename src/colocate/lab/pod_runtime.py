"""What runs the containers of the embedded kubelet: real processes of this machine, or none at all.

Like a container runtime it outlives the kubelet: a kubelet that restarts finds its containers running.
There are no images: a container's command runs from this machine's own file system, with the environment
that the pod and the plugins give it and nothing of ours. A container without a command sleeps.
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

# Joins its groups before it becomes the container's command: the command has been held from its first
# instruction on.
_JOIN = 'for procs in $1; do echo $$ > "$procs" || exit 126; done; shift; exec "$@"'


class RunningContainer(Protocol):
    """A container that was started."""

    @property
    def pid(self) -> int | None:
        """The container's first process, where there is one."""

    @property
    def left_out(self) -> Sequence[str]:
        """What of its devices' Allocation it does not have, sentence by sentence."""

    async def wait(self) -> int:
        """The exit code, once it has ended; 128 + n if signal n ended it."""

    async def stop(self, grace: float, clock: Clock) -> None:
        """Ask it to end; after the grace, make it."""


class PodRuntime(Protocol):
    """Starts containers and remembers them."""

    async def create_pod(self, pod: Pod) -> None: ...

    async def remove_pod(self, pod: Pod) -> None: ...

    async def start(
        self, pod: Pod, container: Container, env: Mapping[str, str], given: Allocation = NOTHING
    ) -> RunningContainer: ...

    def running(self, pod: Pod, container: str) -> RunningContainer | None: ...

    async def close(self) -> None: ...


class SimulatedContainer:
    """A container of a simulated node: it runs until someone says how it ends."""

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
    """No processes: a container runs until it is told to end."""

    containers: dict[tuple[str, str], SimulatedContainer]
    """By the uid of its pod and its name; `finish(code)` ends one."""

    def __init__(self) -> None:
        self.containers = {}

    async def create_pod(self, pod: Pod) -> None:
        """Make room for a pod; the kubelet does."""
        return

    async def remove_pod(self, pod: Pod) -> None:
        """Forget a pod; the kubelet does."""
        self.containers = {key: value for key, value in self.containers.items() if key[0] != pod.uid}

    async def start(
        self, pod: Pod, container: Container, env: Mapping[str, str], given: Allocation = NOTHING
    ) -> SimulatedContainer:
        """Start a container; the kubelet does."""
        started = SimulatedContainer(env)
        self.containers[pod.uid, container.name] = started
        return started

    def running(self, pod: Pod, container: str) -> SimulatedContainer | None:
        """A container that runs, if it does."""
        found = self.containers.get((pod.uid, container))
        return found if found and not found.ended else None

    async def close(self) -> None:
        """End every container and leave nothing behind."""
        self.containers.clear()


class ProcessContainer:
    """A container that is a process of this machine, and whatever that starts."""

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
        """Whether it sees other files than this process: then it has a mount namespace of its own."""

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
        """To the whole process group, whose leader the container's first process is."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class ProcessRuntime:
    """Real processes, each pod in a control group of its own where this machine lets us make one."""

    without_cgroups: str
    """Why pods are plain processes here; empty where they have control groups."""

    def __init__(
        self,
        folder: Path,
        *,
        parent: str = "",
        naming: Naming = Naming.CGROUPFS,
        mount: Path = cgroups.MOUNT,
    ) -> None:
        """`folder` is for the output of containers; `parent` is the control group that pods are made in."""
        self._folder = folder
        self._parent = Path(parent or f"colocate-pods-{os.getpid()}")
        self._naming = naming
        self._containers: dict[tuple[str, str], ProcessContainer] = {}
        self._env: dict[tuple[str, str], dict[str, str]] = {}
        self._may_not_mount: str | None = None
        """Why no container can have mounts; None until that has been tried."""
        self.without_cgroups = ""
        try:
            self._tree: cgroups.Tree | None = cgroups.find_tree(mount)
            # Only to see whether we may: a run that never gets to its first pod must leave nothing.
            cgroups.create(self._tree, self._parent)
            cgroups.remove(self._tree, self._parent)
        except (OSError, Unavailable) as error:
            self._tree = None
            why = system_reason(error) if isinstance(error, OSError) else str(error)
            self.without_cgroups = f"this process may not create control groups here ({why})"

    @property
    def cgroup_root(self) -> Path:
        """The group below which all of its pods are."""
        return self._parent

    def cgroup(self, pod: Pod) -> Path:
        """The pod's group below the top of the tree."""
        return self._parent / cgroups.pod_path(pod.uid, qos_class(pod), self._naming)

    def cgroup_folders(self, pod: Pod) -> list[Path]:
        """The pod's group, in every hierarchy; none where there are no control groups."""
        return self._tree.folders(self.cgroup(pod)) if self._tree else []

    def log_file(self, pod: Pod, container: str) -> Path:
        """Where a container's output goes, from its latest start on."""
        return below(self._folder, pod.uid, f"{container}.log")

    def previous_log(self, pod: Pod, container: str) -> Path:
        """What it had written at the start before that."""
        return below(self._folder, pod.uid, f"{container}.previous.log")

    async def create_pod(self, pod: Pod) -> None:
        """Make the control group of a pod; the kubelet does."""
        if self._tree:
            cgroups.create(self._tree, self.cgroup(pod))

    def _container_folders(self, pod: Pod, container: Container) -> list[Path]:
        """A container's group, below the pod's; made here."""
        if not self._tree:
            return []
        group = below(self.cgroup(pod), container.name)
        cgroups.create(self._tree, group)
        return self._tree.folders(group)

    async def remove_pod(self, pod: Pod) -> None:
        """End what is left of a pod, and remove its control group and its output; the kubelet does."""
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
        """`env` has what `given` has of it; of the rest, device nodes and mounts are made where that is possible."""
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
        """A process in a container's group, with its environment and files; `streams` as asyncio takes them."""
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
        """A container that runs, if it does."""
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
    """A prefix that sets the variables that the shell which joins the groups would not pass on."""
    odd = [f"{name}={value}" for name, value in env.items() if not name.isidentifier()]
    return ["env", *odd] if odd else []


def dies_with_us(by: str = "KILL") -> list[str]:
    """A prefix that ends a process with this one, by a signal, even if this one is killed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", by, "--"] if setpriv else []
