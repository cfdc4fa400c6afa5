"""Asks a runtime by CRI for all its sandboxes and containers, so that a placer can be reconciled with them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import grpc
import grpc.aio

from colocate.model.container import RuntimeContainer, RuntimeSandbox
from colocate.runtime.cri_messages import found_container, found_sandbox
from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri
from colocate.wire import rpc

_AT_ONCE = 16
"""Calls to the runtime at a time."""
_SECONDS = 20.0
_STATUS_SECONDS = 5.0

Asked = TypeVar("Asked")
Found = TypeVar("Found")


async def inventory(
    channel: grpc.aio.Channel,
) -> tuple[Sequence[RuntimeSandbox], Sequence[RuntimeContainer]]:
    """All sandboxes and containers, without those that go meanwhile; an AioRpcError if the runtime fails."""
    sandboxes = await rpc.call(channel, methods.LIST_SANDBOXES, cri.ListPodSandboxRequest(), timeout=_SECONDS)
    containers = await rpc.call(
        channel, methods.LIST_CONTAINERS, cri.ListContainersRequest(), timeout=_SECONDS
    )

    async def sandbox(listed: cri.PodSandbox) -> RuntimeSandbox:
        question = cri.PodSandboxStatusRequest(pod_sandbox_id=listed.id, verbose=True)
        said = await _status(rpc.call(channel, methods.SANDBOX_STATUS, question, timeout=_STATUS_SECONDS))
        return found_sandbox(listed, said.info.get("info", "") if said else "")

    async def container(listed: cri.Container) -> RuntimeContainer:
        question = cri.ContainerStatusRequest(container_id=listed.id, verbose=True)
        said = await _status(rpc.call(channel, methods.CONTAINER_STATUS, question, timeout=_STATUS_SECONDS))
        return found_container(listed, said.info.get("info", "") if said else "")

    return await _ask(sandbox, sandboxes.items), await _ask(container, containers.containers)


async def _status(asked: Awaitable[Found]) -> Found | None:
    """An answer, or None if the runtime fails for this object alone: the inventory goes on without its details."""
    try:
        return await asked
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND):
            raise
        return None


async def find_container(
    channel: grpc.aio.Channel, sandbox_id: str, name: str, attempt: int
) -> cri.Container | None:
    """The container of this name and attempt, if the runtime has it; an AioRpcError if the runtime fails."""
    question = cri.ListContainersRequest(filter=cri.ContainerFilter(pod_sandbox_id=sandbox_id))
    listed = await rpc.call(channel, methods.LIST_CONTAINERS, question, timeout=_SECONDS)
    return next(
        (
            container
            for container in listed.containers
            if container.metadata.name == name and container.metadata.attempt == attempt
        ),
        None,
    )


async def _ask(question: Callable[[Asked], Awaitable[Found]], all_listed: Iterable[Asked]) -> list[Found]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def ask(listed: Asked) -> Found | None:
        async with places:
            try:
                return await question(listed)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    return None
                raise

    answers = await asyncio.gather(*(ask(listed) for listed in all_listed))
    return [answer for answer in answers if answer is not None]
