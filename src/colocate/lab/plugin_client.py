"""The kubelet's client of one device plugin: dials its socket, gets its options, follows its list, calls it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import grpc.aio

from colocate.aio import deadline
from colocate.clock import Clock
from colocate.wire import deviceplugin_pb2 as dp
from colocate.wire import methods
from colocate.wire.rpc import call, cancelled, connect, subscribe

DIAL_TIMEOUT = 10.0
PRE_START_TIMEOUT = 30.0
RECEIVE_LIMIT = 4 << 20


class PluginClient:
    """One connected plugin."""

    def __init__(self, resource: str, socket: Path, clock: Clock) -> None:
        self.resource = resource
        self.socket = socket
        self.options = dp.DevicePluginOptions()
        self._clock = clock
        self._channel = connect(socket, receive_limit=RECEIVE_LIMIT)
        self._stream: grpc.aio.UnaryStreamCall | None = None
        self._over = asyncio.Event()

    async def open(self) -> None:
        """Dial the plugin and get its options, which override those of Register."""
        async with deadline(self._clock, DIAL_TIMEOUT):
            await self._channel.channel_ready()
            self.options = await call(self._channel, methods.OPTIONS, dp.Empty())

    async def follow(self, take: Callable[[Sequence[dp.Device]], Awaitable[None]]) -> None:
        """Pass every list to `take`; returns when the stream ends for any reason."""
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
        """Call Allocate without a deadline, as the real kubelet does."""
        request = dp.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        return await call(self._channel, methods.ALLOCATE, request)

    async def pre_start(self, ids: Sequence[str]) -> None:
        request = dp.PreStartContainerRequest(devices_ids=ids)
        async with deadline(self._clock, PRE_START_TIMEOUT):
            await call(self._channel, methods.PRE_START, request)

    async def disconnect(self) -> None:
        """End the stream and the connection."""
        self._over.set()
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close()
