"""A runtime in this process with just enough in it: sandboxes and containers. It fails as a test says."""

import asyncio
import json
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri
from colocate.wire import rpc
from tests.support.fake_runtime import Requests

READERS = {method.path: method for method in vars(methods).values() if isinstance(method, rpc.Method)}
_QUESTIONS = (
    cri.ListContainersRequest,
    cri.ListPodSandboxRequest,
    cri.ContainerStatusRequest,
    cri.PodSandboxStatusRequest,
)


class MiniRuntime:
    """Every request that changes something is in `asked`."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.containers: dict[str, cri.Container] = {}
        self.resources: dict[str, cri.LinuxContainerResources] = {}
        self.sandboxes: dict[str, cri.PodSandbox] = {}
        self.parents: dict[str, str] = {}
        self.failures: dict[str, list[grpc.StatusCode]] = {}
        """By method, how its next calls end."""
        self.hold: asyncio.Event | None = None
        """Keeps a creation from being answered; the container is there."""
        self.info: str | None = None
        """What a verbose status says instead of the truth."""
        self.garbage = False

    async def serve(self, path: str, requests: Requests, context: grpc.aio.ServicerContext) -> None:
        payload = b"".join([request async for request in requests])
        if self.garbage:
            self.asked.append(payload)
            await context.write(b"\xff\xff\xff")
            return
        if path == methods.CONTAINER_EVENTS:
            for container in self.containers.values():
                event = cri.ContainerEventResponse(
                    container_id=container.id, container_event_type=cri.CONTAINER_STOPPED_EVENT
                )
                await context.write(event.SerializeToString())
            return
        request = READERS[path].read_request(payload)
        name = path.rpartition("/")[2]
        if not isinstance(request, _QUESTIONS):
            self.asked.append(request)
        if self.failures.get(name):
            await context.abort(self.failures[name].pop(0), "as the test wishes")
        await context.write((await self._answer(request)).SerializeToString())

    async def _answer(self, request: Any) -> Message:
        match request:
            case cri.ListPodSandboxRequest():
                return cri.ListPodSandboxResponse(items=self.sandboxes.values())
            case cri.PodSandboxStatusRequest():
                linux = {"cgroup_parent": self.parents.get(request.pod_sandbox_id, "")}
                info = json.dumps({"config": {"linux": linux}}) if self.info is None else self.info
                return cri.PodSandboxStatusResponse(info={"info": info})
            case cri.ListContainersRequest():
                return cri.ListContainersResponse(containers=self.containers.values())
            case cri.ContainerStatusRequest():
                found = self.containers[request.container_id]
                status = cri.ContainerStatus(id=found.id, state=found.state)
                info = self._spec(found.id) if self.info is None else self.info
                return cri.ContainerStatusResponse(status=status, info={"info": info})
            case cri.RunPodSandboxRequest():
                return cri.RunPodSandboxResponse(pod_sandbox_id=self._run_sandbox(request.config))
            case cri.CreateContainerRequest():
                config = request.config
                made = self.add(config.metadata.name, request.pod_sandbox_id, config.metadata.attempt)
                self.resources[made].CopyFrom(config.linux.resources)
                if self.hold:
                    await self.hold.wait()
                return cri.CreateContainerResponse(container_id=made)
            case cri.StartContainerRequest():
                self.containers[request.container_id].state = cri.CONTAINER_RUNNING
                return cri.StartContainerResponse()
            case cri.UpdateContainerResourcesRequest():
                if request.container_id in self.resources:
                    self.resources[request.container_id].MergeFrom(request.linux)
                return cri.UpdateContainerResourcesResponse()
            case cri.StopContainerRequest():
                self.containers[request.container_id].state = cri.CONTAINER_EXITED
                return cri.StopContainerResponse()
            case cri.RemoveContainerRequest():
                self.containers.pop(request.container_id, None)
                return cri.RemoveContainerResponse()
            case cri.StopPodSandboxRequest():
                for container in self.of_sandbox(request.pod_sandbox_id):
                    container.state = cri.CONTAINER_EXITED
                if request.pod_sandbox_id in self.sandboxes:
                    self.sandboxes[request.pod_sandbox_id].state = cri.SANDBOX_NOTREADY
                return cri.StopPodSandboxResponse()
            case cri.RemovePodSandboxRequest():
                for container in self.of_sandbox(request.pod_sandbox_id):
                    del self.containers[container.id]
                self.sandboxes.pop(request.pod_sandbox_id, None)
                return cri.RemovePodSandboxResponse()
        raise AssertionError(request)

    def add(
        self,
        name: str,
        sandbox: str = "s",
        attempt: int = 0,
        state: cri.ContainerState = cri.CONTAINER_CREATED,
    ) -> str:
        if sandbox not in self.sandboxes:
            metadata = cri.PodSandboxMetadata(name="p", uid="u", namespace="n")
            self.sandboxes[sandbox] = cri.PodSandbox(id=sandbox, metadata=metadata)
        container = cri.Container(
            id=f"id-{name}" if not attempt and sandbox == "s" else f"id-{sandbox}-{name}-{attempt}",
            pod_sandbox_id=sandbox,
            metadata=cri.ContainerMetadata(name=name, attempt=attempt),
            state=state,
        )
        self.containers[container.id] = container
        self.resources[container.id] = cri.LinuxContainerResources()
        return container.id

    def of_sandbox(self, sandbox: str) -> list[cri.Container]:
        return [each for each in self.containers.values() if each.pod_sandbox_id == sandbox]

    def pinned(self) -> list[tuple[str, str]]:
        """Which containers were given which CPUs, in order; the new one without an id."""
        found = []
        for request in self.asked:
            if isinstance(request, cri.UpdateContainerResourcesRequest):
                found.append((request.container_id, request.linux.cpuset_cpus))
            elif isinstance(request, cri.CreateContainerRequest):
                found.append(("", request.config.linux.resources.cpuset_cpus))
        return found

    def _run_sandbox(self, config: cri.PodSandboxConfig) -> str:
        made = f"s-{config.metadata.name}"
        self.sandboxes[made] = cri.PodSandbox(
            id=made, metadata=config.metadata, annotations=config.annotations
        )
        self.parents[made] = config.linux.cgroup_parent
        return made

    def _spec(self, container_id: str) -> str:
        said = self.resources[container_id]
        cpu = {
            "shares": said.cpu_shares,
            "quota": said.cpu_quota,
            "period": said.cpu_period,
            "cpus": said.cpuset_cpus,
            "mems": said.cpuset_mems,
        }
        limits = {"cpu": cpu, "memory": {"limit": said.memory_limit_in_bytes}}
        return json.dumps({"runtimeSpec": {"linux": {"resources": limits}}})
