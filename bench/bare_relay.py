"""A relay of gRPC's own Python, for a process of its own: bytes in, bytes out.

No metadata, no deadline, no status but what an exception becomes. It imports nothing of Colocate, whose memory would
count for it.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import uvloop


def serve(runtime: str, listen: str, unary: frozenset[str]) -> None:
    """Pass on; these methods as unary ones, all others as streams."""
    uvloop.run(_relay(Path(runtime), Path(listen), unary))


async def _relay(runtime: Path, listen: Path, unary: frozenset[str]) -> None:
    channel = grpc.aio.insecure_channel(
        f"unix:{runtime}", options=[("grpc.default_authority", "localhost"), ("grpc.enable_retries", 0)]
    )

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def __init__(self) -> None:
            self._handlers: dict[str, grpc.RpcMethodHandler] = {}

        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            if details.method not in self._handlers:
                self._handlers[details.method] = self._handler(details.method)
            return self._handlers[details.method]

        def _handler(self, path: str) -> grpc.RpcMethodHandler:
            if path in unary:
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

    await serve_handler(Handler(), listen)


async def serve_handler(handler: grpc.GenericRpcHandler, listen: Path) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{listen}")
    await server.start()
    print("listening", flush=True)
    await asyncio.Event().wait()
