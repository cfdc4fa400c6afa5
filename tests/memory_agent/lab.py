"""An embedded cluster with real processes, and an agent as a process of its own that sells memory in it."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from colocate.host import cgroups
from colocate.host.memory_group import MemoryGroup
from colocate.lab.api.deletion import DeleteOptions, delete
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import EVENTS, NAMESPACES, NODES, PODS
from colocate.lab.cluster import MACHINE, LabCluster
from colocate.lab.pod_runtime import ProcessRuntime
from colocate.memory.agent.control import REPORT, AskReport
from colocate.memory.agent.report import MemoryReport
from colocate.model.pod import Phase
from colocate.wire import control_socket as control
from tests.support.real_pods import missing
from tests.support.waiting import until

RESOURCE = "test.com/colocation-memory"
NAMESPACE = "colocation-memory"
MIB = 1 << 20

SAY_LIMIT = r"""
own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
if [ -n "$own" ]; then file=/sys/fs/cgroup/memory$(dirname "$own")/memory.limit_in_bytes
else file=/sys/fs/cgroup$(dirname "$(sed -n 's/^0:://p' /proc/self/cgroup)")/memory.max; fi
echo "limit $(cat "$file")"
"""
"""A process's first words: the limit of its pod's control group as it finds it."""


class MemoryLab:
    """The cluster, its agent, and what tests do with them."""

    def __init__(self, root: Path, cluster: LabCluster, runtime: ProcessRuntime) -> None:
        self.root = root
        self.cluster = cluster
        self.runtime = runtime
        self.agent: asyncio.subprocess.Process | None = None
        self.socket = root / "agent.sock"
        self.config = root / "agent.yaml"

    def configure(self, **memory: Any) -> None:
        """Write the agent's configuration; fields of its memory section as in the file."""
        self.config.write_text(
            yaml.safe_dump(
                {
                    "version": 1,
                    "kubelet": {"root": str(self.cluster.kubelet.paths.root)},
                    "log": {"format": "json", "level": "debug"},
                    "control": {"socket": str(self.socket)},
                    "memory": {
                        "enabled": True,
                        "resource": RESOURCE,
                        "refresh": "1s",
                        "stateFolder": str(self.root / "state"),
                        "cgroupRoot": str(self.runtime.cgroup_root),
                        "node": MACHINE,
                        "kubeconfig": str(self.root / "kubeconfig"),
                        **memory,
                    },
                }
            )
        )

    async def start_agent(self, *words: str, environ: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "colocate.cli.main", "agent", "--config", str(self.config), *words]
        with (self.root / "agent.log").open("ab") as log:
            self.agent = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environ or {})},
            )

    async def stop_agent(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.agent is not None
        if self.agent.returncode is None:
            self.agent.send_signal(number)
        code = await asyncio.wait_for(self.agent.wait(), 60)
        self.agent = None
        return code

    def log(self) -> str:
        file = self.root / "agent.log"
        return file.read_text() if file.exists() else ""

    def healthy(self) -> list[str]:
        return sorted(self.cluster.kubelet.devices.table.healthy(RESOURCE))

    async def report(self) -> MemoryReport:
        return await control.ask(self.socket, REPORT, AskReport())

    async def until_report(self, holds: Callable[[MemoryReport], bool], what: str) -> MemoryReport:
        """Wait for a turn of the agent in which something is so."""
        async with asyncio.timeout(60):
            while not holds(report := await self.report()):  # noqa: ASYNC110 -- the agent is another process
                await asyncio.sleep(0.02)
        assert holds(report), what
        return report

    async def until_blocks(self, least: int = 1) -> None:
        """Wait until the kubelet knows so many healthy blocks."""

        def there() -> bool:
            assert self.agent is None or self.agent.returncode is None, f"the agent ended:\n{self.log()}"
            return len(self.healthy()) >= least

        try:
            await until(there, f"{least} blocks")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None
        self.cluster.kubelet.sync_status()

    def create_pod(
        self,
        name: str,
        blocks: int,
        script: str = "",
        *,
        namespace: str = NAMESPACE,
        annotations: Mapping[str, str] | None = None,
        containers: list[Object] | None = None,
        **spec: Any,
    ) -> str:
        """A pod with blocks, bound to this machine; its uid."""
        container = {
            "name": "main",
            "image": "busybox",
            "command": ["/bin/sh", "-c", f"{SAY_LIMIT}{script or 'exec sleep infinity'}"],
            "resources": {"limits": {RESOURCE: str(blocks)}} if blocks else {},
        }
        body = {
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "spec": {
                "nodeName": MACHINE,
                "containers": containers or [container],
                "terminationGracePeriodSeconds": 1,
                **spec,
            },
        }
        stored = self.cluster.registry.create(PODS, namespace, body)
        return str(stored.body["metadata"]["uid"])

    def pod(self, name: str, namespace: str = NAMESPACE) -> Object | None:
        stored = self.cluster.registry.find(PODS, namespace, name)
        return stored.body if stored else None

    def phase(self, name: str, namespace: str = NAMESPACE) -> str:
        pod = self.pod(name, namespace)
        return str((pod or {}).get("status", {}).get("phase", ""))

    async def until_running(self, name: str, namespace: str = NAMESPACE) -> None:
        try:
            await until(lambda: self.phase(name, namespace) == Phase.RUNNING, f"{name} to run")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.pod(name, namespace)}\n{self.log()}") from None

    def said(self, name: str, namespace: str = NAMESPACE, container: str = "main") -> list[str]:
        """What a pod wrote; nothing where it is not there."""
        key = f"{namespace}/{name}"
        pods = [record.pod for record in self.cluster.kubelet.records.values() if record.pod.key == key]
        files = [self.runtime.log_file(pod, container) for pod in pods]
        return [line for file in files if file.exists() for line in file.read_text().splitlines()]

    def group(self, name: str, namespace: str = NAMESPACE) -> MemoryGroup:
        """The control group of a pod, where its memory is accounted for."""
        record = self.cluster.kubelet.pod(f"{namespace}/{name}")
        tree = cgroups.find_tree()
        return MemoryGroup(tree.roots["memory"] / self.runtime.cgroup(record.pod), tree.version)

    @property
    def all_pods(self) -> MemoryGroup:
        """The control group above those of all pods."""
        tree = cgroups.find_tree()
        return MemoryGroup(tree.roots["memory"] / self.runtime.cgroup_root, tree.version)

    def limit(self, name: str, namespace: str = NAMESPACE) -> int | None:
        group = self.group(name, namespace)
        text = group.read("memory.max" if group.version == 2 else "memory.limit_in_bytes").decode().strip()
        return None if text == "max" or int(text) > 1 << 60 else int(text)

    def held(self) -> dict[str, set[str]]:
        """By pod, the ids that the kubelet has given out."""
        held: dict[str, set[str]] = {}
        for entry in self.cluster.kubelet.devices.table.held.values():
            held.setdefault(entry.pod_uid, set()).update(entry.ids)
        return held

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reasons and messages of the events about an object."""
        events = [stored.body for stored in self.cluster.store.items(EVENTS.storage)]
        return [
            (event["reason"], event.get("message", ""))
            for event in events
            if event["involvedObject"]["name"] == name
        ]

    def allocatable(self) -> int:
        node = self.cluster.registry.find(NODES, "", MACHINE)
        assert node is not None
        return int(node.body["status"]["allocatable"].get(RESOURCE, 0))

    async def delete_pod(self, name: str, namespace: str = NAMESPACE) -> None:
        delete(self.cluster.registry, PODS, namespace, name, DeleteOptions(gracePeriodSeconds=0))
        await self.until_gone(name, namespace)

    async def until_gone(self, name: str, namespace: str = NAMESPACE) -> None:
        """From the API and from the machine."""

        def gone() -> bool:
            running = [record.pod.key for record in self.cluster.kubelet.records.values()]
            return self.pod(name, namespace) is None and f"{namespace}/{name}" not in running

        await until(gone, f"{name} to go")


@asynccontextmanager
async def memory_lab(**cluster: Any) -> AsyncIterator[MemoryLab]:
    """A running cluster without an agent; all of it is gone at the end."""
    root = Path(tempfile.mkdtemp(prefix="colocate-"))
    runtime = ProcessRuntime(root / "pods", parent=f"colocate-test-{root.name[-8:]}")
    if runtime.without_cgroups:
        missing(runtime.without_cgroups)
    lab = LabCluster(root, runtime=runtime, status_sync=0.2, **cluster)
    memory = MemoryLab(root, lab, runtime)
    try:
        async with lab.running():
            lab.server.write_kubeconfig(root / "kubeconfig")
            lab.registry.create(NAMESPACES, "", {"metadata": {"name": NAMESPACE}})
            try:
                yield memory
            finally:
                if memory.agent is not None:
                    await memory.stop_agent(signal.SIGKILL)
    finally:
        await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)
