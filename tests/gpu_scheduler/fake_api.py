"""Pods and nodes in a dictionary: reads, patches and binds as the API server does them, with faults on demand."""

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from colocate.clock import ManualClock
from colocate.cluster import json_patch
from colocate.cluster.errors import (
    ApiStatus,
    Conflict,
    Doing,
    NotFound,
    PreconditionFailed,
    ServerError,
    Unreachable,
)
from colocate.cluster.resources import UNFINISHED, Object, Selection
from colocate.gpus import ANNOUNCED, DOSLAB, announcement_of
from colocate.gpus.packing.objects import PackedNode, PackedPod
from colocate.model.gpu import GpuInventory
from colocate.model.json_patch import PatchFailed

DOING = Doing("patch", "pods")


class Fault(StrEnum):
    """What happens to one request."""

    NONE = "none"
    CONFLICT = "conflict"
    UNSENT = "unsent"
    LOST = "lost"
    """It is done, and the answer never comes."""
    BROKEN = "broken"
    """The server says 500, and has done nothing."""
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    LEASE_LOST = "lease lost"
    """It is done; the lease is another's by then."""


class Crashed(BaseException):
    """The process is no more."""


class FakeApi:
    """The server, and all that it has told whoever watches."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        """By name."""
        self.nodes: dict[str, GpuInventory] = {}
        self.log: list[tuple[str, Any]] = []
        """Every change, for watchers who read it at their pace."""
        self.texts: dict[str, str] = {}
        """By node, what its agent announces, where it says who has what."""
        self.observe: Callable[[], None] = lambda: None
        """Called after every write."""
        self._versions = itertools.count(1)

    def create(self, name: str, memory: int, cores: int, count: int) -> None:
        limits = {DOSLAB.memory: str(memory), DOSLAB.cores: str(cores), DOSLAB.count: str(count)}
        container = {"name": "main", "resources": {"limits": limits}}
        self._store(
            {
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "uid": f"uid-{name}-{next(self._versions)}",
                },
                "spec": {"containers": [container]},
                "status": {"phase": "Pending"},
            }
        )

    def _store(self, pod: Object) -> None:
        pod["metadata"]["resourceVersion"] = str(next(self._versions))  # type: ignore[index]
        self.pods[pod["metadata"]["name"]] = pod  # type: ignore[index]
        told = typed(pod)
        # Whoever watches those that have not ended is told of an end as of a deletion.
        if told.is_finished:
            self._wrote("pod gone", told.uid)
        else:
            self._wrote("pod", told)

    def _wrote(self, kind: str, what: object) -> None:
        self.log.append((kind, what))
        self.observe()

    def change(self, name: str, change: Callable[[Any], None]) -> None:
        pod = copy.deepcopy(self.pods[name])
        change(pod)
        self._store(pod)

    def delete(self, name: str) -> None:
        self._wrote("pod gone", typed(self.pods.pop(name)).uid)

    def put_node(self, name: str, inventory: GpuInventory) -> None:
        self.nodes[name] = inventory
        self._wrote("node", self.node(name))

    def announce(self, name: str, text: str) -> None:
        self.texts[name] = text
        self._wrote("node", self.node(name))

    def node(self, name: str) -> PackedNode:
        return packed_node(name, self.nodes[name], self.texts.get(name))

    def remove_node(self, name: str) -> None:
        del self.nodes[name]
        self._wrote("node gone", name)

    def patch(self, name: str, operations: Sequence[json_patch.Operation]) -> None:
        pod = self._found(name)
        try:
            changed: Any = json_patch.apply(pod, operations)
        except PatchFailed:
            raise PreconditionFailed(DOING, ApiStatus("a test does not hold")) from None
        self._store(changed)

    def bind(self, name: str, node: str, uid: str, annotations: Mapping[str, str]) -> None:
        pod: Any = copy.deepcopy(self._found(name))
        if pod["metadata"]["uid"] != uid or pod["spec"].get("nodeName"):
            raise Conflict(DOING, ApiStatus("it is another pod, or bound already"))
        pod["spec"]["nodeName"] = node
        pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), **annotations}
        self._store(pod)

    def _found(self, name: str) -> Object:
        if name not in self.pods:
            raise NotFound(DOING, ApiStatus("there is none"))
        return self.pods[name]


def typed(pod: Object) -> PackedPod:
    return msgspec.convert(pod, PackedPod)


def packed_node(name: str, inventory: GpuInventory, text: str | None = None) -> PackedNode:
    body = {
        "metadata": {"name": name, "annotations": {ANNOUNCED: text or announcement_of(inventory)}},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi"}},
    }
    return msgspec.convert(body, PackedNode)


class FakeLease:
    def __init__(self) -> None:
        self.held = False


class FaultyClient:
    """One replica's way to the server. See `Client`."""

    def __init__(self, api: FakeApi, lease: FakeLease, clock: ManualClock) -> None:
        self._api = api
        self._lease = lease
        self.clock = clock
        self.faults: list[Fault] = []
        """Of the next writes, in order; then none."""

    async def get(self, resource: object, name: str, namespace: str) -> PackedPod:
        if name not in self._api.pods:
            raise NotFound(DOING, ApiStatus("there is none"))
        return typed(self._api.pods[name])

    async def list(self, resource: object, selection: Selection) -> "list[PackedPod]":
        assert selection == UNFINISHED
        return [pod for pod in map(typed, self._api.pods.values()) if not pod.is_finished]

    async def patch(
        self, resource: object, name: str, operations: Sequence[json_patch.Operation], namespace: str
    ) -> None:
        self._write(lambda: self._api.patch(name, operations))

    async def bind(
        self, name: str, node: str, namespace: str, uid: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        self._write(lambda: self._api.bind(name, node, uid, annotations or {}))

    def _write(self, write: Callable[[], None]) -> None:
        fault = self.faults.pop(0) if self.faults else Fault.NONE
        match fault:
            case Fault.CONFLICT:
                raise Conflict(DOING, ApiStatus("try again"))
            case Fault.UNSENT:
                raise Unreachable("no connection", sent=False)
            case Fault.BROKEN:
                raise ServerError(DOING, ApiStatus("broken", code=500))
            case Fault.CRASH_BEFORE:
                raise Crashed
        write()
        match fault:
            case Fault.LOST:
                raise Unreachable("the answer was lost")
            case Fault.CRASH_AFTER:
                raise Crashed
            case Fault.LEASE_LOST:
                self._lease.held = False
