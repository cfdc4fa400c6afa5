"""Changes the CPUs of running containers by UpdateContainerResources.

Of several pins for one container, only the last one counts, in whatever order the writes happen. A failed write is
tried a few more times, unless a newer pin replaces it; after that, the placer's audit repairs the container.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from colocate import crashpoints, telemetry
from colocate.clock import Clock
from colocate.model.container import CpuPin
from colocate.runtime.cri_messages import merge
from colocate.telemetry import Event
from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri
from colocate.wire import rpc

_AT_ONCE = 8
"""Containers to change at a time: each costs the runtime a process."""
_SECONDS = 10.0
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each retry."""


class CriPins:
    """A `PinWriter`; `close` ends its retries."""

    def __init__(self, channel: grpc.aio.Channel, clock: Clock) -> None:
        self._channel = channel
        self._clock = clock
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._wanted: dict[str, CpuPin] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._retries: dict[str, asyncio.Task[None]] = {}

    async def write(self, pins: Sequence[CpuPin]) -> Sequence[str]:
        """Write pins; returns the ids of containers that could not be changed, without those that are gone."""
        for pin in pins:
            self._wanted[pin.container_id] = pin
        done = await asyncio.gather(*(self._attempt(pin.container_id, pin) for pin in pins))
        failed = [pin.container_id for pin, written in zip(pins, done, strict=True) if not written]
        for container_id in failed:
            if container_id not in self._retries:
                self._retries[container_id] = asyncio.create_task(self._try_again(container_id))
        return failed

    @asynccontextmanager
    async def holding(self, container_id: str, pin: CpuPin | None) -> AsyncIterator[None]:
        """Write nothing else to this container while the body runs; `pin` is what the body itself writes."""
        if pin is not None:
            self._wanted[container_id] = pin
        async with self._locks[container_id]:
            yield

    def forget(self, container_id: str) -> None:
        """The container is gone."""
        self._wanted.pop(container_id, None)
        self._locks.pop(container_id, None)

    async def close(self) -> None:
        retries = list(self._retries.values())
        for retry in retries:
            retry.cancel()
        await asyncio.gather(*retries, return_exceptions=True)

    async def _attempt(self, container_id: str, pin: CpuPin) -> bool:
        async with self._places, self._locks[container_id]:
            if self._wanted.get(container_id) is not pin:
                return True  # A newer pin has replaced it, or the container is gone.
            request = cri.UpdateContainerResourcesRequest(container_id=container_id)
            merge(pin, request.linux)
            crashpoints.reached("cri.pin")
            try:
                await rpc.call(self._channel, methods.UPDATE_RESOURCES, request, timeout=_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    return True
                telemetry.logger().warning(
                    Event.CRI_PIN_FAILED,
                    container=container_id,
                    cpus=str(pin.cpus),
                    code=error.code().name,
                    reason=error.details(),
                )
                return False
        return True

    async def _try_again(self, container_id: str) -> None:
        """Write the last pin a few more times."""
        try:
            for pause in _PAUSES:
                await self._clock.sleep(pause)
                pin = self._wanted.get(container_id)
                if pin is None or await self._attempt(container_id, pin):
                    break
        finally:
            del self._retries[container_id]
