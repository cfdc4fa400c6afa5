"""An embedded cluster, and an agent as a process of its own that shares mock GPUs in it."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from colocate.errors import UserError
from colocate.gpus import GpuPod
from colocate.gpus.agent.control import EXPLAIN, GPU_REPORT, AskGpuReport, ExplainGpuPod
from colocate.gpus.agent.mock_faults import SET_FAULT, GpuFault, SetGpuFault
from colocate.gpus.agent.report import GpuReport
from colocate.lab.api.deletion import DeleteOptions, delete
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import CONFIG_MAPS, EVENTS, NODES, PODS
from colocate.lab.cluster import MACHINE, LabCluster
from colocate.model.pod import Phase, Pod
from colocate.wire import control_socket as control
from tests.gpus.node import KEY, booked
from tests.support.waiting import until

_MEMORY = Path("/dev/shm")
MEMORY, COUNT, CORES = "doslab.io/gpu-memory", "doslab.io/gpu-count", "doslab.io/gpu-core"
T4 = "GPU-709fac35-5f40-624b-90f7-b0a3db7a97a0"
A100 = "GPU-fcda056f-77c6-7fdf-f7c7-6453511eaaa1"
MOCKS = (
    {"model": "Tesla T4", "memory": "15360Mi", "uuid": T4, "numa": 0},
    {"model": "NVIDIA A100", "memory": "40536Mi", "uuid": A100, "numa": 1},
)


class GpuLab:
    """The cluster, its agent, and what tests do with them."""

    def __init__(self, root: Path, cluster: LabCluster) -> None:
        self.root = root
        self.cluster = cluster
        self.agent: asyncio.subprocess.Process | None = None
        self.socket = root / "agent.sock"
        self.config = root / "agent.yaml"
        self.mocks = root / "gpus.yaml"

    def configure(self, gpus: Sequence[Mapping[str, Any]] = MOCKS, **section: Any) -> None:
        """Write the agent's configuration and its mock GPUs; fields of the section gpus as in the file."""
        (self.root / "key").write_bytes(KEY)
        self.mocks.write_text(yaml.safe_dump({"version": 1, "gpus": list(gpus)}))
        self.config.write_text(
            yaml.safe_dump(
                {
                    "version": 1,
                    "kubelet": {"root": str(self.cluster.kubelet.paths.root), "onStop": "withdraw"},
                    "log": {"format": "json", "level": "debug"},
                    "control": {"socket": str(self.socket)},
                    "gpus": {
                        "enabled": True,
                        "mock": str(self.mocks),
                        "node": MACHINE,
                        "kubeconfig": str(self.root / "kubeconfig"),
                        "stateFolder": str(self.root / "state"),
                        "health": {"refresh": "1s", "recovery": "1s"},
                        "dialects": [{"name": "doslab"}],
                        **section,
                    },
                }
            )
        )

    async def start_agent(self) -> None:
        command = [sys.executable, "-m", "colocate.cli.main", "agent", "--config", str(self.config)]
        with (self.root / "agent.log").open("ab") as log:
            self.agent = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ)
            )

    async def stop_agent(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.agent is not None
        if self.agent.returncode is None:
            self.agent.send_signal(number)
        code = await asyncio.wait_for(self.agent.wait(), 60)
        self.agent = None
        return code

    def hang_up(self) -> None:
        assert self.agent is not None
        self.agent.send_signal(signal.SIGHUP)

    def log(self) -> str:
        file = self.root / "agent.log"
        return file.read_text() if file.exists() else ""

    def node(self, where: str = "allocatable") -> dict[str, str]:
        """What the node's status says of GPUs."""
        node = self.cluster.registry.find(NODES, "", MACHINE)
        assert node is not None
        found: dict[str, str] = node.body["status"][where]
        return {name: found[name] for name in (MEMORY, COUNT, CORES) if name in found}

    async def shows(self, memory: int, gpus: int, where: str = "allocatable") -> None:
        """Wait until the node's status says so much."""
        expected = {MEMORY: str(memory), COUNT: str(gpus), CORES: str(100 * gpus)}

        def so() -> bool:
            assert self.agent is None or self.agent.returncode is None, f"the agent ended:\n{self.log()}"
            return self.node(where) == expected

        try:
            await until(so, f"{expected} in {where}", 30)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.node(where)}\n{self.log()}") from None

    async def fault(self, fault: GpuFault) -> None:
        await control.ask(self.socket, SET_FAULT, SetGpuFault(fault))

    async def until_explained(self, pod: str) -> None:
        """Wait until the agent's watch has told of a pod."""

        async with asyncio.timeout(30):
            while True:
                try:
                    await control.ask(self.socket, EXPLAIN, ExplainGpuPod(pod))
                    return
                except UserError:
                    await asyncio.sleep(0.01)

    async def report(self) -> GpuReport:
        return await control.ask(self.socket, GPU_REPORT, AskGpuReport())

    def create(self, body: Object, namespace: str = "default") -> str:
        """A pod, bound to this machine; its uid."""
        stored = self.cluster.registry.create(
            PODS, namespace, {**body, "spec": {**body["spec"], "nodeName": MACHINE}}
        )
        return str(stored.body["metadata"]["uid"])

    def create_pod(
        self,
        name: str,
        units: int,
        *,
        resource: str = MEMORY,
        annotations: Mapping[str, str] | None = None,
        limits: Mapping[str, str] | None = None,
    ) -> str:
        wanted = {resource: str(units), **(limits or {})} if units else dict(limits or {})
        container = {"name": "main", "image": "busybox", "resources": {"limits": wanted}}
        return self.create(
            {
                "metadata": {"name": name, "annotations": dict(annotations or {})},
                "spec": {"containers": [container]},
            }
        )

    def annotate(self, name: str, annotations: Mapping[str, str], namespace: str = "default") -> None:
        def change(body: Object) -> None:
            body["metadata"].setdefault("annotations", {}).update(annotations)

        self.cluster.registry.modify(PODS, namespace, name, change)

    def book(self, name: str, *gpus: str) -> None:
        """Book a pod as a scheduler of ours does, with the key of the tests."""
        made = booked(msgspec.convert(self.pod(name), GpuPod), gpus)
        self.annotate(name, made.annotations)

    def owner(self, name: str = "owner") -> Object:
        """A reference to a controller. Any object will do: what matters is that it is there."""
        stored = self.cluster.registry.find(CONFIG_MAPS, "default", name) or self.cluster.registry.create(
            CONFIG_MAPS, "default", {"metadata": {"name": name}}
        )
        uid = stored.body["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "controller": True}

    def hold_back(self, *names: str) -> Callable[..., None]:
        """Let the kubelet not hear of these pods until what is returned is called, with some of them or for all."""
        admit = self.cluster.kubelet.add_pod
        held: dict[str, Pod] = {}

        def add(pod: Pod) -> Any:
            if pod.metadata.name not in names:
                return admit(pod)
            held[pod.metadata.name] = pod
            return None

        def release(*some: str) -> None:
            for name in some or list(held):
                admit(held.pop(name))

        self.cluster.kubelet.add_pod = add  # type: ignore[method-assign]
        return release

    def pod(self, name: str, namespace: str = "default") -> Object:
        stored = self.cluster.registry.find(PODS, namespace, name)
        return stored.body if stored else {}

    def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.pod(name).get("metadata", {}).get("annotations") or {}
        return found

    async def until_phase(self, name: str, phase: Phase = Phase.RUNNING) -> Object:
        def so() -> bool:
            return bool(self.pod(name).get("status", {}).get("phase") == phase)

        try:
            await until(so, f"{name} to be {phase}", 30)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.pod(name)}\n{self.log()}") from None
        return self.pod(name)

    def env(self, name: str, namespace: str = "default") -> dict[str, str]:
        """What plugins have injected into a pod's only container."""
        pod = self.cluster.kubelet.pod(f"{namespace}/{name}").pod
        env: dict[str, str] = {}
        for response in self.cluster.kubelet.devices.injected(pod, pod.containers[0]):
            env |= response.envs
        return env

    async def until_annotated(self, name: str, key: str, value: str) -> None:
        await until(lambda: self.annotations(name).get(key) == value, f"{name} to have {key}={value}", 30)

    async def until_told(self, name: str, words: str) -> None:
        """Wait for an event on a pod."""
        try:
            await until(
                lambda: any(words in event for event in self.events(name)), f"{name} to be told: {words}", 30
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; told was {self.events(name)}\n{self.log()}") from None

    def events(self, name: str) -> list[str]:
        events = [stored.body for stored in self.cluster.store.items(EVENTS.storage)]
        return [event.get("message", "") for event in events if event["involvedObject"]["name"] == name]

    def delete_pod(self, name: str, namespace: str = "default") -> None:
        delete(self.cluster.registry, PODS, namespace, name, DeleteOptions(gracePeriodSeconds=0))


@asynccontextmanager
async def gpu_lab(**cluster: Any) -> AsyncIterator[GpuLab]:
    """A running cluster without an agent; all of it is gone at the end."""
    # In memory, where that is possible: nothing here is about disks, and a kubelet syncs its checkpoint very often.
    root = Path(tempfile.mkdtemp(prefix="colocate-", dir=_MEMORY if _MEMORY.is_dir() else None))
    lab = LabCluster(root, status_sync=0.1, **cluster)
    made = GpuLab(root, lab)
    try:
        async with lab.running():
            lab.server.write_kubeconfig(root / "kubeconfig")
            try:
                yield made
            finally:
                if made.agent is not None:
                    await made.stop_agent(signal.SIGKILL)
    finally:
        await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)
