"""A runtime that answers at once, a bare relay before it, and the proxy: each for a process of its own.

Each says so in a line once it listens. The bare relay is what gRPC's own Python makes of passing bytes on: no
metadata, no deadline, no status but what an exception becomes.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import uvloop

from colocate import telemetry
from colocate.apps.config.file import build
from colocate.apps.cri_proxy import ProxySockets, run_cri_proxy
from colocate.runtime.cri_relay import connect
from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri
from colocate.wire.cri_methods import UNARY

CONTAINERS = 100
MACHINE = "2x4x2x4x2"
_LABELS = 12
"""Of a listed container, with annotations: some 1000 bytes, as recorded."""


def serve(kind: str, runtime: str, listen: str) -> None:
    telemetry.configure_logs("json", "error")
    made = {"runtime": _runtime, "bare": _bare, "ours": _ours}[kind]
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

    await _serve(Handler(), listen)


async def _bare(runtime: Path, listen: Path) -> None:
    channel = connect(runtime)

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def __init__(self) -> None:
            self._handlers: dict[str, grpc.RpcMethodHandler] = {}

        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            if details.method not in self._handlers:
                self._handlers[details.method] = self._handler(details.method)
            return self._handlers[details.method]

        def _handler(self, path: str) -> grpc.RpcMethodHandler:
            if path in UNARY:
                invoke = channel.unary_unary(path)

                async def pass_on(request: bytes, _: grpc.aio.ServicerContext) -> bytes:
                    answer: bytes = await invoke(request)
                    return answer

                return grpc.unary_unary_rpc_method_handler(pass_on)
            stream = channel.stream_stream(path)

            async def pass_all(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
                call = stream()

                async def send() -> None:
                    async for request in requests:
                        await call.write(request)
                    await call.done_writing()

                sending = asyncio.create_task(send())
                while (answer := await call.read()) is not grpc.aio.EOF:
                    await context.write(answer)
                await sending

            return grpc.stream_stream_rpc_method_handler(pass_all)

    await _serve(Handler(), listen)


async def _serve(handler: grpc.GenericRpcHandler, listen: Path) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{listen}")
    await server.start()
    print("listening", flush=True)
    await asyncio.Event().wait()


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
