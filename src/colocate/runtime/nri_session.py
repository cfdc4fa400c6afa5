"""One NRI connection to a runtime: turns its requests into events, and their answers into NRI answers.

If an event fails or takes too long, the answer changes nothing, and the container starts.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
from google.protobuf.message import Message

from colocate import telemetry
from colocate.crashpoints import reached
from colocate.errors import Unavailable, visible
from colocate.model.container import ContainerPhase, CpuPin
from colocate.runtime import nri_messages as facts
from colocate.runtime.events import ContainerEvents, PlacementRefused
from colocate.telemetry import NRI_REQUEST_SECONDS, NRI_REQUESTS, Event
from colocate.wire import nri_pb2 as nri
from colocate.wire.ttrpc import CallRefused, StatusCode
from colocate.wire.ttrpc_link import TtrpcLink

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME = "nri.pkg.api.v1alpha1.Runtime"

_SUBSCRIBED = (
    nri.STOP_POD_SANDBOX,
    nri.REMOVE_POD_SANDBOX,
    nri.CREATE_CONTAINER,
    nri.POST_START_CONTAINER,
    nri.UPDATE_CONTAINER,
    nri.STOP_CONTAINER,
    nri.REMOVE_CONTAINER,
)
EVENT_MASK = sum(1 << event - 1 for event in _SUBSCRIBED)
"""The subscribed events. PostCreateContainer is not needed: the id is known before."""

_REGISTRATION_TIME = 5.0
_WRITE_TIME = 30.0
_PINS_PER_WRITE = 8
"""Pins per UpdateContainers: the runtime creates no container during that call."""
_LARGEST_ANSWER = 512 << 10
"""Largest answer in bytes: runtimes disconnect beyond 1 MiB of unread data. The audit corrects what is left out."""
_LONGEST_MESSAGE = 1024
_MOST_UNKNOWN_TOLD = 16

_Call = Callable[[bytes], Awaitable[bytes]]
AnyMessage = TypeVar("AnyMessage", bound=Message)


class PluginIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Name and index of the plugin at the runtime."""

    name: str = "colocate"
    index: str = "90"
    """Two digits: plugins with lower numbers are asked first. The last plugin sees the changes of all others."""


