"""Watches the calls between kubelet and runtime that concern CPUs, and rewrites them as the placer decides.

A container's cpuset is written into CreateContainer and into the kubelet's own UpdateContainerResources. Containers
that must give up CPUs are changed before CreateContainer is passed on. If the decision fails, or a message cannot be
read, the call passes unchanged. A strict wish that cannot be met ends the call with the reason.

No call says that a container has ended by itself. The kubelet learns it from the runtime's lists, statuses and
events, which all pass through here: the proxy sees every end before the kubelet does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError, EncodeError, Message

from colocate import crashpoints, telemetry
from colocate.aio import seen_through
from colocate.clock import Clock
from colocate.model.container import CpuPin, RuntimeContainer, RuntimeSandbox
from colocate.runtime.cri_inventory import find_container, inventory
from colocate.runtime.cri_messages import merge, requested, resources
from colocate.runtime.cri_pins import CriPins
from colocate.runtime.cri_relay import Forward, RelayRefused, Tap, Watch
from colocate.runtime.events import ContainerEvents, PlacementRefused, Placing
from colocate.telemetry import Event
from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri

PATIENCE = 5.0
"""Seconds that a container waits for the reconciliation with the runtime before it starts without a decision."""
_LAST_SECONDS = 5.0
"""Seconds for events that are still under way when the proxy stops."""
_UNDECIDED = Placing()
_TOO_EARLY = Placing()
"""No decision yet: it follows once the proxy is reconciled."""
_UNCERTAIN = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
}
"""Status codes after which the runtime may still have done what it was asked."""

AnyMessage = TypeVar("AnyMessage", bound=Message)


class CriProxy:
    """Announces to `events` what happens, in order, and reconciles them with the runtime in `run`.

    `watches` and `taps` are for the relay.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        events: ContainerEvents,
        clock: Clock,
        on_connection: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel = channel
        self._events = events
        self._clock = clock
        self._on_connection = on_connection
        self._pins = CriPins(channel, clock)
        self._lock = asyncio.Lock()
        """Held while a decision is made and the containers that lose CPUs are changed."""
        self._reconciled = asyncio.Event()
        self._sandboxes: dict[str, str] = {}
        """The sandbox ids of live containers, by container id."""
        self._loose: set[asyncio.Task[None]] = set()
        self._late: dict[str, asyncio.Task[None]] = {}
        """The pending decisions about containers that were created before the reconciliation, by container id."""
        self._passing = False

    @property
    def watches(self) -> Mapping[str, Watch]:
        return {
            methods.CREATE_CONTAINER.path: self._create,
            methods.UPDATE_RESOURCES.path: self._update,
            methods.START_CONTAINER.path: self._after(cri.StartContainerRequest, self._started),
            methods.STOP_CONTAINER.path: self._after(
                cri.StopContainerRequest, lambda request: self._has_ended(request.container_id)
            ),
            methods.REMOVE_CONTAINER.path: self._after(cri.RemoveContainerRequest, self._removed),
            methods.STOP_SANDBOX.path: self._after(cri.StopPodSandboxRequest, self._sandbox_stopped),
            methods.REMOVE_SANDBOX.path: self._after(cri.RemovePodSandboxRequest, self._sandbox_removed),
            methods.LIST_CONTAINERS.path: self._list,
            methods.CONTAINER_STATUS.path: self._status,
        }

    @property
    def taps(self) -> Mapping[str, Tap]:
        return {methods.CONTAINER_EVENTS: self._see_event, methods.STREAM_CONTAINERS: self._see_containers}

    async def run(self) -> None:
        """Reconcile each time the runtime connects, until cancelled."""
        try:
            while True:
                await self._connected()
                self._on_connection()
                if not await self._reconcile():
                    await self._clock.sleep(1)
                    continue
                await self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
                self._reconciled.clear()
                telemetry.logger().warning(Event.CRI_RUNTIME_LOST)
                self._tell(self._events.detached(self._pins))
        finally:
            await seen_through(self._close())

    def let_pass(self) -> None:
        """The placer has ended: pass every call unchanged from now on."""
        self._passing = True

    async def _connected(self) -> None:
        while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)

    async def _reconcile(self) -> bool:
        async with self._lock:
            try:
                sandboxes, containers = await inventory(self._channel)
            except grpc.aio.AioRpcError as error:
                telemetry.logger().warning(
                    Event.CRI_NOT_RECONCILED, code=error.code().name, reason=error.details()
                )
                return False
            self._sandboxes = {own: self._sandboxes[own] for own in self._late if own in self._sandboxes} | {
                container.id: container.sandbox_id for container in containers if not container.has_ended
            }
            for container in containers:
                if container.has_ended:
                    self._drop_late(container.id)
            # Containers created meanwhile are placed by their CreateContainer, which has more facts than a list.
            containers = [container for container in containers if container.id not in self._late]
            pins: Iterable[CpuPin] = ()
            try:
                pins = await self._events.synchronize(sandboxes, containers, self._pins)
            except Exception as error:  # noqa: BLE001 -- containers must start whatever fails here
                self._failed("synchronize", error)
            await self._pins.write(tuple(pins))
        self._reconciled.set()
        telemetry.logger().info(
            Event.CRI_RECONCILED,
            sandboxes=len(sandboxes),
            containers=len(containers),
            changed=len(tuple(pins)),
        )
        return True

    async def _close(self) -> None:
        for container_id in list(self._late):
            self._drop_late(container_id)
        self._tell(self._events.detached(self._pins))
        _, late = await asyncio.wait(self._loose, timeout=_LAST_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await self._pins.close()

    # Calls that are rewritten

    async def _create(self, payload: bytes, forward: Forward) -> bytes:
        request = _read(cri.CreateContainerRequest, payload)
        if request is None or not request.pod_sandbox_id or not request.HasField("sandbox_config"):
            self._passed("CreateContainer", "unreadable")
            return await forward(payload)
        sandbox, container = requested(request)
        key = (sandbox.id, container.name, container.attempt)
        placing = _UNDECIDED
        try:
            placing = await self._decide("CreateContainer", lambda: self._events.create(sandbox, container))
            if placing.own is not None:
                payload = _with_pin(request, request.config.linux.resources, placing.own, payload)
            crashpoints.reached("cri.create")
            answer = await forward(payload)
        except grpc.aio.AioRpcError as error:
            if error.code() in _UNCERTAIN:
                self._loosely(self._look_for(sandbox, container, placing))
            else:
                self._tell(self._events.not_created(*key))
            raise
        except asyncio.CancelledError:
            self._loosely(self._look_for(sandbox, container, placing))
            raise
        made = _read(cri.CreateContainerResponse, answer)
        if made is not None and made.container_id:
            self._made(sandbox, msgspec.structs.replace(container, id=made.container_id), placing)
        return answer

    async def _update(self, payload: bytes, forward: Forward) -> bytes:
        request = _read(cri.UpdateContainerResourcesRequest, payload)
        if request is None or not request.container_id:
            self._passed("UpdateContainerResources", "unreadable")
            return await forward(payload)
        container_id = request.container_id
        said = resources(request.linux)
        placing = await self._decide(
            "UpdateContainerResources", lambda: self._events.update(container_id, said)
        )
        if placing.own is not None:
            payload = _with_pin(request, request.linux, placing.own, payload)
        async with self._pins.holding(container_id, placing.own):
            crashpoints.reached("cri.update")
            answer = await forward(payload)
        if placing is _TOO_EARLY and not self._passing:
            self._loosely(self._decide_late(container_id, lambda: self._events.update(container_id, said)))
        return answer

    async def _decide(self, method: str, ask: Callable[[], Awaitable[Placing]]) -> Placing:
        """The decision, after containers that lose CPUs were changed, or `_UNDECIDED`, or `_TOO_EARLY`."""
        if self._passing:
            self._passed(method, "ended")
            return _UNDECIDED
        try:
            await asyncio.wait_for(self._reconciled.wait(), PATIENCE)
        except TimeoutError:
            self._passed(method, "not_reconciled")
            return _TOO_EARLY
        return await seen_through(self._decide_in_order(method, ask))

    async def _decide_in_order(self, method: str, ask: Callable[[], Awaitable[Placing]]) -> Placing:
        async with self._lock:
            try:
                placing = await ask()
            except PlacementRefused as refused:
                raise RelayRefused(grpc.StatusCode.FAILED_PRECONDITION, str(refused)) from None
            except Exception as error:  # noqa: BLE001 -- the container must start whatever fails here
                self._failed(method, error)
                return _UNDECIDED
            await self._pins.write(placing.others)
            return placing

    async def _place_late(self, sandbox: RuntimeSandbox, made: RuntimeContainer) -> None:
        """Place a container that was created before the proxy was reconciled."""
        await self._reconciled.wait()
        self._late.pop(made.id, None)
        await self._decide_late(made.id, lambda: self._events.found(sandbox, made))

    async def _decide_late(self, container_id: str, ask: Callable[[], Awaitable[Placing]]) -> None:
        """Decide about a call that passed before the proxy was reconciled, and write the decision."""
        await self._reconciled.wait()
        try:
            placing = await self._decide_in_order("late", ask)
        except RelayRefused:
            return  # The resize is already done: it cannot be refused any more, and the container keeps its CPUs.
        if placing.own is not None:
            await self._pins.write([msgspec.structs.replace(placing.own, container_id=container_id)])

    def _drop_late(self, container_id: str) -> None:
        if task := self._late.pop(container_id, None):
            task.cancel()

    # Calls that are watched

    def _after(self, kind: type[AnyMessage], tell: Callable[[AnyMessage], None]) -> Watch:
        """A watch that passes a call on, and announces it once the runtime has carried it out."""

        async def watch(payload: bytes, forward: Forward) -> bytes:
            answer = await forward(payload)
            if request := _read(kind, payload):
                tell(request)
            return answer

        return watch

    def _started(self, request: cri.StartContainerRequest) -> None:
        self._tell(self._events.started(request.container_id))

    def _removed(self, request: cri.RemoveContainerRequest) -> None:
        self._forget(request.container_id)
        self._tell(self._events.removed(request.container_id))

    def _sandbox_stopped(self, request: cri.StopPodSandboxRequest) -> None:
        self._tell(self._events.sandbox_stopped(request.pod_sandbox_id))

    def _sandbox_removed(self, request: cri.RemovePodSandboxRequest) -> None:
        for container_id in [own for own, at in self._sandboxes.items() if at == request.pod_sandbox_id]:
            self._forget(container_id)
        self._tell(self._events.sandbox_removed(request.pod_sandbox_id))

    async def _list(self, payload: bytes, forward: Forward) -> bytes:
        answer = await forward(payload)
        await self._see_containers(answer)
        return answer

    async def _status(self, payload: bytes, forward: Forward) -> bytes:
        answer = await forward(payload)
        read = _read(cri.ContainerStatusResponse, answer)
        if read and read.status.state == cri.CONTAINER_EXITED and read.status.id in self._sandboxes:
            self._has_ended(read.status.id)
        return answer

    async def _see_containers(self, answer: bytes) -> None:
        """A list of containers, or one part of a streamed list: both have the same field."""
        if not self._sandboxes or (read := _read(cri.ListContainersResponse, answer)) is None:
            return
        for container in read.containers:
            if container.state == cri.CONTAINER_EXITED and container.id in self._sandboxes:
                self._has_ended(container.id)

    async def _see_event(self, answer: bytes) -> None:
        read = _read(cri.ContainerEventResponse, answer)
        if (
            read
            and read.container_event_type == cri.CONTAINER_STOPPED_EVENT
            and read.container_id in self._sandboxes
        ):
            self._has_ended(read.container_id)

    # Events

    def _made(self, sandbox: RuntimeSandbox, made: RuntimeContainer, placing: Placing) -> None:
        self._sandboxes[made.id] = sandbox.id
        if placing is not _TOO_EARLY:
            self._tell(self._events.created(sandbox.id, made.name, made.attempt, made.id))
        elif not self._passing:
            self._late[made.id] = self._loosely(self._place_late(sandbox, made))

    def _has_ended(self, container_id: str) -> None:
        self._drop_late(container_id)
        self._sandboxes.pop(container_id, None)
        self._tell(self._events.stopped(container_id))

    def _forget(self, container_id: str) -> None:
        self._drop_late(container_id)
        self._sandboxes.pop(container_id, None)
        self._pins.forget(container_id)

    async def _look_for(self, sandbox: RuntimeSandbox, container: RuntimeContainer, placing: Placing) -> None:
        """Ask whether a container exists whose call was cut off. If the runtime is gone, `run` reconciles later."""
        key = (sandbox.id, container.name, container.attempt)
        try:
            found = await find_container(self._channel, *key)
        except grpc.aio.AioRpcError:
            return
        if found is None:
            self._tell(self._events.not_created(*key))
        else:
            self._made(sandbox, msgspec.structs.replace(container, id=found.id), placing)

    def _tell(self, event: Coroutine[Any, Any, None]) -> None:
        """Announce an event that has happened. The kubelet's answer does not wait for it; later decisions do.

        Tasks start in the order in which they are created, and `events` handles one at a time.
        """
        if self._passing:
            event.close()
            return
        self._loosely(self._told(event))

    async def _told(self, event: Coroutine[Any, Any, None]) -> None:
        try:
            await event
        except Exception as error:  # noqa: BLE001 -- the call has been carried out
            self._failed("event", error)

    def _loosely(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)
        return task

    def _failed(self, method: str, error: Exception) -> None:
        self._passed(method, "error")
        telemetry.logger().error(Event.CRI_DECISION_FAILED, method=method, exc_info=error)

    def _passed(self, method: str, reason: str) -> None:
        telemetry.CRI_PASSED.labels(method=method, reason=reason).inc()


def _read(kind: type[AnyMessage], payload: bytes) -> AnyMessage | None:
    """The message, or None if it cannot be read: then the call passes unchanged."""
    try:
        return kind.FromString(payload)
    except DecodeError:
        return None


def _with_pin(request: Message, into: cri.LinuxContainerResources, pin: CpuPin, otherwise: bytes) -> bytes:
    merge(pin, into)
    try:
        return request.SerializeToString()
    except EncodeError:
        return otherwise
