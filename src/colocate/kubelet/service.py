"""The DevicePlugin gRPC service on top of a plugin: calls with a deadline, errors a pod's owner can read.

Whatever a plugin's own code does wrong ends that one call; the plugin lives on.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc

from colocate import telemetry
from colocate.aio import deadline
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.kubelet.broadcast import Broadcast
from colocate.kubelet.plugin import DevicePlugin, Refused
from colocate.kubelet.settings import Settings
from colocate.model.device import Allocation
from colocate.telemetry import Event
from colocate.wire import deviceplugin_pb2 as dp
from colocate.wire import methods
from colocate.wire.rpc import RpcError, Service

Result = TypeVar("Result")


class PluginService:
    """Answers the kubelet for one plugin."""

    def __init__(
        self,
        plugin: DevicePlugin,
        broadcast: Broadcast,
        knows: Callable[[Sequence[str]], bool],
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._plugin = plugin
        self._broadcast = broadcast
        self._knows = knows
        self._settings = settings
        self._clock = clock
        self.options = dp.DevicePluginOptions(
            pre_start_required=plugin.has_prestart,
            get_preferred_allocation_available=plugin.has_prefer,
        )

    def rpc(self) -> Service:
        """The service as gRPC sees it."""
        return Service(
            {
                methods.OPTIONS: self._options,
                methods.PREFER: self._prefer,
                methods.ALLOCATE: self._allocate,
                methods.PRE_START: self._prestart,
            },
            streams={methods.LIST_AND_WATCH: self._list_and_watch},
        )

    async def _options(self, _: dp.Empty) -> dp.DevicePluginOptions:
        return self.options

    async def _list_and_watch(self, _: dp.Empty) -> AsyncIterator[bytes]:
        updates = telemetry.PLUGIN_UPDATES.labels(self._plugin.resource)
        async for payload in self._broadcast.lists():
            yield payload
            updates.inc()

    async def _allocate(self, request: dp.AllocateRequest) -> dp.AllocateResponse:
        answer = dp.AllocateResponse()
        for wish in request.container_requests:
            ids = list(wish.devices_ids)
            if not self._knows(ids):
                self._count("allocate", "unknown id")
                raise RpcError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"{self._plugin.resource} has no device {self._unknown(ids)!r}; it has left the list "
                    f"since the kubelet chose it",
                )
            allocation = await self._call(
                "allocate", self._settings.allocate_timeout, self._plugin.allocate, ids
            )
            with self._readable("allocate", allocation):
                answer.container_responses.append(to_wire(allocation))
        reached("allocate.answer")
        return answer

    async def _prefer(self, request: dp.PreferredAllocationRequest) -> dp.PreferredAllocationResponse:
        answer = dp.PreferredAllocationResponse()
        for wish in request.container_requests:
            chosen = await self._call(
                "prefer",
                self._settings.allocate_timeout,
                self._plugin.prefer,
                list(wish.available_deviceIDs),
                list(wish.must_include_deviceIDs),
                wish.allocation_size,
            )
            with self._readable("prefer", chosen):
                answer.container_responses.add(deviceIDs=chosen)
        reached("prefer.answer")
        return answer

    async def _prestart(self, request: dp.PreStartContainerRequest) -> dp.PreStartContainerResponse:
        if self._plugin.has_prestart:
            await self._call(
                "prestart", self._settings.prestart_timeout, self._plugin.prestart, list(request.devices_ids)
            )
        reached("prestart.answer")
        return dp.PreStartContainerResponse()

    def _unknown(self, ids: Sequence[str]) -> str:
        return next(id for id in ids if not self._knows([id]))

    async def _call(
        self, method: str, timeout: float, function: Callable[..., Result | Awaitable[Result]], *args: Any
    ) -> Result:
        """Call the plugin's code; what goes wrong becomes a gRPC status, a counter and a log event."""
        resource = self._plugin.resource
        started = self._clock.monotonic()
        try:
            async with deadline(self._clock, timeout):
                result = await run(function, *args)
        except Refused as refusal:
            self._count(method, "refused")
            raise RpcError(grpc.StatusCode.FAILED_PRECONDITION, str(refusal)) from refusal
        except TimeoutError:
            self._failed(method, "timeout", f"no answer within {timeout:g} s")
            raise RpcError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the plugin for {resource} did not finish {method} within {timeout:g} s",
            ) from None
        except Exception as error:  # The plugin's own code may raise anything.
            self._failed(method, "error", f"{type(error).__name__}: {error}", exc_info=error)
            raise RpcError(
                grpc.StatusCode.INTERNAL,
                f"the plugin for {resource} failed in {method}: {type(error).__name__}: {error}",
            ) from error
        self._count(method, "ok")
        telemetry.PLUGIN_CALL_SECONDS.labels(resource, method).observe(self._clock.monotonic() - started)
        return result

    def _readable(self, method: str, value: object) -> "_Readable":
        return _Readable(self, method, value)

    def _count(self, method: str, outcome: str) -> None:
        telemetry.PLUGIN_CALLS.labels(self._plugin.resource, method, outcome).inc()

    def _failed(self, method: str, outcome: str, reason: str, **details: Any) -> None:
        self._count(method, outcome)
        telemetry.PLUGIN_ERRORS.labels(self._plugin.resource, method).inc()
        telemetry.logger().error(
            Event.PLUGIN_CALL_FAILED, resource=self._plugin.resource, method=method, reason=reason, **details
        )


class _Readable:
    """Turns the error of putting a plugin's answer on the wire into one that names the plugin."""

    def __init__(self, service: PluginService, method: str, value: object) -> None:
        self._service, self._method, self._value = service, method, value

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, TypeError | AttributeError | ValueError):
            reason = f"{self._method} returned {self._value!r:.200}, which cannot be sent: {error}"
            self._service._failed(self._method, "bad answer", reason)
            raise RpcError(grpc.StatusCode.INTERNAL, reason) from error


async def run(function: Callable[..., Result | Awaitable[Result]], *args: Any) -> Result:
    """Call a plain function in a thread, a coroutine function here."""
    if inspect.iscoroutinefunction(function):
        result: Result | Awaitable[Result] = function(*args)
    else:
        result = await asyncio.to_thread(function, *args)
    if inspect.isawaitable(result):
        return await result
    return result


def to_wire(allocation: Allocation) -> dp.ContainerAllocateResponse:
    """An allocation as the message that the kubelet stores and hands to the runtime."""
    message = dp.ContainerAllocateResponse(
        envs=dict(allocation.envs), annotations=dict(allocation.annotations)
    )
    for mount in allocation.mounts:
        message.mounts.add(
            container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only
        )
    for node in allocation.devices:
        message.devices.add(
            container_path=node.container_path or node.host_path,
            host_path=node.host_path,
            permissions=node.permissions,
        )
    for name in allocation.cdi:
        message.cdi_devices.add(name=name)
    return message