class NriSession:
    """Answers a runtime, and is the `PinWriter` of its containers."""

    def __init__(self, events: ContainerEvents) -> None:
        self.request_timeout = 2.0
        self.synchronized = False
        """Whether `synchronize` was called, so that the events have this writer."""
        self._events = events
        self._link: TtrpcLink | None = None
        self._inventory = facts.Inventory()
        self._unknown: set[str] = set()
        self._late = False
        self._runtime = ""
        self._calls: Mapping[str, _Call] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
            "UpdateContainer": self._update,
            "StopContainer": _told(nri.StopContainerRequest, lambda said: events.stopped(said.container.id)),
            "RemoveContainer": _told(
                nri.RemoveContainerRequest, lambda said: events.removed(said.container.id)
            ),
            "PostStartContainer": _told(
                nri.PostStartContainerRequest, lambda said: events.started(said.container.id)
            ),
            "StopPodSandbox": _told(
                nri.StopPodSandboxRequest, lambda said: events.sandbox_stopped(said.pod.id)
            ),
            "RemovePodSandbox": _told(
                nri.RemovePodSandboxRequest, lambda said: events.sandbox_removed(said.pod.id)
            ),
            "StateChange": self._state_change,
            "Shutdown": self._shutdown,
        }
        self._seconds = {name: NRI_REQUEST_SECONDS.labels(name) for name in self._calls}
        self._done = {name: NRI_REQUESTS.labels(name, "ok") for name in self._calls}

    async def register(self, link: TtrpcLink, identity: PluginIdentity) -> None:
        """Register the plugin; CallRefused or Unavailable if the runtime does not accept it.

        The link must already be running: the first request may come before this returns.
        """
        self._link = link
        request = nri.RegisterPluginRequest(plugin_name=identity.name, plugin_idx=identity.index)
        await link.call(RUNTIME, "RegisterPlugin", request.SerializeToString(), _REGISTRATION_TIME)

    async def write(self, pins: Sequence[CpuPin]) -> Sequence[str]:
        """Change running containers, a few at a time; returns the ids of those that could not be changed."""
        failed: list[str] = []
        for start in range(0, len(pins), _PINS_PER_WRITE):
            some = pins[start : start + _PINS_PER_WRITE]
            request = nri.UpdateContainersRequest(update=map(facts.update, some))
            reached("nri.write")
            try:
                assert self._link is not None
                answer = await self._link.call(
                    RUNTIME, "UpdateContainers", request.SerializeToString(), _WRITE_TIME
                )
            except CallRefused as refusal:
                answer = refusal.payload
                if not answer:
                    failed += [pin.container_id for pin in some]
                    continue
            except Unavailable:
                return failed + [pin.container_id for pin in pins[start:]]
            response = nri.UpdateContainersResponse.FromString(answer)
            failed += [each.container_id for each in response.failed]
        return failed

    # Called by the link.

    async def handle(self, service: str, method: str, payload: bytes) -> bytes:
        call = self._calls.get(method) if service == PLUGIN else None
        if call is None:
            self._tell_unknown(f"{service}/{method}")
            NRI_REQUESTS.labels("unknown", "unknown").inc()
            raise CallRefused(StatusCode.UNIMPLEMENTED, "this plugin has no such method")
        begun = time.perf_counter()
        try:
            answer = await call(payload)
        except PlacementRefused as refusal:
            NRI_REQUESTS.labels(method, "refused").inc()
            raise CallRefused(
                StatusCode.FAILED_PRECONDITION, visible(str(refusal))[:_LONGEST_MESSAGE]
            ) from None
        reached("nri.answer")
        self._seconds[method].observe(time.perf_counter() - begun)
        self._done[method].inc()
        self._late = False
        return answer

    def fallback(self, method: str) -> bytes:
        NRI_REQUESTS.labels(method if method in self._calls else "unknown", "late").inc()
        if not self._late:
            self._late = True
            telemetry.logger().warning(
                Event.NRI_LET_GO,
                method=method,
                effect="answered as if there were no plugin; the audit corrects it",
            )
        return b""

    def failed(self, method: str, error: Exception) -> bytes | None:
        NRI_REQUESTS.labels(method, "failed").inc()
        telemetry.logger().error(
            Event.NRI_REQUEST_FAILED,
            method=method,
            effect="answered as if there were no plugin",
            exc_info=error,
        )
        # After a failed Synchronize the plugin must connect again.
        return None if method == "Synchronize" else b""

    # Methods of the Plugin service.

    async def _configure(self, payload: bytes) -> bytes:
        request = nri.ConfigureRequest.FromString(payload)
        if request.request_timeout > 0:
            self.request_timeout = request.request_timeout / 1000
        self._runtime = f"{request.runtime_name} {request.runtime_version}"[:_LONGEST_MESSAGE]
        return nri.ConfigureResponse(events=EVENT_MASK).SerializeToString()

    async def _synchronize(self, payload: bytes) -> bytes:
        request = nri.SynchronizeRequest.FromString(payload)
        self._inventory.add(request, len(payload))
        if request.more:
            # Echo `more`, or the runtime assumes that chunks are unsupported.
            return nri.SynchronizeResponse(more=True).SerializeToString()
        sandboxes, containers = self._inventory.found()
        self._inventory = facts.Inventory()
        self.synchronized = True
        corrections = await self._events.synchronize(sandboxes, containers, self)
        telemetry.logger().info(
            Event.NRI_SYNCHRONIZED,
            runtime=self._runtime,
            sandboxes=len(sandboxes),
            containers=len(containers),
            corrected=len(corrections),
        )
        return nri.SynchronizeResponse(update=_updates(corrections)).SerializeToString()

    async def _create(self, payload: bytes) -> bytes:
        request = nri.CreateContainerRequest.FromString(payload)
        container = msgspec.structs.replace(facts.container(request.container), phase=ContainerPhase.CREATED)
        placing = await self._events.create(facts.sandbox(request.pod), container)
        response = nri.CreateContainerResponse(update=_updates(placing.others))
        if placing.own is not None:
            facts.merge(placing.own, response.adjust.linux.resources)
        return response.SerializeToString()

    async def _update(self, payload: bytes) -> bytes:
        request = nri.UpdateContainerRequest.FromString(payload)
        container_id = request.container.id
        placing = await self._events.update(container_id, facts.resources(request.linux_resources))
        response = nri.UpdateContainerResponse(update=_updates(placing.others))
        if placing.own is not None:
            own = msgspec.structs.replace(placing.own, container_id=container_id)
            response.update.append(facts.update(own))
        return response.SerializeToString()

    async def _state_change(self, payload: bytes) -> bytes:
        change = nri.StateChangeEvent.FromString(payload)
        match change.event:
            case nri.POST_START_CONTAINER:
                await self._events.started(change.container.id)
            case nri.REMOVE_CONTAINER:
                await self._events.removed(change.container.id)
            case nri.STOP_POD_SANDBOX:
                await self._events.sandbox_stopped(change.pod.id)
            case nri.REMOVE_POD_SANDBOX:
                await self._events.sandbox_removed(change.pod.id)
            case other if other not in nri.Event.values():
                self._tell_unknown(f"StateChange/{other}")
        return b""

    async def _shutdown(self, _: bytes) -> bytes:
        return b""

    def _tell_unknown(self, name: str) -> None:
        if name not in self._unknown and len(self._unknown) < _MOST_UNKNOWN_TOLD:
            self._unknown.add(name)
            telemetry.logger().warning(Event.NRI_UNKNOWN, request=name[:_LONGEST_MESSAGE])


def _told(kind: type[AnyMessage], tell: Callable[[AnyMessage], Awaitable[None]]) -> _Call:
    """A method that announces an event, and has an empty answer."""

    async def call(payload: bytes) -> bytes:
        await tell(kind.FromString(payload))
        return b""

    return call


def _updates(pins: Sequence[CpuPin]) -> list[nri.ContainerUpdate]:
    updates, size = [], 0
    for pin in pins:
        update = facts.update(pin)
        size += update.ByteSize()
        if size > _LARGEST_ANSWER:
            break
        updates.append(update)
    return updates
