"""The DevicePlugin gRPC service on top of a plugin: calls have deadlines, errors are readable for a pod's owner.

An error in a plugin's code ends only that call; the plugin keeps running.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc

from colocate import telemetry
from colocate.aio import Watched, deadline
from colocate.clock import Clock
from colocate.crashpoints import reached
from colocate.kubelet.allocation import to_wire
from colocate.kubelet.broadcast import Broadcast
from colocate.kubelet.plugin import DevicePlugin, Refused, pass_gate
from colocate.kubelet.plugin_calls import Caller, PluginFailed
from colocate.kubelet.settings import Settings
from colocate.telemetry import Event
from colocate.wire import deviceplugin_pb2 as dp
from colocate.wire import methods
from colocate.wire.rpc import RpcError, Service

Result = TypeVar("Result")
Message = TypeVar("Message")


class PluginService:
    """Answers the kubelet for one plugin."""

    def __init__(
        self,
        plugin: DevicePlugin,
        broadcast: Broadcast,
        knows: Callable[[str], bool],
        settings: Settings,
        clock: Clock,
        caller: Caller,
    ) -> None:
        self._plugin = plugin
        self._broadcast = broadcast
        self._knows = knows
        self._settings = settings
        self._clock = clock
        self._caller = caller
        self._refusal = ""
        self._calls = 0
        self._ended = Watched()
        self.options = dp.DevicePluginOptions(
            pre_start_required=plugin.has_prestart,
            get_preferred_allocation_available=plugin.has_prefer,
        )

    def rpc(self) -> Service:
        """The gRPC service."""
        return Service(
            {
                methods.OPTIONS: self._options,
                methods.PREFER: self._prefer,
                methods.ALLOCATE: self._allocate,
                methods.PRE_START: self._prestart,
            },
            streams={methods.LIST_AND_WATCH: self._list_and_watch},
        )

    def refuse(self, reason: str) -> None:
        """Refuse every further container."""
        self._refusal = reason

    async def idle(self) -> None:
        """Return once no call of the plugin's code is in flight."""
        while self._calls:
            await self._ended.beyond(self._ended.count)

    async def _options(self, _: dp.Empty) -> dp.DevicePluginOptions:
        return self.options

    async def _list_and_watch(self, _: dp.Empty) -> AsyncIterator[bytes]:
        updates = telemetry.PLUGIN_UPDATES.labels(self._plugin.resource)
        async for payload in self._broadcast.lists():
            await pass_gate(self._plugin)
            yield payload
            updates.inc()

    async def _allocate(self, request: dp.AllocateRequest) -> dp.AllocateResponse:
        answer = dp.AllocateResponse()
        for wish in request.container_requests:
            ids = list(wish.devices_ids)
            self._check(ids)
            answer.container_responses.append(
                await self._call(
                    "allocate", self._settings.allocate_timeout, self._plugin.allocate, ids, send=to_wire
                )
            )
        reached("allocate.answer")
        return answer

    async def _prefer(self, request: dp.PreferredAllocationRequest) -> dp.PreferredAllocationResponse:
        answer = dp.PreferredAllocationResponse()
        for wish in request.container_requests:
            preferred = await self._call(
                "prefer",
                self._settings.allocate_timeout,
                self._plugin.prefer,
                list(wish.available_deviceIDs),
                list(wish.must_include_deviceIDs),
                wish.allocation_size,
                send=lambda ids: dp.ContainerPreferredAllocationResponse(deviceIDs=ids),
            )
            answer.container_responses.append(preferred)
        reached("prefer.answer")
        return answer

    async def _prestart(self, request: dp.PreStartContainerRequest) -> dp.PreStartContainerResponse:
        if self._plugin.has_prestart:
            timeout, ids = self._settings.prestart_timeout, list(request.devices_ids)
            await self._call("prestart", timeout, self._plugin.prestart, ids, send=lambda _: None)
        reached("prestart.answer")
        return dp.PreStartContainerResponse()

    def _check(self, ids: Sequence[str]) -> None:
        """Refuse a container after `refuse`, or if a device of it is not in the list."""
        if self._refusal:
            self._count("allocate", "refused")
            raise RpcError(grpc.StatusCode.FAILED_PRECONDITION, self._refusal)
        unknown = next((id for id in ids if not self._knows(id)), None)
        if unknown is not None:
            self._count("allocate", "unknown id")
            raise RpcError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{self._plugin.resource} has no device {unknown!r}; it left the list after the kubelet chose "
                "it",
            )

    async def _call(
        self,
        method: str,
        timeout: float,
        function: Callable[..., Result | Awaitable[Result]],
        *args: Any,
        send: Callable[[Result], Message],
    ) -> Message:
        """Call the plugin's code and convert its answer to a message.

        A failure becomes a gRPC status, a counter and a log event.
        """
        self._calls += 1
        started = self._clock.monotonic()
        try:
            await pass_gate(self._plugin)
            async with deadline(self._clock, timeout):
                result = await self._caller(function, *args)
            message = self._sendable(method, result, send)
        except Refused as refusal:
            self._count(method, "refused")
            raise RpcError(grpc.StatusCode.FAILED_PRECONDITION, str(refusal)) from refusal
        except RpcError:
            raise
        except TimeoutError:
            resource = self._plugin.resource
            self._failed(method, "timeout", f"no answer within {timeout:g} s")
            raise RpcError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the plugin for {resource} did not finish {method} within {timeout:g} s",
            ) from None
        except Exception as error:
            reason = str(error) if isinstance(error, PluginFailed) else f"{type(error).__name__}: {error}"
            self._failed(method, "error", reason, exc_info=error)
            raise RpcError(
                grpc.StatusCode.INTERNAL,
                f"the plugin for {self._plugin.resource} failed in {method}: {reason}",
            ) from error
        finally:
            self._calls -= 1
            self._ended.changed()
        self._count(method, "ok")
        took = self._clock.monotonic() - started
        telemetry.PLUGIN_CALL_SECONDS.labels(self._plugin.resource, method).observe(took)
        return message

    def _sendable(self, method: str, result: Result, send: Callable[[Result], Message]) -> Message:
        try:
            return send(result)
        except (TypeError, AttributeError, ValueError) as error:
            reason = f"{method} returned {result!r:.200}, which cannot be sent: {error}"
            self._failed(method, "bad answer", reason)
            raise RpcError(grpc.StatusCode.INTERNAL, reason) from error

    def _count(self, method: str, outcome: str) -> None:
        telemetry.PLUGIN_CALLS.labels(self._plugin.resource, method, outcome).inc()

    def _failed(self, method: str, outcome: str, reason: str, **details: Any) -> None:
        self._count(method, outcome)
        telemetry.PLUGIN_ERRORS.labels(self._plugin.resource, method).inc()
        telemetry.logger().error(
            Event.PLUGIN_CALL_FAILED, resource=self._plugin.resource, method=method, reason=reason, **details
        )
