"""A CRI runtime for tests: a gRPC server for any service, a kubelet's channel to it, and sandboxes in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import Message

from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri
from colocate.wire import rpc

Requests = AsyncIterator[bytes]
Serve = Callable[[str, Requests, grpc.aio.ServicerContext], Awaitable[None]]
"""Serves a call of any kind: reads its messages, writes others."""
LIMIT = 16 << 20
READERS = {method.path: method for method in vars(methods).values() if isinstance(method, rpc.Method)}
_QUESTIONS = (
    cri.ListContainersRequest,
    cri.ListPodSandboxRequest,
    cri.ContainerStatusRequest,
    cri.PodSandboxStatusRequest,
)

Pairs = tuple[tuple[str, str | bytes], ...]


class Ended(msgspec.Struct, frozen=True):
    """All that a caller sees of a call."""

    answers: tuple[bytes | None, ...]
    code: str
    details: str
    initial: Pairs
    trailing: Pairs


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, serve: Serve) -> None:
        self._serve = serve

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = handler_call_details.method

        async def handle(requests: Requests, context: grpc.aio.ServicerContext) -> None:
            await self._serve(path, requests, context)

        return grpc.stream_stream_rpc_method_handler(handle)


@asynccontextmanager
async def serving(socket: Path, serve: Serve) -> AsyncIterator[None]:
    """A runtime on this socket that refuses messages beyond 16 MiB, as real ones do."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", LIMIT),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
    )
    server.add_generic_rpc_handlers((_Handler(serve),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def client(socket: Path) -> grpc.aio.Channel:
    """As a kubelet connects."""
    return grpc.aio.insecure_channel(
        f"unix:{socket}",
        options=[
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.default_authority", "localhost"),
            ("grpc.primary_user_agent", "kubelet/v1.34"),
            ("grpc.max_receive_message_length", LIMIT),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_reconnect_backoff_ms", 200),
        ],
    )


async def call_unary(
    channel: grpc.aio.Channel, path: str, request: bytes, metadata: Pairs = (), timeout: float = 60
) -> Ended:
    call = channel.unary_unary(path)(request, metadata=metadata, timeout=timeout)
    try:
        answers: tuple[bytes | None, ...] = (await call,)
    except grpc.aio.AioRpcError:
        answers = ()
    return await _ended(call, answers)


async def call_stream(
    channel: grpc.aio.Channel,
    path: str,
    requests: Iterable[bytes],
    metadata: Pairs = (),
    timeout: float = 60,
) -> Ended:
    call = channel.stream_stream(path)(iter(requests), metadata=metadata, timeout=timeout)
    answers: Sequence[bytes] = []
    try:
        answers = [answer async for answer in call]
    except grpc.aio.AioRpcError:
        pass
    return await _ended(call, tuple(answers))


async def _ended(call: Any, answers: tuple[bytes | None, ...]) -> Ended:
    return Ended(
        answers,
        (await call.code()).name,
        await call.details() or "",
        tuple((key, value) for key, value in await call.initial_metadata()),
        tuple((key, value) for key, value in await call.trailing_metadata()),
    )


async def never() -> None:
    await asyncio.Event().wait()


class MiniRuntime:
    """A runtime in this process with sandboxes and containers, which fails as a test says.

    Every request that changes something is in `asked`.
    """

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.containers: dict[str, cri.Container] = {}
        self.resources: dict[str, cri.LinuxContainerResources] = {}
        self.sandboxes: dict[str, cri.PodSandbox] = {}
        self.parents: dict[str, str] = {}
        self.failures: dict[str, list[grpc.StatusCode]] = {}
        """How the next calls of a method end, by method."""
        self.hold: asyncio.Event | None = None
        """Delays the answer to a creation; the container already exists."""
        self.info: str | None = None
        """A verbose status that replaces the true one."""
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
        """Containers and the CPUs that they were given, in order; a new container without an id."""
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
