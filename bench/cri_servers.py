"""A runtime that answers at once, and the proxy before it: each for a process of its own.

Each says so in a line once it listens.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import uvloop

from bench.bare_relay import serve_handler
from colocate import telemetry
from colocate.agent.configuration import build
from colocate.agent.cri_proxy import ProxySockets, run_cri_proxy
from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri
from colocate.wire.cri_methods import UNARY

CONTAINERS = 100
MACHINE = "2x4x2x4x2"
_LABELS = 12
"""Of a listed container, with annotations: some 1000 bytes, as recorded."""


def serve(kind: str, runtime: str, listen: str) -> None:
    telemetry.configure_logs("json", "error")
    made = {"runtime": _runtime, "ours": _ours}[kind]
    uvloop.run(made(Path(runtime), Path(listen)))


async def _runtime(_: Path, listen: Path) -> None:
    answers = {
        methods.LIST_CONTAINERS.path: listed().SerializeToString(),
        methods.CONTAINER_STATUS.path: cri.ContainerStatusResponse(
            status=cri.ContainerStatus(id=container_id(0), state=cri.CONTAINER_RUNNING)
        ).SerializeToString(),
        methods.EXEC_SYNC.path: cri.ExecSyncResponse(stdout=b"ok\n").SerializeToString(),
    }
    made = 0

    def answer(path: str) -> bytes:
        nonlocal made
        if path == methods.CREATE_CONTAINER.path:
            made += 1
            return cri.CreateContainerResponse(container_id=f"{made:064x}").SerializeToString()
        return answers.get(path, b"")

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            path = details.method

            async def once(_: bytes, __: grpc.aio.ServicerContext) -> bytes:
                return answer(path)

            async def echo(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
                async for request in requests:
                    await context.write(request)

            if path in UNARY:
                return grpc.unary_unary_rpc_method_handler(once)
            return grpc.stream_stream_rpc_method_handler(echo)

    await serve_handler(Handler(), listen)


async def _ours(runtime: Path, listen: Path) -> None:
    folder = listen.parent
    text = (
        f"version: 1\nlog: {{level: error}}\n"
        f"cpus: {{topology: {MACHINE}, stateFolder: {folder}/state, socket: {folder}/cpus.sock}}\n"
    )
    os.environ["NOTIFY_SOCKET"] = ""
    running = asyncio.create_task(
        run_cri_proxy(lambda: build(text.encode(), "bench").config, ProxySockets(runtime, listen))
    )
    while not listen.exists() and not running.done():  # noqa: ASYNC110 -- once, before anything is measured
        await asyncio.sleep(0.01)
    print("listening", flush=True)
    await running


def container_id(number: int) -> str:
    return f"{number:064d}"


def listed() -> cri.ListContainersResponse:
    """A node's containers, each as long as a recorded one."""
    return cri.ListContainersResponse(
        containers=[
            cri.Container(
                id=container_id(number),
                pod_sandbox_id=container_id(number // 2),
                # What is not in this project's messages travels as unknown fields; a long name costs as much.
                metadata=cri.ContainerMetadata(name=f"c{number}" + "x" * (80 * _LABELS)),
                state=cri.CONTAINER_RUNNING,
            )
            for number in range(CONTAINERS)
        ]
    )
