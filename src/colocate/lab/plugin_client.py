"""The kubelet's side of one device plugin: dial its socket, ask its options, follow its list, call it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import grpc.aio

from colocate.wire import deviceplugin_pb2 as dp
from colocate.wire import methods
from colocate.wire.rpc import call, cancelled, connect, subscribe

DIAL_TIMEOUT = 10.0
PRE_START_TIMEOUT = 30.0
RECEIVE_LIMIT = 4 << 20


class PluginClient:
    """One connected plugin."""

    def __init__(self, resource: str, socket: Path) -> None:
        self.resource = resource
        self.socket = socket
        self.options = dp.DevicePluginOptions()
        self._channel = connect(socket, receive_limit=RECEIVE_LIMIT)
        self._stream: grpc.aio.UnaryStreamCall | None = None
        self._over = asyncio.Event()

    async def open(self) -> None:
        """Dial the plugin and take its options, which win over those of Register."""
        await asyncio.wait_for(self._channel.channel_ready(), DIAL_TIMEOUT)
        self.options = await call(self._channel, methods.OPTIONS, dp.Empty(), timeout=DIAL_TIMEOUT)

    async def follow(self, take: Callable[[Sequence[dp.Device]], Awaitable[None]]) -> None:
        """Hand every list to `take`; returns when the stream ends, for whatever reason."""
        if self._over.is_set():
            return
        self._stream = subscribe(self._channel, methods.LIST_AND_WATCH, dp.Empty())
        try:
            async for message in self._stream:
                await take(message.devices)
        except grpc.RpcError:
            pass
        except asyncio.CancelledError:
            if cancelled():
                raise

    async def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        request = dp.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        answer = await call(self._channel, methods.PREFER, request)
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def allocate(self, ids: Sequence[str]) -> dp.AllocateResponse:
        """Call Allocate; as with the real kubelet there is no deadline."""
        request = dp.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        return await call(self._channel, methods.ALLOCATE, request)

    async def pre_start(self, ids: Sequence[str]) -> None:
        request = dp.PreStartContainerRequest(devices_ids=ids)
        await call(self._channel, methods.PRE_START, request, timeout=PRE_START_TIMEOUT)

    async def disconnect(self) -> None:
        """End the stream and the connection."""
        self._over.set()
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close()
