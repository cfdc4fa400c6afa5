"""A real containerd of any version on its own root, state and sockets, and what a kubelet would ask of it.

Its images are made here from busybox. Sandboxes use the host's network, so no CNI is needed.
"""

import asyncio
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import tarfile
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc.aio

from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri
from colocate.wire import rpc
from tests.support import components

VERSIONS = {"1.6": "containerd", "1.7": "containerd-1.7", "2.1": "containerd-2.1"}
"""By version, the component."""
START_SECONDS = 60
IMAGE = "test.invalid/colocate/busybox:1"
_FOREVER = ["/bin/busybox", "sleep", "1000000"]
_CALL_SECONDS = 60
_END_SECONDS = 60
_SHIM_SOCKET = re.compile(r"unix://(/run/containerd/s/[0-9a-f]{64})")


class Containerd:
    """One that runs, until `kill`; `start` starts it again on what is there."""

    def __init__(self, folder: Path, version: str, *, nri: bool) -> None:
        self.folder = folder
        self.version = version
        self.socket = folder / "c.sock"
        self.nri_socket = folder / "nri.sock"
        self.log = folder / "containerd.log"
        self.cgroup_parent = f"/colocate-{uuid.uuid4().hex[:12]}"
        self._nri = nri
        program = components.find(VERSIONS[version])
        assert program, f"containerd {version} is not here"
        self._bin = Path(program).parent
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and return when it answers."""
        config = self.folder / "config.toml"
        config.write_text(self._config())
        runc = components.find("runc")
        assert runc
        path = os.pathsep.join([str(self._bin), str(Path(runc).parent), os.environ["PATH"]])
        self._process = await asyncio.to_thread(self._spawn, config, {**os.environ, "PATH": path})
        async with asyncio.timeout(START_SECONDS):
            while not await self._answers():
                assert self._process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.02)

    def _spawn(self, config: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            command = [str(self._bin / "containerd"), "--config", str(config)]
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    async def _answers(self) -> bool:
        async with rpc.connect(self.socket) as channel:
            with suppress(grpc.aio.AioRpcError):
                await rpc.call(channel, methods.VERSION, cri.VersionRequest(), timeout=5)
                return True
        return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it by a signal; its containers stay."""
        assert self._process
        self._process.send_signal(number)
        self._process.wait()

    def ctr(self, *args: str) -> str:
        """What its own command-line client says, in the kubelet's namespace."""
        command = [str(self._bin / "ctr"), f"--address={self.socket}", "--namespace=k8s.io", *args]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def import_image(self) -> None:
        archive = self.folder / "image.tar"
        archive.write_bytes(_docker_archive())
        local = ["--local"] if self.version.startswith("2") else []  # else it unpacks for overlayfs alone
        self.ctr("images", "import", *local, "--snapshotter=native", str(archive))

    def clean_up(self) -> None:
        """Leave nothing behind: no shim, no mount, no control group."""
        if self._process and self._process.poll() is None:
            self.kill(signal.SIGTERM)
        for shim in _processes_with(str(self.socket)):
            with suppress(ProcessLookupError):
                os.kill(shim, signal.SIGKILL)
        for socket in self._shim_sockets():
            socket.unlink(missing_ok=True)
        roots = [  # One for each controller, or the one of cgroup v2.
            path
            for pattern in (f"*{self.cgroup_parent}", self.cgroup_parent[1:])
            for path in Path("/sys/fs/cgroup").glob(pattern)
        ]
        for group in (file for root in roots for file in root.rglob("cgroup.procs")):
            for pid in group.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{self.folder}/")]):
            subprocess.run(["umount", "--lazy", mount], check=True)
        for root in roots:
            for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
                _remove_group(folder)
            _remove_group(root)

    def _shim_sockets(self) -> list[Path]:
        """Those of shims that did not end by themselves: they are outside of the folder, whatever is configured."""
        told = [*self.folder.glob("state/*/*/*/address"), *self.folder.glob("state/*/*/*/bootstrap.json")]
        return [Path(found) for file in told for found in _SHIM_SOCKET.findall(file.read_text())]

    def _config(self) -> str:
        """Version 2 of the file; containerd 2 takes it too."""
        folder = self.folder
        return f"""
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs"]
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{IMAGE}"
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  max_container_log_line_size = 16384
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{folder}/state/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{folder}/cni/bin"
    conf_dir = "{folder}/cni/net.d"
[plugins."io.containerd.nri.v1.nri"]
  disable = {str(not self._nri).lower()}
  socket_path = "{self.nri_socket}"
  plugin_path = "{folder}/nri/plugins"
  plugin_config_path = "{folder}/nri/conf.d"
"""


@asynccontextmanager
async def running(folder: Path, version: str = "1.6", *, nri: bool = False) -> AsyncIterator[Containerd]:
    """A containerd with the image; `folder` must have a short path. Nothing is left behind."""
    containerd = Containerd(folder, version, nri=nri)
    try:
        await containerd.start()
        await asyncio.to_thread(containerd.import_image)
        yield containerd
    finally:
        await asyncio.to_thread(containerd.clean_up)


class Kubelet:
    """The calls of a kubelet on a socket, be it the runtime's own or a proxy's."""

    def __init__(self, socket: Path, cgroup_parent: str) -> None:
        self.channel = rpc.connect(socket, receive_limit=16 << 20)
        self._cgroup_parent = cgroup_parent
        self._sandboxes: dict[str, cri.PodSandboxConfig] = {}

    async def __aenter__(self) -> "Kubelet":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def call(self, method: rpc.Method[rpc.Request, rpc.Response], request: rpc.Request) -> rpc.Response:
        return await rpc.call(self.channel, method, request, timeout=_CALL_SECONDS)

    async def run_sandbox(
        self, name: str, *, qos: str = "", annotations: Mapping[str, str] | None = None
    ) -> str:
        """A pod's sandbox; `qos` is burstable, besteffort or nothing. Returns its id."""
        uid = str(uuid.uuid4())
        parent = "/".join(part for part in (self._cgroup_parent, "kubepods", qos, f"pod{uid}") if part)
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, uid=uid, namespace="default"),
            annotations=annotations or {},
            labels={
                "io.kubernetes.pod.name": name,
                "io.kubernetes.pod.namespace": "default",
                "io.kubernetes.pod.uid": uid,
            },
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent=parent,
                security_context=cri.LinuxSandboxSecurityContext(
                    namespace_options=cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER)
                ),
            ),
        )
        made = await self.call(methods.RUN_SANDBOX, cri.RunPodSandboxRequest(config=config))
        self._sandboxes[made.pod_sandbox_id] = config
        return made.pod_sandbox_id

    async def create(
        self,
        sandbox: str,
        name: str,
        *,
        cpus: float = 0,
        guaranteed: bool = False,
        attempt: int = 0,
        command: Sequence[str] = _FOREVER,
    ) -> str:
        """A container that asks for so many CPUs; a guaranteed one has them as its limit, too. Returns its id."""
        request = cri.CreateContainerRequest(
            pod_sandbox_id=sandbox,
            sandbox_config=self._sandboxes.get(sandbox),
            config=cri.ContainerConfig(
                metadata=cri.ContainerMetadata(name=name, attempt=attempt),
                image=cri.ImageSpec(image=IMAGE),
                command=command,
                linux=cri.LinuxContainerConfig(resources=resources(cpus, guaranteed=guaranteed)),
            ),
        )
        request.config.MergeFromString(_restart_count(attempt))
        return (await self.call(methods.CREATE_CONTAINER, request)).container_id

    async def start(self, container: str) -> None:
        await self.call(methods.START_CONTAINER, cri.StartContainerRequest(container_id=container))

    async def resize(self, container: str, cpus: float, *, guaranteed: bool = False) -> None:
        request = cri.UpdateContainerResourcesRequest(
            container_id=container, linux=resources(cpus, guaranteed=guaranteed)
        )
        await self.call(methods.UPDATE_RESOURCES, request)

    async def stop(self, container: str) -> None:
        await self.call(methods.STOP_CONTAINER, cri.StopContainerRequest(container_id=container))

    async def remove(self, container: str) -> None:
        await self.call(methods.REMOVE_CONTAINER, cri.RemoveContainerRequest(container_id=container))

    async def stop_sandbox(self, sandbox: str) -> None:
        await self.call(methods.STOP_SANDBOX, cri.StopPodSandboxRequest(pod_sandbox_id=sandbox))

    async def remove_sandbox(self, sandbox: str) -> None:
        await self.call(methods.REMOVE_SANDBOX, cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox))

    async def remove_all(self) -> None:
        """Stop and remove every sandbox that there is, and with it its containers."""
        for sandbox in (await self.call(methods.LIST_SANDBOXES, cri.ListPodSandboxRequest())).items:
            await self.stop_sandbox(sandbox.id)
            await self.remove_sandbox(sandbox.id)

    async def containers(self) -> list[cri.Container]:
        return list((await self.call(methods.LIST_CONTAINERS, cri.ListContainersRequest())).containers)

    async def exec(self, container: str, *command: str) -> str:
        """What a command prints in a container."""
        request = cri.ExecSyncRequest(container_id=container, cmd=["/bin/busybox", *command], timeout=30)
        done = await self.call(methods.EXEC_SYNC, request)
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout.decode()

    async def cpus_allowed(self, container: str) -> str:
        """The real CPUs of a process in the container, as the kernel says."""
        return await self._status(container, "Cpus_allowed_list")

    async def mems_allowed(self, container: str) -> str:
        return await self._status(container, "Mems_allowed_list")

    async def _status(self, container: str, field: str) -> str:
        status = await self.exec(container, "cat", "/proc/self/status")
        return next(line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:"))


def _restart_count(attempt: int) -> bytes:
    """The annotation by which NRI knows the attempt, as the field 10 that the messages here do not name."""
    entry = b"".join(
        bytes([number << 3 | 2, len(text)]) + text
        for number, text in ((1, b"io.kubernetes.container.restartCount"), (2, str(attempt).encode()))
    )
    return bytes([10 << 3 | 2, len(entry)]) + entry


def resources(cpus: float, *, guaranteed: bool = False) -> cri.LinuxContainerResources:
    """As the kubelet writes them: shares for the request, a quota for the limit."""
    made = cri.LinuxContainerResources(cpu_shares=max(2, round(cpus * 1024)))
    if guaranteed:
        made.cpu_period = 100_000
        made.cpu_quota = round(cpus * 100_000)
    return made


def _processes_with(word: str) -> list[int]:
    """Processes with this word among their arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _remove_group(folder: Path) -> None:
    """A control group, once the last of its processes has ended, for which nothing can be asked."""
    end = time.monotonic() + _END_SECONDS
    while folder.exists():
        with suppress(OSError):
            folder.rmdir()
            return
        assert time.monotonic() < end, f"{folder} has processes that do not end"
        time.sleep(0.01)


def _docker_archive() -> bytes:
    """An image with nothing but busybox, which sleeps when it is run: good for sandboxes and containers."""
    busybox = components.find("busybox")
    assert busybox
    layer = _tar({"bin/busybox": (Path(busybox).read_bytes(), 0o755)})
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": _FOREVER, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    files = {name: config, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    return _tar({name: (content, 0o644) for name, content in files.items()})


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
